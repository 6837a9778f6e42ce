"""What the tests share: pairs of engines, and a producer in a process of its own."""

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mori.cpp import TransferStatus
from mori.io import (
    BackendType,
    EngineDesc,
    IOEngine,
    IOEngineConfig,
    MemoryDesc,
    MemoryLocationType,
    StatusCode,
    TcpBackendConfig,
)

HERE = Path(__file__).parent


def make_engine(key, config=None):
    engine = IOEngine(key, IOEngineConfig("127.0.0.1", 0))
    engine.create_backend(BackendType.TCP, config or TcpBackendConfig())
    return engine


def register(engine, array):
    """Registers a bytearray by its address; the caller keeps it."""
    import ctypes

    address = ctypes.addressof((ctypes.c_char * len(array)).from_buffer(array))
    return engine.register_memory(address, len(array), -1, MemoryLocationType.CPU)


class Pair:
    """Two engines that know each other, each with a megabyte of registered memory."""

    SIZE = 1 << 20

    def __init__(self):
        self.here, self.there = make_engine("here"), make_engine("there")
        self.here.register_remote_engine(self.there.get_engine_desc())
        self.there.register_remote_engine(self.here.get_engine_desc())
        self.local_bytes = bytearray(self.SIZE)
        self.remote_bytes = bytearray(range(256)) * (self.SIZE // 256)
        self.local = register(self.here, self.local_bytes)
        self.remote = register(self.there, self.remote_bytes)
        self.session = self.here.create_session(self.local, self.remote)


@pytest.fixture
def pair():
    return Pair()


@pytest.fixture(autouse=True)
def no_threads_left():
    """A test that leaves a thread of its own blocked has found a hang."""
    before = set(threading.enumerate())
    yield
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if not thread.daemon:
            thread.join(30)
            assert not thread.is_alive(), f"{thread} is still blocked"


class Producer:
    """An engine in another process, whose memory is a pattern; see producer.py."""

    def __init__(self, size, key="producer"):
        command = [sys.executable, str(HERE / "producer.py"), key, str(size)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.key = key
        self.engine = EngineDesc.unpack(self._bytes())
        self.memory = MemoryDesc.unpack(self._bytes())

    def _bytes(self):
        line = self.process.stdout.readline()
        assert line, "the producer has ended"
        return bytes.fromhex(line)

    def signal(self, number):
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            # The signal has been sent; this returns when it has worked.
            os.waitpid(self.process.pid, os.WUNTRACED)

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def producer():
    made = []

    def make(size, key="producer"):
        made.append(Producer(size, key))
        return made[-1]

    yield make
    for each in made:
        each.end()


def started(target, *args):
    """A running thread, whose result is `thread.result`."""

    def run():
        try:
            thread.result = target(*args)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            thread.result = error

    thread = threading.Thread(target=run)
    thread.result = None
    thread.start()
    return thread


def submitted():
    """A status of the test's own that is in progress."""
    status = TransferStatus()
    assert status.SetCode(StatusCode.IN_PROGRESS)
    return status
