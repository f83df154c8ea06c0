"""Errors that a user can act on: one clear sentence, and a hint of what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SlbError(Exception):
    """Something went wrong that we can explain. `exit_code` is what the command line returns."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} Hint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[type[SlbError], tuple[str, str]]:
        return (type(self), (self.message, self.hint))


class InputError(SlbError):
    """Bad input: nothing was started and nothing was lost."""

    exit_code = 2


class ConfigError(InputError, ValueError):
    """A configuration breaks a rule."""


class DataError(InputError):
    """A data set is missing, incomplete or damaged."""


class ConversionError(InputError):
    """A network cannot be quantised as asked."""


class CheckpointError(InputError):
    """A checkpoint is missing, damaged, or belongs to another configuration."""


class TrainingFailed(SlbError):
    """Training ended because the loss stopped being a number."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the known name nearest to `name`, or lists those known."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    if not names:
        return "none is known."
    return f"known: {', '.join(names[:20])}" + (", ..." if len(names) > 20 else ".")
