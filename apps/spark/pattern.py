"""Pattern: the regular expression of option subscribePattern, and which topics it matches.

It is an expression of Python's `re`, and it must match the whole name of a topic. The Kafka
connector's are Java's. Both agree on what is used in names of topics.

`re` backtracks, so some expressions take exponential time, even for names of 64 characters:
`(a+)+b` does. Others choose the names of topics, so a query could hang long after it was started.
Therefore matching has a limit of CPU time. A check of the expression itself would refuse harmless
ones and miss slow ones. An engine without backtracking would be a compiled package more on the
driver, with another syntax.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
from collections.abc import Iterable, Iterator
from typing import Final

from ...transport.errors import E_BAD_ARGUMENT, UsageError
from ...transport.names import is_ephemeral

__all__ = ["MATCH_S", "PATTERN_CHARS_MAX", "check_pattern", "matching"]

PATTERN_CHARS_MAX: Final = 1_000
MATCH_S: Final = 2.0  # seconds of CPU time for all names; 10,000 names usually take 0.01 s


class _TooLong(Exception):
    """Raised by the signal's handler when the CPU time is used up."""


def _wrong(text: str) -> UsageError:
    return UsageError(E_BAD_ARGUMENT, text)


def check_pattern(pattern: str) -> str:
    """Return the expression if it can be used.

    Raises `UsageError` (E_BAD_ARGUMENT), which says where the expression is wrong.
    """
    if not 0 < len(pattern) <= PATTERN_CHARS_MAX:
        raise _wrong(
            f"option 'subscribePattern' has {len(pattern)} characters; it takes a regular "
            f"expression of 1 to {PATTERN_CHARS_MAX} characters, such as 'clicks-.*'"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        where = f" at character {error.pos + 1}" if error.pos is not None else ""
        raise _wrong(
            f"option 'subscribePattern' is {pattern[:80]!r}, which is not a regular expression of "
            f"Python: {error.msg}{where}"
        ) from None
    except (OverflowError, RecursionError) as error:
        raise _wrong(
            f"option 'subscribePattern' is {pattern[:80]!r}, which Python cannot compile: {error}"
        ) from None
    return pattern


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names of topics that the expression matches as a whole, in their order.

    A topic in memory (`#ephemeral`) never matches: it ends with its last channel, and then its
    messages are lost on purpose. Raises `UsageError` (E_BAD_ARGUMENT) if matching takes more than
    MATCH_S of CPU time.
    """
    matches = re.compile(pattern).fullmatch
    try:
        with _limited():
            return [name for name in names if not is_ephemeral(name) and matches(name)]
    except _TooLong:
        raise _wrong(
            f"option 'subscribePattern' is {pattern[:80]!r}, and comparing it with the names of "
            f"the topics takes more than {MATCH_S:g} s of CPU time: avoid repetitions within "
            "repetitions, such as (a+)+"
        ) from None


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Interrupt the block after MATCH_S of CPU time.

    Only a main thread can receive signals, and Spark plans in the main threads of its Python
    processes. CPU time is used because a busy machine must not make an expression fail.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, MATCH_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before if before is not None else signal.SIG_DFL)
