"""What a person says of a message that is given back: when it may come again, and why. Pure."""

from __future__ import annotations

from .errors import E_BAD_ARGUMENT, UsageError
from .protocol import BACKOFF, ERROR_TEXT_MAX, REQUEUE_DELAY_MS_MAX

Reason = str | BaseException


def when_again(delay: float, backoff: bool) -> int:
    """Seconds to milliseconds, or BACKOFF; a requeue may wait for an hour at most."""
    if backoff:
        if delay:
            raise UsageError(E_BAD_ARGUMENT, "the channel's backoff and a delay of one's own exclude each other: give one of them")
        return BACKOFF
    if not 0 <= delay * 1000 <= REQUEUE_DELAY_MS_MAX:
        raise UsageError(E_BAD_ARGUMENT, f"a delay of {delay} s is outside of 0 to {REQUEUE_DELAY_MS_MAX // 1000}")
    return int(delay * 1000)


def as_error(error: Reason) -> str:
    """A text that any word can carry: an exception as its repr, cut to ERROR_TEXT_MAX characters.

    It never fails for what an exception says about itself: the message must be given back, whatever its handler raised.
    """
    if isinstance(error, BaseException):
        try:
            error = repr(error)
        except Exception:
            error = type(error).__name__
    if not isinstance(error, str):
        raise UsageError(E_BAD_ARGUMENT, f"an error is a text or an exception, not {type(error).__name__}")
    if len(error) > ERROR_TEXT_MAX:
        error = error[: ERROR_TEXT_MAX - 3] + "..."
    return error.encode(errors="backslashreplace").decode()[:ERROR_TEXT_MAX]  # lone surrogates, as of file names, cannot be sent
