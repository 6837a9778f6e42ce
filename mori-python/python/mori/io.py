"""The interface that existing programs use: engines, descriptors, sessions, statuses.

>>> from mori.io import BackendType, IOEngine, IOEngineConfig, MemoryLocationType, TcpBackendConfig
>>> engine = IOEngine("prefill-0", IOEngineConfig(host="127.0.0.1", port=0))
>>> engine.create_backend(BackendType.TCP, TcpBackendConfig())
>>> engine.get_engine_desc().port > 0
True
"""

from ._buffer import TORCH_DEVICE_TYPE_MAP
from .cpp import (
    BackendType,
    EngineDesc,
    FabricBackendConfig,
    IOEngine,
    IOEngineConfig,
    IOEngineSession,
    MemoryDesc,
    MemoryLocationType,
    PeerFailureEvent,
    PeerFailureReason,
    PollCqMode,
    RdmaBackendConfig,
    StatusCode,
    TcpBackendConfig,
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
    "TORCH_DEVICE_TYPE_MAP",
    "TcpBackendConfig",
    "XgmiBackendConfig",
    "set_log_level",
]
