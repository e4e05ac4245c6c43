"""Which chunks may go: a topic's policy, and the plan that follows from it. Pure.

Two different things are bounded, and must not be mixed up:

* `keep_*` bounds what is *finished* and stays only to be read again. A chunk goes once every channel has finished all of it (offline
  ones too; without a channel, the waiting cursor counts as one) and any of these bounds is passed.
* `max_*` bounds what is *unfinished*. Without it nothing unfinished ever goes, whatever its age and size. With it the topic either refuses
  what is new (`reject`) or loses what is oldest (`drop-oldest`): one of the two is asked for by name, never chosen for somebody.

A chunk is the unit, and they go oldest first: offsets stay dense. None goes before the committed checkpoint has passed it, for recovery
reads producers' sequences and transactions from there on. The ongoing chunk never goes; where it would, it is sealed first (`roll`).

A bound on bytes never takes more than a quarter below itself: a chunk that is large beside it (made before the bound was, or by a group)
may hold the newest messages too, and waits until what follows it comes to three quarters of the bound. So the bound may be passed by one
such chunk for as long. Rejected: cutting it (a chunk is the unit), and taking it (a bound of 32 MiB then left nothing of 40).

Rejected: an age by the time of the *first* message (a chunk filled over a week would take fresh messages with it), and making chunks
small whatever the policy says (each costs four syncs): only a bound that is smaller than eight chunks makes them smaller.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..transport.settings import MAX_BYTES_MIN, MIB, NONE, Retention, check

PARTS: Final = 8  # a bound lies in at least so many chunks
PARTS_LEFT: Final = 6  # of those, dropping the oldest leaves at least so many
CHUNK_BYTES_MIN: Final = 1 * MIB  # what one of them has at least
ROLL_BYTES: Final = 1 * MIB  # the ongoing chunk, finished, is sealed before its time when it has so much,
ROLL_IDLE_S: Final = 2.0  # or was not written to for so long
RIPE_S_MIN: Final = 60.0  # not more often than this for the age of what is finished
CHUNKS_A_ROUND_MAX: Final = 64  # 16 GiB of the default size: the rest goes with the next round
_NS: Final = 1_000_000_000

assert MAX_BYTES_MIN == PARTS * CHUNK_BYTES_MIN


def resolve(*layers: Mapping[str, object]) -> Retention:
    """Settings over settings, the later ones win: the broker's, the topic's own. `UsageError` for what makes no sense."""
    found: dict[str, Any] = {name: value for layer in layers for name, value in layer.items()}
    unknown = found.keys() - Retention.__dataclass_fields__.keys()
    check(not unknown, f"there is no setting {', '.join(sorted(map(str, unknown)))}; known: {', '.join(Retention.__dataclass_fields__)}")
    return Retention(**found)


def changed(own: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """A topic's own settings after these changes; None takes one back, so that the broker's holds again."""
    return {name: value for name, value in {**own, **changes}.items() if value is not None}


def chunk_bytes(retention: Retention, usual: int) -> int:
    """At which size to roll, so that a bound on what is unfinished means something."""
    if retention.max_bytes == NONE:
        return usual
    return min(usual, retention.max_bytes // PARTS)


class LogView(NamedTuple):
    """The log as retention sees it. `bases`: first offset of each chunk, ascending, the last is the ongoing one; `sizes`: their bytes."""

    bases: Sequence[int]
    sizes: Sequence[int]
    end: int
    floor: int
    """Nothing below it is unfinished, as committed."""
    applied: int
    """The committed checkpoint."""
    unfinished_bytes: int
    """From the floor to the end."""
    first_time_ns: int
    """Of the ongoing chunk's first message, where it has any."""
    last_time_ns: int
    """Of the log's last message."""
    now_ns: int


class RetentionPlan(NamedTuple):
    """The oldest `chunks` go: those below offset `start`. `roll`: seal the ongoing one."""

    start: int
    chunks: int
    roll: bool


def finished_chunks(bases: Sequence[int], floor: int) -> int:
    """How many sealed chunks lie wholly below `floor`."""
    return max(0, bisect_right(bases, floor) - 1)


def plan(retention: Retention, view: LogView, last_time_ns: Callable[[int], int]) -> RetentionPlan:
    """What to do now. `last_time_ns` tells the time of the last message of the n-th chunk; asked only where an age is bounded."""
    finished = finished_chunks(view.bases, view.floor)
    passed = finished_chunks(view.bases, view.applied)  # by the checkpoint: no chunk goes before
    ages = _Ages(view, last_time_ns)
    kept = _beyond_keep(retention, view, finished, min(finished, passed), ages)
    dropped, drop_ongoing = _beyond_max(retention, view, finished, passed, ages)
    chunks = min(max(kept, dropped), CHUNKS_A_ROUND_MAX)
    finish_ongoing = kept == len(view.bases) - 1 and _finished_too_much(retention, view)
    roll = view.end > view.bases[-1] and (drop_ongoing or finish_ongoing or _ripe(retention, view))
    return RetentionPlan(view.bases[chunks], chunks, roll)


class _Ages:
    def __init__(self, view: LogView, last_time_ns: Callable[[int], int]) -> None:
        self._view = view
        self._last_time_ns = last_time_ns

    def of(self, chunk: int) -> float:
        return _age_s(self._view, self._last_time_ns(chunk))


def _age_s(view: LogView, time_ns: int) -> float:
    return (view.now_ns - time_ns) / _NS


def _beyond_keep(retention: Retention, view: LogView, finished: int, may: int, ages: _Ages) -> int:
    """How many of the finished chunks are more than is to be kept."""
    left_bytes = sum(view.sizes[:finished])
    for chunk in range(may):
        too_many = retention.keep_bytes != NONE and left_bytes > retention.keep_bytes
        too_many = too_many or (retention.keep_chunks != NONE and finished - chunk > retention.keep_chunks)
        if not too_many and (retention.keep_s == NONE or ages.of(chunk) <= retention.keep_s):
            return chunk
        left_bytes -= view.sizes[chunk]
    return may


def _beyond_max(retention: Retention, view: LogView, finished: int, may: int, ages: _Ages) -> tuple[int, bool]:
    """(how many chunks to remove because unfinished ones among them are too much, finished ones before them included; whether the ongoing
    chunk too is too much)."""
    if not retention.drops or (retention.max_bytes == NONE and retention.max_s == NONE):
        return 0, False
    left = view.unfinished_bytes
    following = sum(view.sizes[finished + 1 :])
    chunk = finished
    while chunk < may:
        too_old = left > 0 and retention.max_s != NONE and ages.of(chunk) > retention.max_s
        if not too_old and (not _too_much(retention, left, 0.0) or following < retention.max_bytes * PARTS_LEFT // PARTS):
            break
        chunk += 1
        left = min(left, following)  # the first one may be finished in part
        following -= view.sizes[chunk]
    drop_ongoing = chunk == len(view.bases) - 1 and _too_much(retention, left, _age_s(view, view.last_time_ns))
    return (chunk if chunk > finished else 0), drop_ongoing


def _too_much(retention: Retention, unfinished_bytes: int, age_s: float) -> bool:
    if not unfinished_bytes:
        return False
    too_large = retention.max_bytes != NONE and unfinished_bytes > retention.max_bytes
    return too_large or (retention.max_s != NONE and age_s > retention.max_s)


def _finished_too_much(retention: Retention, view: LogView) -> bool:
    """The ongoing chunk, all finished, is by itself more than is to be kept. Not at each message of a slow topic: a roll costs syncs."""
    size, age_s = view.sizes[-1], _age_s(view, view.last_time_ns)
    if view.floor < view.end or (size < ROLL_BYTES and age_s < ROLL_IDLE_S):
        return False
    too_many = retention.keep_bytes != NONE and size > retention.keep_bytes
    too_many = too_many or retention.keep_chunks == 0
    return too_many or (retention.keep_s != NONE and age_s > retention.keep_s)


def _ripe(retention: Retention, view: LogView) -> bool:
    """Where an age is bounded, a chunk that fills slowly is sealed after an eighth of it: else its newest message kept the oldest."""
    age_s = _age_s(view, view.first_time_ns)
    ripe = retention.keep_s != NONE and age_s > max(retention.keep_s / PARTS, RIPE_S_MIN)
    return ripe or (retention.max_s != NONE and age_s > max(retention.max_s / PARTS, ROLL_IDLE_S))
