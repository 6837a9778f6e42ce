"""Blocked calls let other threads run, and the main thread answers signals."""

import os
import signal
import subprocess
import sys
import time

import pytest

from conftest import make_engine, started, submitted
from mori.engine import Engine, wait_all, wait_any, wait_first_failure
from mori.io import IOEngine, IOEngineConfig, StatusCode


def test_a_wait_with_a_bound_blocks_lets_another_thread_run_and_returns_the_code():
    status, counted = submitted(), []

    def count():
        while status.InProgress():
            counted.append(len(counted))
            if len(counted) == 1000:
                status.SetCode(StatusCode.SUCCESS)

    counter = started(count)
    assert status.WaitFor(60_000) is StatusCode.SUCCESS
    counter.join()
    assert len(counted) == 1000


class Rang(Exception):
    """What the test's signal handler raises."""


@pytest.fixture
def alarm():
    """A handler that raises, and a call that lets the signal come while the main thread waits."""

    def ring(_number, _frame):
        raise Rang

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "wait",
    [
        lambda status, engine: status.Wait(),
        lambda status, engine: status.WaitFor(),
        lambda status, engine: status.WaitFor(600_000),
        lambda status, engine: status.wait(600.0),
        lambda status, engine: engine.wait_all([status]),
        lambda status, engine: engine.wait_all([status], 600_000),
        lambda status, engine: wait_all([status], 600.0),
        lambda status, engine: wait_any([status]),
        lambda status, engine: wait_first_failure([status]),
        lambda status, engine: engine.engine.receive(600.0),
        lambda status, engine: engine.engine.receive(),
    ],
)
def test_a_blocked_wait_answers_signals_and_cancels_nothing(alarm, wait):
    status, engine = submitted(), IOEngine("signals", IOEngineConfig())
    alarm()
    with pytest.raises(Rang):
        wait(status, engine)
    assert status.InProgress()
    assert status.SetCode(StatusCode.SUCCESS)


def test_a_handler_that_returns_does_not_end_the_wait():
    rang, status = [], submitted()

    def ring(_number, _frame):
        rang.append(1)
        status.SetCode(StatusCode.SUCCESS)

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert status.WaitFor(60_000) is StatusCode.SUCCESS and rang == [1]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_connecting_to_a_silent_peer_answers_signals_and_lets_threads_run(alarm, producer):
    peer = producer(4096)
    engine = make_engine("patient")
    memory = engine.engine.allocate(4096)
    engine.register_remote_engine(peer.engine)
    peer.signal(signal.SIGSTOP)
    alarm()
    with pytest.raises(Rang):
        engine.create_session(memory.desc, peer.memory)
    opener = started(engine.create_session, memory.desc, peer.memory)
    ran = sum(1 for _ in range(100_000))
    assert ran == 100_000 and opener.is_alive()
    peer.end()
    opener.join(60)
    assert opener.result is None


def test_deregistering_waits_for_transfers_and_answers_signals(alarm, producer):
    peer = producer(1 << 20)
    engine = Engine("busy")
    memory = engine.allocate(1 << 20)
    engine.add_peer(peer.engine)
    session = engine.session(memory, peer.memory)
    peer.signal(signal.SIGSTOP)
    status = session.read(0, 0, 1 << 20)
    with pytest.raises(RuntimeError) as caught:
        memory.deregister(timeout=0)
    assert caught.value.kind == "busy"
    alarm()
    with pytest.raises(Rang):
        memory.deregister()
    peer.signal(signal.SIGCONT)
    assert status.wait(60.0) is StatusCode.SUCCESS


def test_a_blocked_wait_uses_no_processor():
    status = submitted()
    before = time.thread_time()
    status.WaitFor(400)
    wait_all([status], 0.4)
    # Sixteen slices of a few microseconds; half a slice's worth would be a busy loop.
    assert time.thread_time() - before < 0.2


def test_interrupt_from_the_keyboard():
    script = (
        "import sys\n"
        "from mori.cpp import TransferStatus, StatusCode\n"
        "status = TransferStatus(); status.SetCode(StatusCode.IN_PROGRESS)\n"
        "try:\n"
        "    print('waiting', flush=True)\n"
        "    status.Wait()\n"
        "except KeyboardInterrupt:\n"
        "    sys.exit(7)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"waiting\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 7
    process.stdout.close()


def test_a_process_ends_while_a_daemon_thread_waits():
    script = (
        "import threading\n"
        "from mori.cpp import TransferStatus, StatusCode\n"
        "from mori.engine import Engine, wait_all\n"
        "status = TransferStatus(); status.SetCode(StatusCode.IN_PROGRESS)\n"
        "engine = Engine('ends')\n"
        "for wait in (status.Wait, lambda: wait_all([status], 600.0), lambda: engine.receive(600.0)):\n"
        "    threading.Thread(target=wait, daemon=True).start()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=120, capture_output=True)
    assert ended.returncode == 0 and ended.stderr == b"", ended.stderr


def test_a_forked_child_gets_a_clear_error_and_ends(pair):
    status = submitted()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = []
            for call in (
                pair.here.get_engine_desc,
                lambda: pair.session.read(0, 0, 8, 1),
                lambda: pair.here.read(pair.local, 0, pair.remote, 0, 8, 1),
                lambda: pair.here.create_session(pair.local, pair.remote),
                lambda: pair.here.deregister_memory(pair.local),
                lambda: pair.here.engine.receive(0),
                status.Wait,
                lambda: pair.here.wait_all([status]),
            ):
                try:
                    call()
                    said.append("nothing")
                except RuntimeError as error:
                    said.append("fork" if "fork" in str(error) else str(error))
            said.append(str(pair.session.alive()))
            # What the child makes itself works, and dropping what it inherited does no harm.
            own = make_engine("child")
            said.append(str(own.get_engine_desc().port > 0))
            del pair.here, pair.session, pair.there
            os.write(write_end, ",".join(said).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answers:
        assert answers.read().decode().split(",") == ["fork"] * 8 + ["False", "True"]
    assert os.waitpid(child, 0)[1] == 0
    assert pair.session.read(0, 0, 8, 1).WaitFor(20000) is StatusCode.SUCCESS
