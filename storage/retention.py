"""Retention: a topic's policy, and the plan of the chunks that may be removed. Pure.

There are two kinds of limits:

* `keep_*` limits the *finished* messages, which are kept only to be read again. A chunk is removed
  when every channel has finished all its messages and one of these limits is exceeded. Channels
  without consumers count too. In a topic without a channel, the offset from which messages wait for
  a first channel counts like a channel.
* `max_*` limits the *unfinished* messages. Without such a limit, unfinished messages are never
  removed, whatever their age and size. With such a limit, the topic either refuses new messages
  (`reject`, the default) or loses the oldest ones (`drop-oldest`).

In a topic whose chunks are archived in a bucket, `keep_*` limits the files on the disk, finished or
not, and `bucket_keep_*` limits the finished messages in the bucket. A file leaves the disk only
when the bucket has it.

Only whole chunks are removed, and the oldest first, so offsets have no gaps. No chunk is removed
before the committed checkpoint has passed it, because recovery reads the producers' sequences and
the transactions from the log after the checkpoint. The ongoing chunk is never removed, but sealed
first (`roll`).

Removal because of a limit on bytes always leaves at least three quarters of the limit. A chunk can
be large compared with the limit, if it was made before the limit was set, or by a group. Such a
chunk may contain the newest messages too. It stays until the chunks after it reach three quarters
of the limit. Until then, the topic may exceed the limit by one such chunk. Rejected: to cut such a
chunk, because only whole chunks are removed. Rejected too: to remove it. With a limit of 32 MiB,
that would remove all of 40 MiB.

Rejected: an age that counts from the *first* message of a chunk. With it, a chunk that was filled
during a week would be removed together with its new messages. Rejected too: small chunks for every
policy, because each chunk costs four syncs. Chunks are smaller than usual only if the limit is
smaller than eight chunks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from ..transport.settings import MAX_BYTES_MIN, MIB, NONE, Retention, check

PARTS: Final = 8  # a limit covers at least this many chunks
PARTS_LEFT: Final = 6  # when the oldest chunks are dropped, 6 of the 8 parts of the limit stay
CHUNK_BYTES_MIN: Final = 1 * MIB  # the smallest size at which a chunk is sealed because of a limit
# If all messages of the ongoing chunk are finished, it may be sealed early when it has this size,
# or when nothing was written to it for this time.
ROLL_BYTES: Final = 1 * MIB
ROLL_IDLE_S: Final = 2.0
RIPE_S_MIN: Final = 60.0  # the shortest time between two seals because of `keep_time_s`
CHUNKS_A_ROUND_MAX: Final = 64  # 16 GiB at the default size; the next round removes the rest
_NS: Final = 1_000_000_000

assert MAX_BYTES_MIN == PARTS * CHUNK_BYTES_MIN


def resolve(*layers: Mapping[str, object]) -> Retention:
    """Merge settings into a `Retention`. A later layer overrides an earlier one.

    The first layer is the broker's, the second the topic's. The default of `keep_bytes` is used
    only if no other `keep_*` setting is a bound: who sets a time wants the messages for that time.
    Raises `UsageError` if a setting is unknown or its value is not allowed.
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
    if any(found.get(name, NONE) != NONE for name in ("keep_time_s", "keep_chunks")):
        found.setdefault("keep_bytes", NONE)
    return Retention(**found)


def changed(own: Mapping[str, object], changes: Mapping[str, object]) -> dict[str, object]:
    """Return a topic's settings after these changes.

    None removes a setting, so that the setting of the broker applies again.
    """
    return {name: value for name, value in {**own, **changes}.items() if value is not None}


def chunk_bytes(retention: Retention, usual: int) -> int:
    """Return the size at which to roll, so that a limit on unfinished bytes can take effect."""
    if retention.max_bytes == NONE:
        return usual
    return min(usual, retention.max_bytes // PARTS)


class LogView(NamedTuple):
    """The facts about the log that retention needs.

    `bases` are the first offsets of the chunks, ascending. The last is the ongoing chunk. `sizes`
    are their bytes.
    """

    bases: Sequence[int]
    sizes: Sequence[int]
    end: int
    floor: int
    """All messages below this offset are finished, and that is committed."""
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
    """A plan to remove the oldest `chunks` chunks, which are below offset `start`.

    With `roll`, the ongoing chunk is sealed.
    """

    start: int
    chunks: int
    roll: bool


def global_policy(retention: Retention) -> Retention:
    """Return the policy for the whole history of a topic with a bucket.

    Its `keep_*` limits are those of the bucket. The topic's own ones limit what is on the disk.
    """
    return replace(
        retention,
        keep_bytes=retention.bucket_keep_bytes,
        keep_time_s=retention.bucket_keep_time_s,
        keep_chunks=NONE,
    )


def plan_local(
    retention: Retention, view: LogView, first: int, may: int, last_time_ns: Callable[[int], int]
) -> int:
    """Return the number of the first chunk whose file stays on the disk of a topic with a bucket.

    The chunks before number `first` are only in the bucket already. Those before number `may` are
    in the bucket, so their files may be removed, finished or not: readers get them from there. The
    ongoing chunk always stays.
    """
    left_bytes = sum(view.sizes[first:-1])
    left_chunks = len(view.bases) - 1 - first
    ages = _Ages(view, last_time_ns)
    chunk = first
    while chunk < min(may, len(view.bases) - 1):
        too_many = retention.keep_bytes != NONE and left_bytes > retention.keep_bytes
        too_many = too_many or (
            retention.keep_chunks != NONE and left_chunks > retention.keep_chunks
        )
        if not too_many and (
            retention.keep_time_s == NONE or ages.of(chunk) <= retention.keep_time_s
        ):
            break
        left_bytes -= view.sizes[chunk]
        left_chunks -= 1
        chunk += 1
    return chunk


def is_ripe(retention: Retention, view: LogView) -> bool:
    """Return True if the ongoing chunk should be sealed because of its age. See `_ripe`."""
    return view.end > view.bases[-1] and _ripe(retention, view)


def finished_chunks(bases: Sequence[int], floor: int) -> int:
    """Return how many sealed chunks are completely below `floor`."""
    return max(0, bisect_right(bases, floor) - 1)


def plan(retention: Retention, view: LogView, last_time_ns: Callable[[int], int]) -> RetentionPlan:
    """Decide what to do now.

    `last_time_ns` returns the time of the last message of the n-th chunk. It is called only if the
    policy has a limit on age.
    """
    finished = finished_chunks(view.bases, view.floor)
    # The checkpoint has passed these chunks. No other chunks may be removed.
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
    """Return how many finished chunks exceed the `keep_*` limits."""
    left_bytes = sum(view.sizes[:finished])
    for chunk in range(may):
        too_many = retention.keep_bytes != NONE and left_bytes > retention.keep_bytes
        too_many = too_many or (
            retention.keep_chunks != NONE and finished - chunk > retention.keep_chunks
        )
        if not too_many and (
            retention.keep_time_s == NONE or ages.of(chunk) <= retention.keep_time_s
        ):
            return chunk
        left_bytes -= view.sizes[chunk]
    return may


def _beyond_max(
    retention: Retention, view: LogView, finished: int, may: int, ages: _Ages
) -> tuple[int, bool]:
    """Return how many chunks exceed the `max_*` limits, and True if the ongoing chunk does too.

    The number includes the finished chunks before these chunks.
    """
    if not retention.drops or (retention.max_bytes == NONE and retention.max_age_s == NONE):
        return 0, False
    left = view.unfinished_bytes
    following = sum(view.sizes[finished + 1 :])
    chunk = finished
    while chunk < may:
        too_old = left > 0 and retention.max_age_s != NONE and ages.of(chunk) > retention.max_age_s
        if not too_old and (
            not _too_much(retention, left, 0.0)
            or following < retention.max_bytes * PARTS_LEFT // PARTS
        ):
            break
        chunk += 1
        left = min(left, following)  # the first chunk may be finished in part
        following -= view.sizes[chunk]
    drop_ongoing = chunk == len(view.bases) - 1 and _too_much(
        retention, left, _age_s(view, view.last_time_ns)
    )
    return (chunk if chunk > finished else 0), drop_ongoing


def _too_much(retention: Retention, unfinished_bytes: int, age_s: float) -> bool:
    if not unfinished_bytes:
        return False
    too_large = retention.max_bytes != NONE and unfinished_bytes > retention.max_bytes
    return too_large or (retention.max_age_s != NONE and age_s > retention.max_age_s)


def _finished_too_much(retention: Retention, view: LogView) -> bool:
    """Return True if the ongoing chunk is finished and exceeds the `keep_*` limits by itself.

    The result is True only if the chunk has ROLL_BYTES or was idle for ROLL_IDLE_S. Otherwise a
    slow topic would roll after each message, and each roll costs syncs.
    """
    size, age_s = view.sizes[-1], _age_s(view, view.last_time_ns)
    if view.floor < view.end or (size < ROLL_BYTES and age_s < ROLL_IDLE_S):
        return False
    too_many = retention.keep_bytes != NONE and size > retention.keep_bytes
    too_many = too_many or retention.keep_chunks == 0
    return too_many or (retention.keep_time_s != NONE and age_s > retention.keep_time_s)


def _ripe(retention: Retention, view: LogView) -> bool:
    """Return True if the age of the ongoing chunk has reached an eighth of an age limit.

    A chunk that fills slowly is then sealed. Otherwise its old messages would stay as long as its
    newest message.
    """
    age_s = _age_s(view, view.first_time_ns)
    ripe = retention.keep_time_s != NONE and age_s > max(retention.keep_time_s / PARTS, RIPE_S_MIN)
    return ripe or (
        retention.max_age_s != NONE and age_s > max(retention.max_age_s / PARTS, ROLL_IDLE_S)
    )
