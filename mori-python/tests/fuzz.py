"""Calls everything with wrong arguments: `fuzz.py SEED ROUNDS`. Part of the tests; see test_fuzz.py."""

import random
import sys
import threading

import mori.aio
import mori.cpp
import mori.engine
import mori.io
from mori.cpp import *  # noqa: F403
from mori.engine import Engine, StatusFd, scan, wait_all, wait_any, wait_first_failure, wait_some

# Promises about addresses that a random number does not keep, and Python's own machinery.
LEFT_OUT = { "register_memory", "RegisterMemory", "__class__", "__init_subclass__", "__subclasshook__"}


class Rude:
    """Raises, or answers nonsense, whenever it is asked."""

    def __index__(self):
        raise KeyError("rude")

    def __iter__(self):
        raise ZeroDivisionError

    def tolist(self):
        return 5

    def __bool__(self):
        raise ValueError


class Shrinks(int):
    """An integer that empties a list while it is read."""

    victim = []

    def __index__(self):
        Shrinks.victim.clear()
        return 1


def values(random, objects):
    return [
        None, True, False, 0, 1, -1, 7, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**40, -(10**40),
        0.0, -1.5, float("nan"), float("inf"), 1e300, "", "text", "\udcff", "x" * 100_000, b"", b"bytes", bytes(5000),
        bytearray(8), [], [0], [1, 2], [[0]], [[]], [None], ["x"], (), (0,), {}, {1: 2}, set(), range(3), range(2**70, 2**70 + 1),
        iter([1]), object(), type, len, Rude(), [Rude()], Shrinks(1), [Shrinks(1), 1, 2], lambda: None, StatusCode.SUCCESS,
        StatusCode.ERR_GPU_OP, BackendType.TCP, BackendType.RDMA, BackendType.XGMI, MemoryLocationType.CPU, Ellipsis,
        *objects, [random.choice(objects)], [random.choice(objects), None],
    ]  # fmt: skip


def main():
    seed, rounds = int(sys.argv[1]), int(sys.argv[2])
    choose = random.Random(seed)
    here, there = IOEngine("here", IOEngineConfig()), IOEngine("there", IOEngineConfig())
    for engine in (here, there):
        engine.create_backend(BackendType.TCP, TcpBackendConfig(connect_timeout=1.0))
    here.register_remote_engine(there.get_engine_desc())
    local, remote = here.engine.allocate(4096), there.engine.allocate(4096)
    session, own = here.create_session(local.desc, remote.desc), here.engine.session(local, remote.desc)
    done, moving = session.read(0, 0, 8, 1), TransferStatus()
    done.WaitFor(20000)
    gone = IOEngine("gone", IOEngineConfig())
    gone.engine.shutdown()
    objects = [
        here, there, gone, local, remote, local.desc, remote.desc, session, own, done, moving, here.engine, gone.engine,
        here.get_engine_desc(), scan([done]), here.engine.explain(local, remote.desc), StatusFd([done]), TransferStatus(),
        IOEngineConfig(), RdmaBackendConfig(), TcpBackendConfig(), XgmiBackendConfig(), FabricBackendConfig(),
    ]  # fmt: skip
    functions = [wait_all, wait_any, wait_first_failure, wait_some, scan, set_log_level]
    functions += [EngineDesc.unpack, MemoryDesc.unpack, IOEngineConfig, RdmaBackendConfig, TcpBackendConfig, TransferStatus]
    functions += [XgmiBackendConfig, FabricBackendConfig, StatusFd, EngineDesc, MemoryDesc, IOEngineSession]
    threading.Thread(target=nudge, args=(objects,), daemon=True).start()
    made = raised = 0
    for _ in range(rounds):
        pool = values(choose, objects)
        if choose.random() < 0.15:
            call = choose.choice(functions)
            name = call.__name__
        else:
            target = choose.choice(objects)
            name = choose.choice([name for name in dir(target) if name not in LEFT_OUT])
            if choose.random() < 0.05:
                attempt(lambda: setattr(target, name, choose.choice(pool)))
            call = attempt(lambda: getattr(target, name))
            if not callable(call):
                continue
        arguments = [choose.choice(pool) for _ in range(choose.choice([0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 12]))]
        Shrinks.victim = next((each for each in arguments if isinstance(each, list)), [])
        if name == "receive":
            # Nothing arrives at an engine whose peers were removed, so this bound is a short one.
            arguments = [choose.choice([0, 0.001, -1, "x", [], 10**400, float("nan")])]
        made += 1
        if isinstance(attempt(lambda: call(*arguments)), BaseException):
            raised += 1
    status = session.read(0, 0, 8, 9)
    assert status.WaitFor(20000) in (StatusCode.SUCCESS, StatusCode.ERR_NOT_FOUND, StatusCode.ERR_BAD_STATE), status
    print(f"made {made} calls, {raised} were refused")


def nudge(objects):
    """Ends, after a moment, whatever a call waits for: its bound may be a random one."""
    statuses = [each for each in objects if isinstance(each, TransferStatus)]
    pause = threading.Event()
    while not pause.wait(0.02):
        for status in statuses:
            status.SetCode(StatusCode.SUCCESS)


def attempt(call):
    """Its value, or its exception; a panic of the native half is none that is expected."""
    try:
        answer = call()
        if hasattr(answer, "close") and hasattr(answer, "send"):
            answer.close()
        return answer
    except Exception as error:
        return error


if __name__ == "__main__":
    main()
