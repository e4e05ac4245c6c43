"""Tests of which chunks retention may remove: a table of cases for each rule, and properties that
every policy must keep.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.storage.retention import (
    CHUNKS_A_ROUND_MAX,
    LogView,
    RetentionPlan,
    changed,
    chunk_bytes,
    global_policy,
    is_ripe,
    plan,
    plan_local,
    resolve,
)
from zsq.transport.errors import UsageError
from zsq.transport.settings import MAX_BYTES_MIN, MIB, Retention

S = 1_000_000_000
NOW = 1_000_000 * S
FOREVER: dict[str, Any] = {"keep_bytes": -1}
ALL = 1 << 40


def view(
    chunks: int = 5,
    floor: int = ALL,
    applied: int = ALL,
    size: int = MIB,
    unfinished: int | None = None,
    idle_s: float = 0,
) -> LogView:
    """Return a log with chunks of 10 messages and `size` bytes, one a minute. The last chunk has 5
    messages and half the bytes. The last message is `idle_s` old.
    """
    end = chunks * 10 - 5
    bases = [10 * i for i in range(chunks)]
    floor = min(floor, end)
    if unfinished is None:
        unfinished = (end - floor) * size // 10
    last = NOW - int(idle_s * S)
    return LogView(
        bases,
        [size] * (chunks - 1) + [size // 2],
        end,
        floor,
        min(applied, end),
        unfinished,
        last - 30 * S,
        last,
        NOW,
    )


def plan_for(policy: Retention, shown: LogView) -> RetentionPlan:
    """Return the plan for a log in which the last message of each chunk is a minute older than that
    of the next chunk.
    """
    last = len(shown.bases) - 1
    return plan(policy, shown, lambda chunk: shown.last_time_ns - (last - chunk) * 60 * S)


@pytest.mark.parametrize(
    ("settings", "shown", "chunks"),
    [
        ({}, view(), 0),  # the default keeps 1 GiB
        ({"keep_bytes": 0}, view(), 4),
        ({"keep_bytes": 0}, view(floor=40), 4),
        ({"keep_bytes": 0}, view(floor=39), 3),  # one message of the fourth chunk is not finished
        ({"keep_bytes": 0}, view(floor=9), 0),
        ({"keep_bytes": 0}, view(floor=0), 0),
        ({"keep_bytes": 0}, view(applied=39), 3),  # the checkpoint has not passed the fourth chunk
        ({"keep_bytes": 0}, view(applied=0), 0),
        ({"keep_bytes": 2 * MIB}, view(), 2),
        ({"keep_bytes": 2 * MIB - 1}, view(), 3),
        ({"keep_bytes": 2 * MIB}, view(floor=35), 1),  # unfinished chunks do not count
        ({"keep_bytes": 2 * MIB}, view(applied=15), 1),
        ({"keep_chunks": 0} | FOREVER, view(), 4),
        ({"keep_chunks": 3} | FOREVER, view(), 1),
        ({"keep_chunks": 4} | FOREVER, view(), 0),
        ({"keep_chunks": 1} | FOREVER, view(floor=25), 1),
        ({"keep_time_s": 179} | FOREVER, view(), 2),  # the chunks are 240, 180, 120 and 60 s old
        ({"keep_time_s": 180} | FOREVER, view(), 1),
        ({"keep_time_s": 0} | FOREVER, view(floor=20), 2),
        # A chunk is removed if it exceeds any limit.
        ({"keep_time_s": 179, "keep_bytes": MIB}, view(), 3),
        (FOREVER, view(), 0),
        ({"keep_bytes": 0}, view(chunks=200), CHUNKS_A_ROUND_MAX),
        ({"keep_bytes": 0}, view(chunks=1), 0),  # the chunk that is being written is never removed
    ],
)
def test_each_policy_lets_the_expected_finished_chunks_go(
    settings: dict[str, Any], shown: LogView, chunks: int
) -> None:
    assert plan_for(Retention(**settings), shown)[:2] == (shown.bases[chunks], chunks)


BOUND: dict[str, Any] = {"max_bytes": MAX_BYTES_MIN, "when_full": "drop-oldest"} | FOREVER  # 8 MiB
AGED: dict[str, Any] = {"max_age_s": 150, "when_full": "drop-oldest"} | FOREVER


@pytest.mark.parametrize(
    ("settings", "shown", "chunks"),
    [
        (BOUND, view(20, floor=0), 12),  # 7.5 of 19.5 MiB are left
        (BOUND, view(20, floor=0, applied=50), 5),
        # Finished messages before the unfinished ones are removed too, so that offsets have no gap.
        (BOUND, view(20, floor=50), 12),
        (BOUND, view(20, floor=55), 12),
        (BOUND, view(20, floor=115), 0),  # 8 MiB exactly
        (BOUND, view(20, floor=114), 12),
        (BOUND, view(20, floor=195), 0),
        (BOUND | {"when_full": "reject"}, view(20, floor=0), 0),
        (BOUND, view(200, floor=0), CHUNKS_A_ROUND_MAX),
        # The whole log is too large, but the newest messages stay.
        (
            BOUND,
            view(2, floor=0)._replace(sizes=[40 * MIB, 100], unfinished_bytes=40 * MIB),
            0,
        ),
        (
            BOUND,
            view(2, floor=0)._replace(sizes=[40 * MIB, 6 * MIB - 1], unfinished_bytes=46 * MIB),
            0,
        ),
        (BOUND, view(2, floor=0)._replace(sizes=[40 * MIB, 6 * MIB], unfinished_bytes=46 * MIB), 1),
        (AGED, view(5, floor=0), 2),
        (AGED, view(5, floor=25), 0),  # this limit does not apply to finished messages
        (AGED, view(5, floor=5), 2),
        (AGED, view(5, floor=0, applied=15), 1),
        (BOUND | {"keep_bytes": 0}, view(20, floor=50), 12),
        (BOUND | {"keep_bytes": 0}, view(5, floor=30), 3),
    ],
)
def test_each_bound_lets_the_expected_unfinished_chunks_go(
    settings: dict[str, Any], shown: LogView, chunks: int
) -> None:
    assert plan_for(Retention(**settings), shown)[:2] == (shown.bases[chunks], chunks)


@pytest.mark.parametrize(
    ("settings", "shown", "roll"),
    [
        ({"keep_bytes": 0}, view(idle_s=3), True),
        # The chunk has half a MiB, and the last write was a second ago. A slow publisher must not
        # get a new chunk for each message.
        (
            {"keep_bytes": 0},
            view(idle_s=1),
            False,
        ),
        ({"keep_bytes": 0}, view(idle_s=1, size=2 * MIB), True),
        # One message of the chunk is not finished.
        ({"keep_bytes": 0}, view(idle_s=3, floor=44), False),
        ({"keep_bytes": MIB // 2}, view(idle_s=3), False),
        ({"keep_bytes": MIB // 2 - 1}, view(idle_s=3), True),
        ({"keep_bytes": 10 * MIB}, view(idle_s=3), False),
        ({"keep_chunks": 0} | FOREVER, view(idle_s=3), True),
        ({"keep_chunks": 1} | FOREVER, view(idle_s=3), False),
        ({"keep_time_s": 2} | FOREVER, view(idle_s=3), True),
        ({"keep_time_s": 4} | FOREVER, view(idle_s=3), False),
        ({"keep_time_s": 400} | FOREVER, view(idle_s=29), False),  # the chunk was begun 59 s ago
        # The topic is slow. Without a new chunk, its newest message would keep the oldest one.
        (
            {"keep_time_s": 400} | FOREVER,
            view(idle_s=31, floor=0),
            True,
        ),
        ({"keep_time_s": 7 * 86_400} | FOREVER, view(idle_s=31), False),
        # The chunk became so large before the limit was set.
        (BOUND, view(1, floor=0, size=20 * MIB), True),
        (BOUND, view(1, floor=0, size=16 * MIB), False),
        (BOUND | {"when_full": "reject"}, view(1, floor=0, size=20 * MIB), False),
        (BOUND, view(9, floor=0, size=20 * MIB), True),
        (AGED, view(1, floor=0, idle_s=151), True),
        # The chunk is only a second old.
        (
            AGED | {"max_age_s": 4},
            view(1, floor=0)._replace(first_time_ns=NOW - S, last_time_ns=NOW - S),
            False,
        ),
        (
            AGED | {"max_age_s": 4},
            view(1, floor=0)._replace(first_time_ns=NOW - 3 * S, last_time_ns=NOW - S),
            True,
        ),
        (FOREVER, view(idle_s=10**6), False),
    ],
)
def test_the_ongoing_chunk_is_sealed_if_it_would_be_removed(
    settings: dict[str, Any], shown: LogView, roll: bool
) -> None:
    assert plan_for(Retention(**settings), shown).roll is roll


def test_an_empty_ongoing_chunk_is_never_sealed() -> None:
    empty = view(idle_s=10**6)._replace(end=40, floor=40)
    assert plan_for(Retention(keep_bytes=0, keep_time_s=0), empty) == (40, 4, False)


def test_ages_are_asked_only_where_one_is_bounded() -> None:
    asked: list[int] = []

    def time_of(chunk: int) -> int:
        asked.append(chunk)
        return NOW

    plan(Retention(keep_bytes=0), view(), time_of)
    plan(Retention(**BOUND), view(20, floor=0), time_of)
    assert asked == [], "a chunk's footer is read for nothing"
    plan(Retention(**AGED), view(floor=0), time_of)
    assert asked


def test_a_clock_that_was_set_back_makes_nothing_old() -> None:
    shown = view()._replace(now_ns=NOW - 10_000 * S)
    assert plan_for(
        Retention(keep_bytes=-1, keep_time_s=0, max_age_s=1, when_full="drop-oldest"), shown
    ) == (0, 0, False)


sizes = st.lists(st.integers(0, 5 * MIB), min_size=1, max_size=100)
policies = st.builds(
    Retention,
    keep_bytes=st.integers(-1, 20 * MIB),
    keep_time_s=st.sampled_from([-1, 0, 100, 1000.5]),
    keep_chunks=st.integers(-1, 9),
    max_bytes=st.sampled_from([-1, MAX_BYTES_MIN, 20 * MIB]),
    max_age_s=st.sampled_from([-1, 1, 600]),
    when_full=st.just("drop-oldest"),
)


@st.composite
def views(draw: st.DrawFn) -> LogView:
    found = draw(sizes)
    counts = draw(st.lists(st.integers(1, 9), min_size=len(found), max_size=len(found)))
    bases = [sum(counts[:i]) for i in range(len(found))]
    end = bases[-1] + draw(st.integers(0, 9))
    floor, applied = draw(st.integers(0, end)), draw(st.integers(0, end))
    at = max(i for i, base in enumerate(bases) if base <= floor)
    unfinished = 0 if floor == end else sum(found[at + 1 :]) + draw(st.integers(0, found[at]))
    return LogView(
        bases,
        found,
        end,
        floor,
        applied,
        unfinished,
        NOW - 100 * S,
        NOW - draw(st.sampled_from([0, 10, 5000])) * S,
        NOW,
    )


@given(policies, views())
def test_no_policy_removes_more_than_it_may(policy: Retention, shown: LogView) -> None:
    found = plan_for(policy, shown)
    assert found.start == shown.bases[found.chunks] <= shown.applied or not found.chunks
    assert found.chunks <= min(len(shown.bases) - 1, CHUNKS_A_ROUND_MAX)
    if policy.max_bytes < 0 and policy.max_age_s < 0:
        assert found.start <= shown.floor or not found.chunks, (
            "unfinished messages go only where a bound says so"
        )
    if found.start > shown.floor and found.chunks and policy.max_age_s < 0:
        assert shown.unfinished_bytes > policy.max_bytes >= 0
        # Bytes with one chunk more. Those of the floor's chunk are known only with the rest.
        at = max(i for i, base in enumerate(shown.bases) if base <= shown.floor)
        last = found.chunks - 1
        before = shown.unfinished_bytes if last <= at else sum(shown.sizes[last:])
        assert before > policy.max_bytes, "not a chunk more than needed"
        assert sum(shown.sizes[found.chunks :]) >= policy.max_bytes * 3 // 4, (
            "the newest ones, whatever lies with them in one chunk"
        )


@given(policies, views())
def test_repeated_rounds_end_within_the_bounds(policy: Retention, shown: LogView) -> None:
    """After a plan was carried out, the next plan removes nothing, except for the chunk that was
    being written.
    """
    shown = shown._replace(applied=shown.end)
    for _ in range(3):
        found = plan_for(policy, shown)
        gone = found.chunks
        at = max(i for i, base in enumerate(shown.bases) if base <= shown.floor)
        left = (
            shown.unfinished_bytes
            if gone <= at
            else min(shown.unfinished_bytes, sum(shown.sizes[gone:]))
        )
        floor = max(shown.floor, found.start)
        shown = shown._replace(
            bases=shown.bases[gone:],
            sizes=shown.sizes[gone:],
            floor=floor,
            unfinished_bytes=left if floor < shown.end else 0,
        )
    assert plan_for(policy, shown).chunks == 0
    finished = [
        size
        for base, size in zip(shown.bases[1:], shown.sizes, strict=False)
        if base <= shown.floor
    ]
    assert policy.keep_bytes < 0 or sum(finished) <= policy.keep_bytes
    assert policy.keep_chunks < 0 or len(finished) <= policy.keep_chunks
    if 0 <= policy.max_bytes < shown.unfinished_bytes:
        only_ongoing = len(shown.sizes) - 1 == len(finished)
        assert only_ongoing or sum(shown.sizes[len(finished) + 1 :]) < policy.max_bytes * 3 // 4, (
            "one chunk above the bound at most"
        )
        assert not only_ongoing or plan_for(policy, shown).roll or shown.end == shown.bases[-1]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"keep_bytes": -2}, "keep_bytes"),
        ({"keep_bytes": 1.5}, "keep_bytes"),
        ({"keep_bytes": True}, "keep_bytes"),
        ({"keep_bytes": "1GiB"}, "keep_bytes"),
        ({"keep_time_s": float("nan")}, "keep_time_s"),
        ({"keep_time_s": float("inf")}, "keep_time_s"),
        ({"keep_time_s": -0.5}, "keep_time_s"),
        ({"keep_time_s": "7d"}, "keep_time_s"),
        ({"keep_time_s": 2**63}, "keep_time_s"),
        ({"keep_time_s": 10**400}, "keep_time_s"),
        ({"keep_bytes": 2**62 + 1}, "keep_bytes"),
        ({"max_bytes": 2**64}, "max_bytes"),
        ({"keep_chunks": None}, "keep_chunks"),
        ({"max_bytes": MAX_BYTES_MIN - 1}, "at least 8388608"),
        ({"max_bytes": 0}, "at least"),
        ({"max_age_s": 5}, "works only with when_full drop-oldest.*--max-age none"),
        ({"max_age_s": 0, "when_full": "drop-oldest"}, "at least 1 s"),
        ({"when_full": "drop"}, "reject or drop-oldest"),
        ({"when_full": 1}, "when_full"),
        ({"keep": 1}, "unknown setting keep"),
    ],
)
def test_each_senseless_setting_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text) as error:
        resolve(settings)
    assert error.value.code == "E_BAD_ARGUMENT"


def test_a_topics_own_settings_override_the_defaults() -> None:
    assert resolve() == Retention() == Retention(keep_bytes=1024 * MIB, when_full="reject")
    own = changed(
        {"keep_bytes": 5, "max_bytes": MAX_BYTES_MIN}, {"keep_bytes": None, "keep_time_s": 60}
    )
    assert own == {"max_bytes": MAX_BYTES_MIN, "keep_time_s": 60}
    assert resolve({"keep_bytes": 7, "keep_time_s": 1}, own) == Retention(
        keep_bytes=7, keep_time_s=60, max_bytes=MAX_BYTES_MIN
    )
    assert resolve(resolve(own).as_dict()) == resolve(own)


def test_bytes_are_bounded_by_default_only_without_another_bound() -> None:
    assert resolve({"keep_time_s": 60}).keep_bytes == -1
    assert resolve({}, {"keep_chunks": 3}).keep_bytes == -1
    assert (
        resolve({"keep_time_s": 60, "keep_chunks": -1}, {"keep_time_s": -1}).keep_bytes
        == 1024 * MIB
    )
    assert resolve({"keep_time_s": 60}, {"keep_bytes": 5}).keep_bytes == 5


@pytest.mark.parametrize(
    ("max_bytes", "expected"), [(-1, 256), (MAX_BYTES_MIN, 1), (80 * MIB, 10), (10_000 * MIB, 256)]
)
def test_chunks_are_smaller_where_a_bound_is(max_bytes: int, expected: int) -> None:
    assert chunk_bytes(Retention(max_bytes=max_bytes), 256 * MIB) == expected * MIB


# Topics with a bucket


@pytest.mark.parametrize(
    ("policy", "first", "may", "kept"),
    [
        (FOREVER, 0, 4, 0),
        ({"keep_bytes": 4 * MIB}, 0, 4, 0),
        ({"keep_bytes": 4 * MIB - 1}, 0, 4, 1),
        ({"keep_bytes": 0}, 0, 4, 4),
        ({"keep_bytes": 0}, 0, 2, 2),
        ({"keep_bytes": 0}, 0, 9, 4),
        ({"keep_bytes": 2 * MIB}, 1, 4, 2),
        ({"keep_bytes": 2 * MIB}, 3, 4, 3),
        (FOREVER | {"keep_chunks": 3}, 0, 4, 1),
        (FOREVER | {"keep_time_s": 120}, 0, 4, 2),
        ({"keep_bytes": 4 * MIB, "keep_chunks": 1}, 0, 4, 3),
    ],
)
def test_archived_files_leave_the_disk_beyond_the_limits(
    policy: dict[str, Any], first: int, may: int, kept: int
) -> None:
    seen = view(floor=0)  # nothing is finished
    times = [NOW - (4 - i) * 60 * S for i in range(5)]
    assert plan_local(Retention(**policy), seen, first, may, times.__getitem__) == kept


def test_the_limits_of_the_disk_do_not_remove_messages_of_a_topic_with_a_bucket() -> None:
    own = Retention(keep_bytes=0, keep_time_s=1, keep_chunks=0, bucket_keep_bytes=3 * MIB)
    assert global_policy(own) == Retention(
        keep_bytes=3 * MIB, keep_time_s=-1, keep_chunks=-1, bucket_keep_bytes=3 * MIB
    )
    found = plan(global_policy(own), view(), lambda chunk: NOW)
    assert (found.start, found.chunks) == (10, 1)
    kept = plan(global_policy(Retention(keep_bytes=0)), view(), lambda chunk: NOW)
    assert kept.chunks == 0


def test_an_old_ongoing_chunk_is_sealed_for_the_bucket_too() -> None:
    policy = Retention(keep_time_s=800)
    assert not is_ripe(policy, view())
    old = view()._replace(first_time_ns=NOW - 101 * S)
    assert is_ripe(policy, old)
    assert not is_ripe(policy, old._replace(end=old.bases[-1]))


@given(
    st.integers(0, 6), st.integers(0, 6), st.integers(-1, 8 * MIB), st.integers(-1, 6)
)  # fmt: skip
def test_only_archived_files_leave_and_never_the_ongoing_one(
    first: int, may: int, keep_bytes: int, keep_chunks: int
) -> None:
    seen = view(chunks=6)
    first = min(first, 5)
    policy = Retention(keep_bytes=keep_bytes, keep_chunks=keep_chunks)
    kept = plan_local(policy, seen, first, may, lambda chunk: NOW)
    assert first <= kept <= max(first, min(may, 5))
    if kept < min(may, 5):  # what stays is within the limits
        assert keep_bytes < 0 or sum(seen.sizes[kept:-1]) <= keep_bytes
        assert keep_chunks < 0 or 5 - kept <= keep_chunks
