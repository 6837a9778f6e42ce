"""How fast a Python thread runs while another one is blocked in a call of the package.

The thread counts in a loop. Its speed while nobody else runs is the yardstick; both are measured in turns, several times, and
the best of each counts, because other processes of the machine slow both down. The bar is 0.8.
"""

import ctypes
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from mori.cpp import TransferStatus
from mori.io import BackendType, EngineDesc, IOEngine, IOEngineConfig, MemoryDesc, MemoryLocationType, StatusCode
from mori.io import TcpBackendConfig

SECONDS, ROUNDS, BAR = 0.4, 7, 0.8
GIB = 1 << 30


def count(seconds):
    """Rounds of a loop in a second of this thread."""
    end, rounds = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        for _ in range(200):
            rounds += 1
    return rounds / seconds


def beside(block):
    """The speed while another thread is blocked in `block(stop)`."""
    stop = threading.Event()
    blocked = threading.Thread(target=block, args=(stop,))
    blocked.start()
    speed = count(SECONDS)
    stop.set()
    return speed, blocked


def silent_peer():
    """An engine in a process that is stopped: it accepts connections and never answers."""
    script = Path(__file__).parent.parent / "tests" / "producer.py"
    command = [sys.executable, str(script), "silent", "4096"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    engine = EngineDesc.unpack(bytes.fromhex(process.stdout.readline()))
    memory = MemoryDesc.unpack(bytes.fromhex(process.stdout.readline()))
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    return process, engine, memory


def main():
    engine = IOEngine("threads", IOEngineConfig("127.0.0.1", 0))
    engine.create_backend(BackendType.TCP, TcpBackendConfig(connect_timeout=SECONDS * 1.5))
    process, peer, remote = silent_peer()
    engine.register_remote_engine(peer)
    local = engine.engine.allocate(4096).desc
    large = mmap.mmap(-1, GIB)
    address = ctypes.addressof((ctypes.c_char * GIB).from_buffer(large))

    def status():
        made = TransferStatus()
        made.SetCode(StatusCode.IN_PROGRESS)
        return made

    def wait_for(stop):
        waited = status()
        while not stop.is_set():
            waited.WaitFor(int(SECONDS * 500))

    def wait_all(stop):
        waited = [status() for _ in range(1000)]
        while not stop.is_set():
            engine.wait_all(waited, int(SECONDS * 500))

    def create_session(stop):
        while not stop.is_set():
            assert engine.create_session(local, remote) is None

    def register_memory(stop):
        # TCP registers a GiB in microseconds. A hundred times a second is more than a program does, and little enough that the
        # calls are measured and not the loop around them.
        while not stop.is_set():
            engine.deregister_memory(engine.register_memory(address, GIB, -1, MemoryLocationType.CPU))
            stop.wait(0.01)

    free, slowed = [], {}
    for _ in range(ROUNDS):
        free.append(count(SECONDS))
        for block in (wait_for, wait_all, create_session, register_memory):
            speed, blocked = beside(block)
            slowed.setdefault(block.__name__, []).append(speed)
            blocked.join()
    process.kill()
    process.wait()
    print(f"alone            {max(free):12.0f} rounds a second")
    good = True
    for name, speeds in slowed.items():
        ratio = max(speeds) / max(free)
        good &= ratio >= BAR
        print(f"{name:16} {max(speeds):12.0f} rounds a second, {ratio:.3f} of alone (at least {BAR})")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
