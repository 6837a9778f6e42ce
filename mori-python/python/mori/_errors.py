"""The exceptions of the package."""

from typing import Optional, Tuple

from ._enums import StatusCode

__all__ = ["InvalidArgumentError", "MoriError"]


class MoriError(RuntimeError):
    """Something was refused, or a transfer failed.

    ``message`` says what happened and what to do, ``kind`` is its kind in a few words, ``code`` the same as a
    :class:`StatusCode`, and ``cause`` the number that a lower layer gave, with the numbering it belongs to, as in
    ``("errno", 98)``, or None.
    """

    def __init__(
        self,
        message: str = "",
        kind: str = "",
        code: Optional[StatusCode] = None,
        cause: Optional[Tuple[str, int]] = None,
    ) -> None:
        super().__init__(message, kind, code, cause)
        self.message = message
        self.kind = kind
        self.code = code
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.kind else self.message


class InvalidArgumentError(MoriError, ValueError):
    """An argument is wrong; correct the call."""
