"""Moves memory between processes, machines and GPUs for LLM serving.

``mori.io`` is the interface that existing programs use, ``mori.cpp`` everything under it, ``mori.engine`` this package's own,
and ``mori.aio`` the same for asyncio.

>>> import mori
>>> engine = mori.engine.Engine("prefill-0")
>>> memory = engine.register(bytearray(4096))
>>> memory.size
4096
"""

import os as _os
from typing import Any

from . import _mori
from ._errors import InvalidArgumentError, MoriError
from . import aio, cpp, engine, io

__version__: str = _mori.__version__

__all__ = ["InvalidArgumentError", "MoriError", "__version__", "aio", "cpp", "engine", "io"]

_os.register_at_fork(after_in_child=_mori.after_fork_in_child)


def __getattr__(name: str) -> Any:
    from ._absent import NAMES, Absent

    if name in NAMES:
        return Absent(f"mori.{name}")
    raise AttributeError(f"module 'mori' has no attribute {name!r}")
