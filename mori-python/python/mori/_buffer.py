"""Where the bytes of an object are: the address, the length, the kind of memory, and who keeps them in place."""

import ctypes
from typing import Any, Tuple

from ._enums import MemoryLocationType

#: What a tensor's device means for its memory.
TORCH_DEVICE_TYPE_MAP = {"cpu": MemoryLocationType.CPU, "cuda": MemoryLocationType.GPU}


def tensor(value: Any) -> Tuple[int, int, int, MemoryLocationType]:
    """Address, length, device number and location of a tensor's memory."""
    if not value.is_contiguous():
        raise RuntimeError("the tensor must be contiguous; register tensor.contiguous() instead")
    location = TORCH_DEVICE_TYPE_MAP[value.device.type]
    device_id = value.device.index
    if device_id is None:
        device_id = -1 if location is MemoryLocationType.CPU else 0
    return value.data_ptr(), value.nelement() * value.element_size(), device_id, location


def describe(value: Any) -> Tuple[int, int, int, MemoryLocationType, Any]:
    """The same of any object, and the object that keeps the bytes in place."""
    if hasattr(value, "data_ptr") and hasattr(value, "is_contiguous"):
        return (*tensor(value), value)
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(
            f"{type(value).__name__} gives no access to its memory; pass a bytearray, a numpy array or a tensor"
        ) from None
    if view.readonly:
        raise ValueError("the buffer is read-only, and registered memory is written to; pass a writable one")
    if not view.c_contiguous:
        raise ValueError("the buffer must be contiguous; pass a copy that is")
    if view.nbytes == 0:
        raise ValueError("the buffer is empty")
    # While the ctypes array lives, its owner cannot move or free the bytes: a bytearray refuses to grow.
    pinned = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(pinned), view.nbytes, -1, MemoryLocationType.CPU, pinned
