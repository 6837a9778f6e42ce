"""This package's own API: exceptions for what is wrong, typed outcomes, memory by the objects that own it.

>>> from mori.engine import Engine, wait_all
>>> with Engine("decode-0") as engine:
...     source, target = bytearray(b"block" * 10), bytearray(50)
...     memory, remote = engine.register(target), engine.register(source)
...     transfer = engine.session(memory, remote.desc).read(0, 0, 50, tag=7)
...     outcome = wait_all([transfer], timeout=5.0)
>>> bool(outcome), target == source
(True, True)
"""

from ._enums import BackendType, StatusCode
from ._errors import InvalidArgumentError, MoriError
from ._mori import (
    Engine,
    EngineDesc,
    Member,
    Memory,
    MemoryDesc,
    Notification,
    Outcome,
    RouteReport,
    Session,
    StatusFd,
    TcpBackendConfig,
    scan,
    wait_all,
    wait_any,
    wait_first_failure,
    wait_some,
)
from ._mori import TransferStatus as Transfer

__all__ = [
    "BackendType",
    "Engine",
    "EngineDesc",
    "InvalidArgumentError",
    "Member",
    "Memory",
    "MemoryDesc",
    "MoriError",
    "Notification",
    "Outcome",
    "RouteReport",
    "Session",
    "StatusCode",
    "StatusFd",
    "TcpBackendConfig",
    "Transfer",
    "scan",
    "wait_all",
    "wait_any",
    "wait_first_failure",
    "wait_some",
]
