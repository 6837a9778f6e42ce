"""The published behaviours of the waits, one test each, on statuses that the test moves by hand; and the rest of the rules
that show from Python.

No assertion depends on how fast the machine is: a bound that must run out is checked from below only, and one that must not
is far away."""

import threading
import time

import pytest

from conftest import make_engine, started, submitted
from mori.cpp import TransferStatus
from mori.engine import scan, wait_all, wait_any, wait_first_failure, wait_some
from mori.io import IOEngine, IOEngineConfig, StatusCode

FAR = 60_000


@pytest.fixture
def engine():
    return IOEngine("waits", IOEngineConfig())


# For one.


def test_preset_success_and_preset_failure_return_at_once():
    good, bad = TransferStatus(), TransferStatus()
    assert good.Update(StatusCode.SUCCESS, "") and bad.Update(StatusCode.ERR_RDMA_OP, "cable")
    assert good.WaitFor() is StatusCode.SUCCESS and bad.WaitFor(-1) is StatusCode.ERR_RDMA_OP
    assert good.Wait() is None and bad.Wait() is None
    assert bad.Message() == "cable" and bad.Failed() and not bad.Succeeded()


def test_a_never_submitted_status_returns_at_once():
    status = TransferStatus()
    assert status.Init() and status.WaitFor() is StatusCode.INIT and status.WaitFor(0) is StatusCode.INIT


def test_zero_timeout_does_not_wait():
    assert submitted().WaitFor(0) is StatusCode.IN_PROGRESS


def test_an_unbounded_wait_wakes_on_an_update():
    status = submitted()
    waiter = started(status.WaitFor)
    status.SetCode(StatusCode.SUCCESS)
    waiter.join(30)
    assert waiter.result is StatusCode.SUCCESS


def test_a_bounded_wait_without_update_times_out_and_not_early():
    status = submitted()
    begin = time.monotonic()
    assert status.WaitFor(120) is StatusCode.IN_PROGRESS
    assert time.monotonic() - begin >= 0.12
    assert status.InProgress()


def test_a_bounded_wait_in_another_thread_times_out_and_not_early():
    status = submitted()

    def wait():
        begin = time.monotonic()
        return status.WaitFor(120), time.monotonic() - begin

    waiter = started(wait)
    waiter.join(30)
    assert waiter.result[0] is StatusCode.IN_PROGRESS and waiter.result[1] >= 0.12


def test_a_timed_out_wait_can_be_followed_by_an_update_and_another_wait():
    status = submitted()
    assert status.WaitFor(1) is StatusCode.IN_PROGRESS
    status.SetCode(StatusCode.SUCCESS)
    assert status.WaitFor(FAR) is StatusCode.SUCCESS


def test_two_waiters_are_both_released():
    status = submitted()
    waiters = [started(status.WaitFor), started(status.WaitFor, FAR)]
    status.SetCode(StatusCode.ERR_NOT_FOUND)
    for waiter in waiters:
        waiter.join(30)
        assert waiter.result is StatusCode.ERR_NOT_FOUND


def test_redundant_updates_and_messages_release_nobody():
    status = submitted()
    waiter = started(status.WaitFor)
    for number in range(100):
        assert not status.SetCode(StatusCode.IN_PROGRESS)
        assert status.SetMessage(f"{number} of 100")
        assert status.Update(StatusCode.IN_PROGRESS, "again")
    assert waiter.is_alive() and status.Message() == "again"
    status.SetCode(StatusCode.SUCCESS)
    waiter.join(30)
    assert waiter.result is StatusCode.SUCCESS


def test_setting_success_releases_the_main_thread():
    status = submitted()
    mover = started(status.SetCode, StatusCode.SUCCESS)
    assert status.WaitFor(FAR) is StatusCode.SUCCESS
    mover.join()


def test_the_first_terminal_state_is_final():
    status = submitted()
    assert status.Update(StatusCode.ERR_GPU_OP, "first")
    for code in StatusCode:
        assert not status.Update(code, "later") and not status.SetCode(code) and not status.SetMessage("later")
    assert status.Code() is StatusCode.ERR_GPU_OP and status.Message() == "first"
    with pytest.raises(TypeError):
        status.SetCode(0)
    assert not status.SetCode(StatusCode.INIT)


def test_a_bound_in_milliseconds_is_taken_as_it_is():
    status = submitted()
    for bad in (None, 1.5, "1", 2**63, 10**30, -(2**64)):
        with pytest.raises(TypeError):
            status.WaitFor(bad)
    status.SetCode(StatusCode.SUCCESS)
    assert status.WaitFor(2**63 - 1) is StatusCode.SUCCESS


# For many.


def test_empty_succeeds(engine):
    assert engine.wait_all([]) is StatusCode.SUCCESS and engine.wait_all((), 0) is StatusCode.SUCCESS
    assert wait_all([]) and len(wait_all([])) == 0


def test_the_batch_wrapper_waits_for_all(engine):
    statuses = [submitted() for _ in range(8)]

    def move():
        for status in reversed(statuses):
            status.SetCode(StatusCode.SUCCESS)

    mover = started(move)
    assert engine.wait_all(statuses) is StatusCode.SUCCESS
    assert all(status.Succeeded() for status in statuses)
    mover.join()


def test_zero_timeout_reports_in_progress_without_waiting(engine):
    assert engine.wait_all([submitted()], 0) is StatusCode.IN_PROGRESS


def test_zero_timeout_failure_wins(engine):
    bad = submitted()
    bad.SetCode(StatusCode.ERR_RDMA_OP)
    assert engine.wait_all([submitted(), bad, submitted()], 0) is StatusCode.ERR_RDMA_OP
    assert engine.wait_all([bad, submitted()], timeout_ms=0) is StatusCode.ERR_RDMA_OP


def test_one_fails_and_an_unbounded_wait_returns_only_when_all_are_terminal(engine):
    bad, slow = submitted(), submitted()
    waiter = started(engine.wait_all, [slow, bad])
    bad.SetCode(StatusCode.ERR_NOT_FOUND)
    assert waiter.is_alive()
    slow.SetCode(StatusCode.SUCCESS)
    waiter.join(30)
    assert waiter.result is StatusCode.ERR_NOT_FOUND


def test_a_member_that_never_ends_gives_in_progress_at_the_bound(engine):
    done = submitted()
    done.SetCode(StatusCode.SUCCESS)
    begin = time.monotonic()
    assert engine.wait_all([done, submitted()], 80) is StatusCode.IN_PROGRESS
    assert time.monotonic() - begin >= 0.08


def test_a_failure_seen_earlier_beats_a_later_timeout(engine):
    bad = submitted()
    bad.SetCode(StatusCode.ERR_BAD_STATE)
    assert engine.wait_all([bad, submitted()], 30) is StatusCode.ERR_BAD_STATE
    assert engine.wait_all([submitted(), bad], 30) is StatusCode.ERR_BAD_STATE


def test_the_earliest_of_several_failures_is_the_code(engine):
    first, second = submitted(), submitted()
    second.SetCode(StatusCode.ERR_GPU_OP)
    first.SetCode(StatusCode.ERR_NOT_FOUND)
    assert engine.wait_all([first, second]) is StatusCode.ERR_NOT_FOUND


def test_a_never_submitted_member_hides_no_failure(engine):
    bad = submitted()
    bad.SetCode(StatusCode.ERR_GPU_OP)
    assert engine.wait_all([TransferStatus(), bad]) is StatusCode.ERR_GPU_OP
    assert engine.wait_all([TransferStatus()]) is StatusCode.INIT


def test_none_members_are_skipped_and_a_tuple_works(engine):
    good = submitted()
    good.SetCode(StatusCode.SUCCESS)
    assert engine.wait_all((None, good, None)) is StatusCode.SUCCESS
    assert engine.wait_all([None]) is StatusCode.SUCCESS
    assert engine.wait_all([good, good, good]) is StatusCode.SUCCESS


@pytest.mark.parametrize("bad", [None, iter([]), (x for x in []), 5, [1], ["x"], [StatusCode.SUCCESS]])
def test_what_is_no_list_of_statuses_is_a_type_error(engine, bad):
    with pytest.raises(TypeError):
        engine.wait_all(bad)
    with pytest.raises(TypeError):
        wait_all(bad)


@pytest.mark.parametrize("bad", [None, 1.5, "1", 2**63, 10**30])
def test_a_bound_that_is_none_is_a_type_error(engine, bad):
    with pytest.raises(TypeError):
        engine.wait_all([], bad)


def test_codes_and_messages_of_members_survive_a_failing_batch(engine):
    statuses = [submitted() for _ in range(3)]
    statuses[0].Update(StatusCode.ERR_RDMA_OP, "cable")
    statuses[1].Update(StatusCode.ERR_GPU_OP, "card")
    statuses[2].SetCode(StatusCode.SUCCESS)
    assert engine.wait_all(statuses) is StatusCode.ERR_RDMA_OP
    assert [(s.Code().name, s.Message()) for s in statuses] == [
        ("ERR_RDMA_OP", "cable"),
        ("ERR_GPU_OP", "card"),
        ("SUCCESS", ""),
    ]


# The package's own waits.


def test_an_outcome_names_who_failed_and_who_is_pending():
    bad, good, slow = submitted(), submitted(), submitted()
    bad.Update(StatusCode.ERR_RDMA_OP, "cable")
    good.SetCode(StatusCode.SUCCESS)
    for outcome in (scan([good, bad, slow]), wait_all([good, bad, slow], 0.01), wait_first_failure([good, bad, slow])):
        assert not outcome and outcome.code is StatusCode.ERR_RDMA_OP and len(outcome) == 3
        assert outcome.succeeded == 1 and not outcome.all_quiet
        (failed,), (pending,) = outcome.failed, outcome.pending
        assert (failed.index, failed.code, failed.message) == (1, StatusCode.ERR_RDMA_OP, "cable")
        assert failed.error.code is StatusCode.ERR_RDMA_OP and failed.id == bad.id
        assert (pending.index, pending.code, pending.message, pending.error) == (2, StatusCode.IN_PROGRESS, "", None)
        with pytest.raises(RuntimeError, match="cable"):
            outcome.check()
    with pytest.raises(TimeoutError):
        scan([slow]).check()
    assert scan([good]).check() is None


def test_wait_any_and_wait_some():
    statuses = [submitted() for _ in range(4)]
    assert wait_any(statuses, 0.01) is None and wait_any([], 0.01) is None and wait_any([TransferStatus()]) is None
    mover = started(statuses[2].SetCode, StatusCode.ERR_GPU_OP)
    assert wait_any(statuses, 60.0) == 2
    mover.join()
    mover = started(statuses[3].SetCode, StatusCode.SUCCESS)
    outcome = wait_some(statuses, 2, timeout=60.0)
    assert len(outcome.pending) == 2 and outcome.code is StatusCode.ERR_GPU_OP
    mover.join()
    assert len(wait_some(statuses, 1).pending) == 2


@pytest.mark.parametrize("bad", [-1, float("nan"), -0.001])
def test_a_bound_in_seconds_that_is_none_is_a_value_error(bad):
    with pytest.raises(ValueError):
        wait_all([], bad)
    with pytest.raises(ValueError):
        submitted().wait(bad)


def test_an_endless_bound_is_none():
    status = submitted()
    mover = started(status.SetCode, StatusCode.SUCCESS)
    assert wait_all([status], float("inf"))
    assert status.wait(1e300) is StatusCode.SUCCESS
    mover.join()


def test_many_threads_wait_for_overlapping_batches(engine):
    statuses = [submitted() for _ in range(200)]
    waiters = [started(engine.wait_all, statuses[start:]) for start in range(0, 200, 10)]
    waiters += [started(wait_all, statuses[:end]) for end in range(10, 200, 10)]
    barrier = threading.Barrier(4)

    def move(part):
        barrier.wait()
        for status in statuses[part::4]:
            status.SetCode(StatusCode.SUCCESS)

    movers = [started(move, part) for part in range(4)]
    for thread in movers + waiters:
        thread.join(60)
        assert not thread.is_alive() and not isinstance(thread.result, BaseException)
    assert all(waiter.result is StatusCode.SUCCESS or bool(waiter.result) for waiter in waiters)


def test_dropping_the_engine_releases_its_waiters(producer):
    import signal

    peer = producer(1 << 20)
    engine = make_engine("dropped")
    memory = engine.engine.allocate(1 << 20)
    engine.register_remote_engine(peer.engine)
    session = engine.create_session(memory.desc, peer.memory)
    peer.signal(signal.SIGSTOP)
    status = session.read(0, 0, 1 << 20, 1)
    waiters = [started(status.WaitFor), started(wait_all, [status])]
    assert status.InProgress()
    del engine, session, memory
    for waiter in waiters:
        waiter.join(30)
        assert not waiter.is_alive()
    assert status.Failed() and status.Message()
