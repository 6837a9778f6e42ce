"""The enums of the package. Members are singletons, compare with ``is``, and are never equal to integers."""

import enum
from types import MappingProxyType
from typing import Mapping

__all__ = ["BackendType", "MemoryLocationType", "PeerFailureReason", "PollCqMode", "StatusCode"]


class _Enum(enum.Enum):
    """An enum whose members turn into integers when asked to."""

    _value_: int

    def __int__(self) -> int:
        return self.value

    def __index__(self) -> int:
        return self.value

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value}>"


class StatusCode(_Enum):
    """Where a transfer stands. Greater than 10 means failed."""

    SUCCESS = 0
    INIT = 1
    IN_PROGRESS = 2
    ERR_INVALID_ARGS = 11
    ERR_NOT_FOUND = 12
    ERR_RDMA_OP = 13
    ERR_BAD_STATE = 14
    ERR_GPU_OP = 15
    ERR_CANCELLED = 32
    ERR_PEER_LOST = 33
    ERR_ACCESS_DENIED = 34
    ERR_RESOURCE_EXHAUSTED = 35
    ERR_UNSUPPORTED = 36
    ERR_TIMED_OUT = 37
    ERR_UNAVAILABLE = 38
    ERR_BUSY = 39
    ERR_MALFORMED = 40
    ERR_ALREADY_EXISTS = 41


class BackendType(_Enum):
    """The kinds of transport."""

    Unknown = 0
    XGMI = 1
    RDMA = 2
    TCP = 3
    FABRIC = 4


class MemoryLocationType(_Enum):
    """Where memory is."""

    Unknown = 0
    CPU = 1
    GPU = 2


class PollCqMode(_Enum):
    """How an RDMA transport learns of completions."""

    POLLING = 0
    EVENT = 1


class PeerFailureReason(_Enum):
    """Why a peer was lost."""

    UNKNOWN = 0
    PEER_UNREACHABLE = 1
    LOCAL_QP_ERROR = 2
    LOCAL_PORT_DOWN = 3
    LOCAL_DEVICE_FATAL = 4
    LOCAL_CQ_ERROR = 5
