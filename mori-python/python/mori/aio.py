"""Waiting in asyncio: for one transfer, for many, for messages.

A wait is a file descriptor in the event loop; nothing polls, and no thread is blocked. A transfer is awaited by itself, too::

    code = await session.read(0, 0, 4096)

Cancelling the task that waits cancels no transfer; ``transfer.cancel()`` does.
"""

import asyncio
from typing import List, Optional, Sequence

from . import engine as _engine
from ._enums import StatusCode
from ._mori import StatusFd, TransferStatus

__all__ = ["completion", "receive", "wait_all", "wait_any", "wait_first_failure", "wait_some"]


async def _readable(ready: StatusFd, timeout: Optional[float]) -> None:
    """Waits until the descriptor is readable or the time is over."""
    loop = asyncio.get_running_loop()
    fired: "asyncio.Future[None]" = loop.create_future()
    number = ready.fileno()

    def fire() -> None:
        loop.remove_reader(number)
        if not fired.done():
            fired.set_result(None)

    loop.add_reader(number, fire)
    try:
        if timeout is None:
            await fired
        else:
            await asyncio.wait([fired], timeout=timeout)
    finally:
        loop.remove_reader(number)


async def completion(status: TransferStatus) -> StatusCode:
    """Waits until one transfer is terminal; one that was never submitted gives INIT at once."""
    if not status.InProgress():
        return status.Code()
    with StatusFd([status]) as ready:
        await _readable(ready, None)
    return status.Code()


async def _outcome(
    statuses: Sequence[TransferStatus],
    timeout: Optional[float],
    first_failure: bool = False,
    count: Optional[int] = None,
) -> "_engine.Outcome":
    members: List[TransferStatus] = list(statuses)
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout must be seconds from 0 on or None, not {timeout}")
    if timeout == 0:
        return _engine.wait_all(members, 0)
    with StatusFd(members, first_failure=first_failure, count=count) as ready:
        await _readable(ready, timeout)
    outcome = _engine.scan(members)
    if outcome.all_quiet or timeout is None:
        return outcome
    # At the deadline every unfinished member is asked once more; this sleeps nowhere.
    return _engine.wait_all(members, 0)


async def wait_all(statuses: Sequence[TransferStatus], timeout: Optional[float] = None) -> "_engine.Outcome":
    """Waits until every transfer is terminal, or ``timeout`` seconds have passed.

    >>> import asyncio
    >>> from mori.cpp import TransferStatus
    >>> bool(asyncio.run(wait_all([])))
    True
    """
    return await _outcome(statuses, timeout)


async def wait_first_failure(
    statuses: Sequence[TransferStatus], timeout: Optional[float] = None
) -> "_engine.Outcome":
    """Waits until every transfer is terminal or the first one has failed."""
    return await _outcome(statuses, timeout, first_failure=True)


async def wait_some(
    statuses: Sequence[TransferStatus], count: int, timeout: Optional[float] = None
) -> "_engine.Outcome":
    """Waits until ``count`` transfers are terminal, or all of them if there are fewer."""
    return await _outcome(statuses, timeout, count=count)


async def wait_any(statuses: Sequence[TransferStatus], timeout: Optional[float] = None) -> Optional[int]:
    """Waits until one transfer is terminal and gives its index; None if the time runs out first."""
    members = list(statuses)
    await _outcome(members, timeout, count=1)
    return _engine.wait_any(members, 0)


async def receive(
    engine: "_engine.Engine", timeout: Optional[float] = None
) -> "Optional[_engine.Notification]":
    """The oldest message that a peer's transfer left at ``engine``; None if the time runs out first."""
    loop = asyncio.get_running_loop()
    end = None if timeout is None else loop.time() + timeout
    while True:
        notification = engine.poll_notification()
        if notification is not None:
            return notification
        arrived = asyncio.Event()

        def tell(event: asyncio.Event = arrived) -> None:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                pass  # The loop is closed, and nobody waits any more.

        if not engine.call_on_notification(tell):
            # Something is there already, or the engine is shut down, which this call says.
            notification = engine.receive(0)
            if notification is not None:
                return notification
            continue
        left = None if end is None else end - loop.time()
        try:
            await asyncio.wait_for(arrived.wait(), left)
        except asyncio.TimeoutError:
            return engine.poll_notification()
