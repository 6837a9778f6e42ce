"""An engine that owns memory and serves it until it is killed: `producer.py KEY SIZE`."""

import sys

from mori.engine import Engine


def main():
    key, size = sys.argv[1], int(sys.argv[2])
    cache = bytearray(range(251)) * (size // 251 + 1)
    with Engine(key) as engine:
        memory = engine.register(memoryview(cache)[:size], access="rw")
        print(engine.desc.pack().hex(), flush=True)
        print(memory.desc.pack().hex(), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
