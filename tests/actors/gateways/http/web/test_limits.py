"""Tests of the limits of settings, orders and subscriptions: the last value that is accepted and
the first one that is refused.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.scripted_extension import plain

from zsq.actors.channel.admission import check_ready, consumer_of
from zsq.actors.channel.commit_queue import CommitQueue
from zsq.actors.settings import options
from zsq.actors.settings.channel_settings import resolve
from zsq.actors.settings.options import HOLD_S_MAX, RECEIVERS_MAX, AlarmOptions
from zsq.actors.storage.reads import Reads
from zsq.actors.supervisor.commands import moving
from zsq.transport.block.block_format import TAG_BYTES_MAX
from zsq.transport.client.core.reading import NEWEST_MAX
from zsq.transport.errors import E_BAD_ARGUMENT, E_BAD_COMMAND, E_LIMIT, Refused, UsageError
from zsq.transport.retries import ATTEMPTS_MAX, DELAY_S_MAX
from zsq.transport.settings import NUMBER_MAX, TAGS_MAX
from zsq.transport.wire import protocol as p
from zsq.transport.wire.admin_requests import PeekRequest

A = (b"a",)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("max_attempts", 0, ATTEMPTS_MAX),
        ("max_consumers", 0, NUMBER_MAX),
        ("alarm_depth", -1, NUMBER_MAX),
        ("max_age_s", -1, NUMBER_MAX),
        ("alarm_age_s", -1, NUMBER_MAX),
        ("backoff_max_s", 1, DELAY_S_MAX),
    ],
)
def test_numbers_of_a_channel_are_within_their_limits(name: str, least: int, most: int) -> None:
    for value in (least, most):
        assert getattr(resolve({name: value}), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(UsageError) as refused:
            resolve({name: value})
        assert refused.value.code == E_BAD_ARGUMENT


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, "1", True])
def test_an_age_is_a_number_above_nothing(value: Any) -> None:
    with pytest.raises(UsageError, match="max_age_s"):
        resolve({"max_age_s": value})


def test_the_backoff_grows_to_its_limit_and_no_further() -> None:
    settings = resolve({"backoff_s": 1, "backoff_max_s": 60})
    assert [settings.backoff_ns(attempts, float) for attempts in (0, 1, 2, 7, 10_000)] == [
        10**9,
        10**9,
        2 * 10**9,
        60 * 10**9,
        60 * 10**9,
    ]
    with pytest.raises(UsageError, match="above backoff_max_s"):
        resolve({"backoff_s": 2, "backoff_max_s": 1})


def test_tags_are_bounded_in_number_and_length() -> None:
    assert resolve({"tags": "||".join(f"{number:03d}" for number in range(TAGS_MAX))}).tags
    assert resolve({"tags": "x" * TAG_BYTES_MAX}).tags
    for tags in (
        "||".join(f"{number:03d}" for number in range(TAGS_MAX + 1)),
        "x" * (TAG_BYTES_MAX + 1),
        "ä" * (TAG_BYTES_MAX // 2 + 1),
    ):
        with pytest.raises(UsageError, match=f"at most|the limit of {TAG_BYTES_MAX} bytes"):
            resolve({"tags": tags})


@pytest.mark.parametrize("limit", [0, -1, options.PEEK_MAX + 1])
def test_a_look_is_bounded(limit: int) -> None:
    for good in (1, options.PEEK_MAX):
        moving.check_limit(PeekRequest("t", "c", limit=good))
    with pytest.raises(UsageError, match="peek shows"):
        moving.check_limit(PeekRequest("t", "c", limit=limit))


def test_answers_that_wait_for_a_commit_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "WAITERS_MAX", 2)
    saving = CommitQueue("c")
    for number in range(2):
        saving.confirm(A, p.Answer(number, 1, ()))
    with pytest.raises(UsageError, match=E_LIMIT):
        saving.confirm(A, p.Answer(2, 1, ()))


def subscribed(count: int = 0, most: int = 0, **changes: int) -> Any:
    """Return the consumer that a Sub makes in a channel that has `count` consumers and accepts
    `most`.
    """
    message = replace(
        p.Sub(1, p.PROTOCOL_VERSION, 5, 0, 30_000, "test"), **cast("dict[str, Any]", changes)
    )
    consumers = {(b"%d" % number,): None for number in range(count)}
    delivery = SimpleNamespace(
        consumers=consumers,
        settings=SimpleNamespace(max_consumers=most),
        lost_consumers=lambda now: [],
        end_session=lambda session, attempt: None,
    )
    return consumer_of(message, A, cast("Any", delivery), 1, 1)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"version": p.PROTOCOL_VERSION + 1}, E_BAD_COMMAND),
        ({"version": p.PROTOCOL_VERSION - 1}, E_BAD_COMMAND),
        ({"message_timeout_ms": p.MESSAGE_TIMEOUT_MS_MIN - 1}, E_BAD_ARGUMENT),
        ({"message_timeout_ms": p.MESSAGE_TIMEOUT_MS_MAX + 1}, E_BAD_ARGUMENT),
        ({"ready": -1}, E_BAD_ARGUMENT),
        ({"ready": p.READY_MAX + 1}, E_BAD_ARGUMENT),
        ({"sample_rate": -1}, E_BAD_ARGUMENT),
        ({"sample_rate": p.SAMPLE_RATE_MAX + 1}, E_BAD_ARGUMENT),
    ],
)
def test_a_subscription_is_within_its_limits(changes: dict[str, int], code: str) -> None:
    assert subscribed().ready == 5
    with pytest.raises(UsageError) as refused:
        subscribed(**changes)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("asked", "given"), [(0, p.HEARTBEAT_MS_MIN), (10**9, p.HEARTBEAT_MS_MAX), (30_000, 30_000)]
)
def test_a_heartbeat_is_brought_within_its_limits(asked: int, given: int) -> None:
    assert subscribed(heartbeat_ms=asked).heartbeat_ns == given * 1_000_000


@pytest.mark.parametrize(
    ("most", "room"),
    [(0, options.CONSUMERS_MAX), (2, 2), (options.CONSUMERS_MAX + 5, options.CONSUMERS_MAX)],
)
def test_a_channels_consumers_are_bounded(most: int, room: int) -> None:
    assert subscribed(room - 1, most).ready == 5
    with pytest.raises(Refused, match=f"has {room} consumers; the limit is {room}"):
        subscribed(room, most)


def test_credit_is_bounded_later_too() -> None:
    check_ready(p.READY_MAX)
    with pytest.raises(UsageError):
        check_ready(p.READY_MAX + 1)


def test_the_newest_that_are_asked_for_are_bounded() -> None:
    sent: list[p.Done] = []
    port = SimpleNamespace(send=lambda envelope, message: sent.append(message))
    asked: list[int] = []

    def newest(count: int, end: int) -> int:
        asked.append(count)
        return 40

    reader = SimpleNamespace(newest=newest)
    log = SimpleNamespace(start=10, synced_end=50, reader=reader, offset_at=lambda time_ns: 20)
    harness = Reads(cast("Any", log), lambda: 50, print, plain(cast("Any", log)))
    for count in (0, NEWEST_MAX):
        harness.find_offset(
            cast("Any", port), cast("Any", SimpleNamespace(envelope=A)), p.OffsetAt(1, 5, count)
        )
    assert [message.data["offset"] for message in sent] == [20, 40]
    for count in (-1, NEWEST_MAX + 1):
        with pytest.raises(UsageError, match="newest"):
            harness.find_offset(
                cast("Any", port), cast("Any", SimpleNamespace(envelope=A)), p.OffsetAt(1, 5, count)
            )
    assert asked == [NEWEST_MAX]


@pytest.mark.parametrize("hold_s", [-1, HOLD_S_MAX + 1, float("nan")])
def test_an_alarm_is_held_for_a_bounded_time(hold_s: float) -> None:
    for good in (0, HOLD_S_MAX):
        assert AlarmOptions(hold_s=good).hold_s == good
    with pytest.raises(UsageError, match="the hold time of alarms must be 0 to 86400 s"):
        AlarmOptions(hold_s=hold_s)


def test_alarms_are_told_to_a_bounded_number() -> None:
    assert AlarmOptions(webhooks=("http://x/",) * RECEIVERS_MAX).tells
    with pytest.raises(UsageError, match="at most"):
        AlarmOptions(webhooks=("http://x/",) * (RECEIVERS_MAX + 1))
