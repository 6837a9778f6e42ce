"""Everything that the native half provides, under the names that existing programs know.

The classes are those of :mod:`mori.io`. Besides the names in small letters they have the ones below, which take the status as
an argument:

>>> from mori.cpp import StatusCode, TransferStatus
>>> status = TransferStatus()
>>> status.Code() is StatusCode.INIT
True
>>> status.SetCode(StatusCode.SUCCESS)
True
>>> status.Succeeded()
True
"""

from ._enums import BackendType, MemoryLocationType, PeerFailureReason, PollCqMode, StatusCode
from ._mori import (
    EngineDesc,
    FabricBackendConfig,
    IOEngine,
    IOEngineConfig,
    IOEngineSession,
    MemoryDesc,
    PeerFailureEvent,
    RdmaBackendConfig,
    TcpBackendConfig,
    TransferStatus,
    XgmiBackendConfig,
    set_log_level,
)

__all__ = [
    "BackendType",
    "EngineDesc",
    "FabricBackendConfig",
    "IOEngine",
    "IOEngineConfig",
    "IOEngineSession",
    "MemoryDesc",
    "MemoryLocationType",
    "PeerFailureEvent",
    "PeerFailureReason",
    "PollCqMode",
    "RdmaBackendConfig",
    "StatusCode",
    "TcpBackendConfig",
    "TransferStatus",
    "XgmiBackendConfig",
    "set_log_level",
]
