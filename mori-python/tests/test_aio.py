"""Waiting in asyncio: through a file descriptor, so that nothing polls and no thread is blocked."""

import asyncio
import select
import threading

import pytest

from conftest import make_engine, register, submitted
from mori import aio
from mori.cpp import TransferStatus
from mori.engine import Engine, StatusFd
from mori.io import StatusCode


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def test_a_transfer_is_awaited(pair):
    async def main():
        status = pair.session.read(0, 0, 1 << 20, 1)
        assert await status is StatusCode.SUCCESS
        assert await status is StatusCode.SUCCESS
        assert await TransferStatus() is StatusCode.INIT
        assert await pair.session.read(0, 1, 1 << 20, 1) is StatusCode.ERR_INVALID_ARGS

    run(main())
    assert pair.local_bytes == pair.remote_bytes


def test_many_tasks_await_while_the_loop_goes_on():
    async def main():
        statuses = [submitted() for _ in range(100)]
        tasks = [asyncio.ensure_future(aio.completion(status)) for status in statuses]
        ticks = 0
        for status in statuses:
            await asyncio.sleep(0)
            ticks += 1
            threading.Thread(target=status.SetCode, args=(StatusCode.SUCCESS,)).start()
        assert set(await asyncio.gather(*tasks)) == {StatusCode.SUCCESS} and ticks == 100
        assert threading.active_count() < 100

    run(main())


def test_batches_are_awaited_with_an_outcome():
    async def main():
        bad, good, slow = submitted(), submitted(), submitted()
        bad.Update(StatusCode.ERR_RDMA_OP, "cable")
        good.SetCode(StatusCode.SUCCESS)
        outcome = await aio.wait_all([good, bad])
        assert outcome.code is StatusCode.ERR_RDMA_OP and outcome.failed[0].index == 1 and outcome.all_quiet
        outcome = await aio.wait_all([good, slow], timeout=0.01)
        assert outcome.code is StatusCode.IN_PROGRESS and outcome.pending[0].index == 1
        outcome = await aio.wait_first_failure([slow, bad])
        assert outcome.code is StatusCode.ERR_RDMA_OP and not outcome.all_quiet
        assert (await aio.wait_some([slow, good, bad], 2)).succeeded == 1
        assert await aio.wait_any([slow, good]) == 1
        assert await aio.wait_any([slow], timeout=0.01) is None and await aio.wait_any([slow], timeout=0) is None
        assert await aio.wait_all([]) and not await aio.wait_all([slow], timeout=0)
        with pytest.raises(ValueError):
            await aio.wait_all([slow], timeout=-1)
        slow.SetCode(StatusCode.SUCCESS)

    run(main())


def test_cancelling_the_task_cancels_no_transfer():
    async def main():
        status = submitted()
        task = asyncio.ensure_future(aio.completion(status))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert status.InProgress() and status.SetCode(StatusCode.SUCCESS)
        assert await status is StatusCode.SUCCESS

    run(main())


def test_a_descriptor_becomes_readable_and_stays_so():
    statuses = [submitted() for _ in range(3)]
    with StatusFd(statuses) as ready:
        assert select.select([ready], [], [], 0)[0] == []
        for status in statuses[:2]:
            status.SetCode(StatusCode.SUCCESS)
        assert select.select([ready], [], [], 0)[0] == []
        statuses[2].SetCode(StatusCode.ERR_GPU_OP)
        for _ in range(2):
            assert select.select([ready], [], [], 60)[0] == [ready]
    with pytest.raises(ValueError):
        ready.fileno()
    ready.close()
    with StatusFd([submitted(), statuses[2]], first_failure=True) as ready:
        assert select.select([ready], [], [], 60)[0]
    with StatusFd([submitted(), statuses[0]], count=1) as ready:
        assert select.select([ready], [], [], 60)[0]
    with pytest.raises(TypeError):
        StatusFd(None)


def test_messages_are_awaited(pair):
    async def main():
        with Engine("sender") as sender:
            sender.add_peer(pair.there.get_engine_desc())
            memory = sender.allocate(64)
            target = pair.there.engine
            assert await aio.receive(target, timeout=0.01) is None
            waiting = asyncio.ensure_future(aio.receive(target, timeout=60))
            await asyncio.sleep(0)
            status = sender.write(memory, pair.remote, 0, 0, 64, tag=5, notify=b"ready")
            told = await waiting
            assert (told.peer, told.tag, told.message, told.error) == ("sender", 5, b"ready", None)
            assert await status is StatusCode.SUCCESS
            waiting = asyncio.ensure_future(aio.receive(sender))
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="shut down"):
            await waiting

    run(main())


def test_transfers_of_several_engines_are_awaited_together():
    async def main():
        target = make_engine("target")
        theirs = bytearray(b"x" * 4096)
        remote = register(target, theirs)
        engines = [Engine(f"engine-{number}") for number in range(4)]
        transfers = []
        for engine in engines:
            engine.add_peer(target.get_engine_desc())
            memory = engine.allocate(4096)
            transfers += [engine.read(memory, remote, i * 64, i * 64, 64, tag=i) for i in range(64)]
        outcome = await aio.wait_all(transfers, timeout=60)
        assert outcome and len(outcome) == 256, outcome.failed
        for engine in engines:
            engine.shutdown()

    run(main())
