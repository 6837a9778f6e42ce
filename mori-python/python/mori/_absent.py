"""Stand-ins for the parts of a larger package that are not here."""

from typing import Any, NoReturn, Optional

#: Names that programs look up in ``mori`` while they are imported.
NAMES = frozenset(
    {
        "application",
        "ccl",
        "collective",
        "ir",
        "jit",
        "kernel",
        "kernels",
        "ops",
        "shmem",
        "tensor_utils",
        "utils",
        "umbp",
    }
)


class Absent:
    """Something that this package does not have. Looking it up, and names in it, is fine; using it says so."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def __getattr__(self, name: str) -> "Absent":
        # Tools ask for special names to learn what something is; it is none of that.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"{self._name} has no attribute {name!r}")
        return Absent(f"{self._name}.{name}")

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"{self._name} is not part of this package (mori-rs), which provides only mori.io and its relatives"
        )

    __call__ = _refuse
    __iter__ = _refuse
    __len__ = _refuse
    __getitem__ = _refuse
    __setattr__ = _refuse
    __enter__ = _refuse
    __exit__ = _refuse
    __mro_entries__ = _refuse
    __instancecheck__ = _refuse
    __subclasscheck__ = _refuse

    def __or__(self, other: Any) -> Any:
        # An annotation `mori.ops.X | None` is evaluated, not used.
        return Optional[Any]

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<{self._name}: not part of this package>"
