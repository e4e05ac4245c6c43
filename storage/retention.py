"""Retention: a topic's policy, and the plan that says which chunks may be removed. Pure.

Two different bounds must not be mixed up:

* `keep_*` bounds what is *finished* and stays only to be read again. A chunk is removed when every
  channel has finished all of it and one of these bounds is passed. Channels without consumers count
  too. In a topic without a channel, the offset from which messages wait for a first channel counts
  like a channel.
* `max_*` bounds what is *unfinished*. Without it nothing unfinished is ever removed, whatever its
  age and size. With it the topic either refuses new messages (`reject`) or loses the oldest ones
  (`drop-oldest`). The user must name one of the two: there is no default.

Only whole chunks are removed, oldest first, so offsets stay dense. No chunk is removed before the
committed checkpoint has passed it, because recovery reads the sequences of producers and the
transactions from there on. The ongoing chunk is never removed: it is sealed first (`roll`).

Removal for a bound on bytes always leaves at least three quarters of the bound. A chunk can be
large compared with the bound, if it was made before the bound was set, or by a group. Such a chunk
may hold the newest messages too. It stays until the chunks that follow it reach three quarters of
the bound. Until then the topic may exceed the bound by one such chunk. Rejected: cutting such a
chunk, because only whole chunks are removed. Rejected too: removing it, because then a bound of 32
MiB left nothing of 40 MiB.

Rejected: an age counted from the *first* message of a chunk, because a chunk that was filled over a
week would take new messages with it. Rejected too: small chunks for every policy, because each
chunk costs four syncs. Only a bound smaller than eight chunks makes chunks smaller.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..transport.settings import MAX_BYTES_MIN, MIB, NONE, Retention, check

PARTS: Final = 8  # a bound covers at least this many chunks
PARTS_LEFT: Final = 6  # of those, dropping the oldest leaves at least this many
CHUNK_BYTES_MIN: Final = 1 * MIB  # the smallest size of such a chunk
ROLL_BYTES: Final = 1 * MIB  # the finished ongoing chunk is sealed early when it has this size,
ROLL_IDLE_S: Final = 2.0  # or was not written to for this long
RIPE_S_MIN: Final = 60.0  # shortest time between seals caused by a bound on finished age
CHUNKS_A_ROUND_MAX: Final = 64  # 16 GiB at the default size: the next round removes the rest
_NS: Final = 1_000_000_000

assert MAX_BYTES_MIN == PARTS * CHUNK_BYTES_MIN


def resolve(*layers: Mapping[str, object]) -> Retention:
    """Merge settings into a `Retention`. Later layers win: first the broker's, then the topic's.

    Raises `UsageError` if a setting is unknown or its value makes no sense.
    """
    found: dict[str, Any] = {name: value for layer in layers for name, value in layer.items()}
    unknown = found.keys() - Retention.__dataclass_fields__.keys()
    check(
        not unknown,
        (
            f"unknown setting {', '.join(sorted(map(str, unknown)))}; known settings: "
            f"{', '.join(Retention.__dataclass_fields__)}"
        ),
    )
    return Retention(**found)


def changed(own: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Return a topic's settings after these changes.

    None removes a setting, so that the broker's applies again.
    """
    return {name: value for name, value in {**own, **changes}.items() if value is not None}


def chunk_bytes(retention: Retention, usual: int) -> int:
    """Return the size at which to roll, so that a bound on unfinished bytes can take effect."""
    if retention.max_bytes == NONE:
        return usual
    return min(usual, retention.max_bytes // PARTS)


class LogView(NamedTuple):
    """The log as retention sees it.

    `bases` are the first offsets of the chunks, ascending. The last is the ongoing chunk. `sizes`
    are their bytes.
    """

    bases: Sequence[int]
    sizes: Sequence[int]
    end: int
    floor: int
    """All offsets below it are finished and committed."""
    applied: int
    """The offset of the committed checkpoint."""
    unfinished_bytes: int
    """Bytes from the floor to the end."""
    first_time_ns: int
    """Time of the ongoing chunk's first message, if it has one."""
    last_time_ns: int
    """Time of the log's last message."""
    now_ns: int


class RetentionPlan(NamedTuple):
    """The oldest `chunks` chunks are removed: those below offset `start`.

    With `roll`, the ongoing chunk is sealed.
    """

    start: int
    chunks: int
    roll: bool


def finished_chunks(bases: Sequence[int], floor: int) -> int:
    """Return how many sealed chunks lie wholly below `floor`."""
    return max(0, bisect_right(bases, floor) - 1)


def plan(retention: Retention, view: LogView, last_time_ns: Callable[[int], int]) -> RetentionPlan:
    """Decide what to do now.

    `last_time_ns` returns the time of the last message of the n-th chunk. It is called only if an
    age is bounded.
    """
    finished = finished_chunks(view.bases, view.floor)
    # The checkpoint has passed these chunks. No others may be removed.
    passed = finished_chunks(view.bases, view.applied)
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
    """Return how many finished chunks exceed the `keep_*` bounds."""
    left_bytes = sum(view.sizes[:finished])
    for chunk in range(may):
        too_many = retention.keep_bytes != NONE and left_bytes > retention.keep_bytes
        too_many = too_many or (
            retention.keep_chunks != NONE and finished - chunk > retention.keep_chunks
        )
        if not too_many and (retention.keep_s == NONE or ages.of(chunk) <= retention.keep_s):
            return chunk
        left_bytes -= view.sizes[chunk]
    return may


def _beyond_max(
    retention: Retention, view: LogView, finished: int, may: int, ages: _Ages
) -> tuple[int, bool]:
    """Return how many chunks exceed the `max_*` bounds, and whether the ongoing chunk does too.

    The number includes the finished chunks before them.
    """
    if not retention.drops or (retention.max_bytes == NONE and retention.max_s == NONE):
        return 0, False
    left = view.unfinished_bytes
    following = sum(view.sizes[finished + 1 :])
    chunk = finished
    while chunk < may:
        too_old = left > 0 and retention.max_s != NONE and ages.of(chunk) > retention.max_s
        if not too_old and (
            not _too_much(retention, left, 0.0)
            or following < retention.max_bytes * PARTS_LEFT // PARTS
        ):
            break
        chunk += 1
        left = min(left, following)  # the first one may be finished in part
        following -= view.sizes[chunk]
    drop_ongoing = chunk == len(view.bases) - 1 and _too_much(
        retention, left, _age_s(view, view.last_time_ns)
    )
    return (chunk if chunk > finished else 0), drop_ongoing


def _too_much(retention: Retention, unfinished_bytes: int, age_s: float) -> bool:
    if not unfinished_bytes:
        return False
    too_large = retention.max_bytes != NONE and unfinished_bytes > retention.max_bytes
    return too_large or (retention.max_s != NONE and age_s > retention.max_s)


def _finished_too_much(retention: Retention, view: LogView) -> bool:
    """Return True if the ongoing chunk is finished and alone exceeds the `keep_*` bounds.

    It is not sealed at each message of a slow topic, because a roll costs syncs.
    """
    size, age_s = view.sizes[-1], _age_s(view, view.last_time_ns)
    if view.floor < view.end or (size < ROLL_BYTES and age_s < ROLL_IDLE_S):
        return False
    too_many = retention.keep_bytes != NONE and size > retention.keep_bytes
    too_many = too_many or retention.keep_chunks == 0
    return too_many or (retention.keep_s != NONE and age_s > retention.keep_s)


def _ripe(retention: Retention, view: LogView) -> bool:
    """Return True if the ongoing chunk has reached an eighth of the bounded age.

    A chunk that fills slowly is sealed then. Otherwise its newest message would keep its oldest
    messages.
    """
    age_s = _age_s(view, view.first_time_ns)
    ripe = retention.keep_s != NONE and age_s > max(retention.keep_s / PARTS, RIPE_S_MIN)
    return ripe or (retention.max_s != NONE and age_s > max(retention.max_s / PARTS, ROLL_IDLE_S))
