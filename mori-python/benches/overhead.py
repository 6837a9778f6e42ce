"""What Python costs: a batch of 1000 pieces and the wait for it, from Python and from Rust, over TCP between two processes, in turns.

`overhead.py RUST_PROGRAM` takes the program that `cargo build --release -p mori-python --example batch_read` builds: it reads the
engine's and the memory's descriptors as hexadecimal lines and the size of a piece as an argument, and prints a time in
nanoseconds for each line "go" that it is sent. The bar is 1.15 times Rust's time, and 100 ns for `Succeeded()`.
"""

import statistics
import subprocess
import sys
import timeit
import time
from pathlib import Path

from mori.cpp import TransferStatus
from mori.io import BackendType, EngineDesc, IOEngine, IOEngineConfig, MemoryDesc, StatusCode, TcpBackendConfig

PIECES, ROUNDS, RATIO, NANOSECONDS = 1000, 300, 1.15, 100


def producer(size):
    """The process that owns the bytes, and its two lines."""
    script = Path(__file__).parent.parent / "tests" / "producer.py"
    command = [sys.executable, str(script), "producer", str(size)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline(), process.stdout.readline()


def from_python(peer, memory, size):
    """A call that reads one batch and gives the nanoseconds that it took."""
    engine = IOEngine("python", IOEngineConfig("127.0.0.1", 0))
    engine.create_backend(BackendType.TCP, TcpBackendConfig(enable_notification=False))
    engine.register_remote_engine(EngineDesc.unpack(bytes.fromhex(peer)))
    local = engine.engine.allocate(PIECES * size)
    session = engine.create_session(local.desc, MemoryDesc.unpack(bytes.fromhex(memory)))
    here = [piece * size for piece in range(PIECES)]
    there = [2 * piece * size for piece in reversed(range(PIECES))]
    sizes = [size] * PIECES

    def once():
        begin = time.perf_counter_ns()
        status = session.batch_read(here, there, sizes, session.allocate_transfer_uid())
        code = engine.wait_all([status], 60_000)
        took = time.perf_counter_ns() - begin
        assert code is StatusCode.SUCCESS, status.Message()
        return took

    once.keep = engine
    return once


def from_rust(program, peer, memory, size):
    command = [program, str(PIECES), str(size)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdin.write(peer + memory)

    def once():
        process.stdin.write("go\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    return once


def main():
    program, good = sys.argv[1], True
    for size in (4096, 65536):
        process, peer, memory = producer(2 * PIECES * size)
        sides = {"python": from_python(peer, memory, size), "rust": from_rust(program, peer, memory, size)}
        times = {name: [] for name in sides}
        for number in range(ROUNDS):
            for name, once in sides.items():
                took = once()
                if number >= 10:  # The first ones touch fresh pages.
                    times[name].append(took)
        process.kill()
        process.wait()
        middle = {name: statistics.median(taken) / 1000 for name, taken in times.items()}
        best = {name: min(taken) / 1000 for name, taken in times.items()}
        ratio = middle["python"] / middle["rust"]
        good &= ratio <= RATIO
        print(
            f"{PIECES} pieces of {size} bytes: Python {middle['python']:.0f} us, Rust {middle['rust']:.0f} us, "
            f"ratio {ratio:.3f} (at most {RATIO}); the best {best['python']:.0f} and {best['rust']:.0f} us"
        )
    status = TransferStatus()
    status.SetCode(StatusCode.SUCCESS)
    # Short turns, of which the best counts: the others were interrupted.
    calls = 10_000
    for call in (status.Succeeded, status.Failed):
        nanoseconds = min(timeit.repeat(call, number=calls, repeat=300)) / calls * 1e9
        good &= nanoseconds < NANOSECONDS
        print(f"{call.__name__}() on a terminal status: {nanoseconds:.0f} ns (less than {NANOSECONDS})")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
