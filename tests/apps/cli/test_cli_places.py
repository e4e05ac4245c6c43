"""Tests of positions and settings in the form in which users type them, without a broker."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timezone

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zsq
from zsq.actors.settings import channel_settings
from zsq.actors.settings.channel_settings import NAMES
from zsq.apps.cli import quantities
from zsq.apps.cli.inspect import message as message_command
from zsq.apps.cli.manage.settings import describe_channel, given_settings, with_settings, with_start
from zsq.apps.cli.quantities import MessageId, parse_place
from zsq.transport.client.core import asking, message, peeking
from zsq.transport.durations import parse_seconds, spelled
from zsq.transport.settings import CHANNEL, ChannelSettings, NewChannelOptions

NOW = 1_795_000_000.0


def at(*parts: int, zone: timezone = UTC) -> datetime:
    return datetime(*parts, tzinfo=zone)  # type: ignore[arg-type, misc]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", "earliest"), (" Latest ", "latest"), ("0", 0), ("12345", 12_345), ("20261120", 20_261_120), ("9" * 15, 10**15 - 1),
        ("2026-11-20T10:30Z", at(2026, 11, 20, 10, 30)), ("2026-11-20 10:30:05.25+00:00", at(2026, 11, 20, 10, 30, 5, 250_000)),
        ("2026-11-20T10:30+01:00", at(2026, 11, 20, 9, 30)), ("@1795000000", datetime.fromtimestamp(NOW, UTC)),
        ("@0.5", at(1970, 1, 1, 0, 0, 0, 500_000)), ("15m", datetime.fromtimestamp(NOW - 900, UTC)),
        ("1h30m", datetime.fromtimestamp(NOW - 5_400, UTC)), ("7D", datetime.fromtimestamp(NOW - 604_800, UTC)),
    ],
)  # fmt: skip
def test_each_place_is_understood_as_people_write_it(text: str, expected: object) -> None:
    found = parse_place(text, lambda: NOW)
    assert (found, type(found)) == (expected, type(expected))


def test_a_time_without_a_zone_is_local() -> None:
    for text in ("2026-11-20", "2026-11-20T00:00"):
        found = parse_place(text)
        assert isinstance(found, datetime)
        assert found == datetime(2026, 11, 20).astimezone()


def test_an_id_is_an_offset_of_a_node() -> None:
    found = parse_place("004000000000000A")
    assert isinstance(found, MessageId)
    assert (found, found.text) == (10, "004000000000000A")
    assert message.parse_id("004000000000000A") == (1, 10)
    assert (quantities.ID_BITS, quantities.ID_DIGITS) == (message.OFFSET_BITS, message.ID_DIGITS)


@pytest.mark.parametrize(
    "text",
    ["", "-1", "1.5", "tomorrow", "9" * 17, "10:30", "2026-13-01", "2026-11-20T25:00", "@", "@-1", "@1e9", "m", "15 m x",
     "first", "٣", "0x10",
     "5300w"],
)  # fmt: skip
def test_each_text_that_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a position; use earliest, latest") as error:
        parse_place(text, lambda: NOW)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("text", ["1600-01-01", "9999-12-31T23:59:59", "@99999999999"])
def test_an_impossible_time_is_refused_before_it_is_sent(text: str) -> None:
    # Python 3.14 has no local time for the second one.
    with pytest.raises((zsq.UsageError, ValueError), match=r"a place must be|is not a position"):
        asking.seek_place(parse_place(text))


@given(st.text(max_size=30) | st.from_regex(r"[0-9T:+@.hdmsZ -]{1,25}", fullmatch=True))
def test_any_text_is_a_place_that_can_be_sent_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError, zsq.UsageError):
        (value,) = (part for part in asking.seek_place(parse_place(text)) if part is not None)
        assert isinstance(value, int)
        assert abs(value) <= 1 << 62


def test_a_wrong_place_is_a_wrong_use() -> None:
    with pytest.raises(click.BadParameter, match="is not a position"):
        quantities.TopicPosition().convert("tomorrow", None, None)


@given(st.floats(0.001, 10**9))
def test_a_time_that_is_shown_can_be_typed_again(seconds: float) -> None:
    assert parse_seconds(spelled(seconds)) == pytest.approx(seconds, abs=0.000_6)


def test_times_are_shown_in_days_hours_minutes_and_seconds() -> None:
    assert [spelled(s) for s in (0, 0.5, 1, 90, 3_600, 604_800, 90_061.5)] == [
        "0s",
        "0.5s",
        "1s",
        "1m30s",
        "1h",
        "7d",
        "1d1h1m1.5s",
    ]


def test_options_become_settings() -> None:
    options = {
        "max_attempts": -1,
        "max_age": -1,
        "backoff": 2.0,
        "alarm_age": "default",
        "dead_letter_topic": "",
        "tags": None,
    }
    assert given_settings(CHANNEL, options) == {
        "max_attempts": 0, "max_age_s": -1, "backoff_s": 2.0, "alarm_age_s": None, "dead_letter_topic": None,
    }  # fmt: skip


def test_every_setting_can_be_given_and_is_shown() -> None:
    command = with_start(with_settings(CHANNEL)(lambda: None))
    names = {str(option.name) for option in click.command()(command).params}
    assert {*given_settings(CHANNEL, dict.fromkeys(names, 1)), channel_settings.START} == {
        *NewChannelOptions.__annotations__,
        *NAMES,
    }
    default = ChannelSettings().as_dict()
    shown = describe_channel("t", "c", default)
    other = {"tags": "a||b", "ordered": True, "max_attempts": 5, "backoff_s": 3.0, "backoff_max_s": 60.0, "max_age_s": 60.0,
             "max_consumers": 2, "backoff_curve": "5s,1m", "backoff_jitter": 10,
             "alarm_depth": 10, "alarm_age_s": 5.0}  # fmt: skip
    for name, value in other.items():
        assert describe_channel("t", "c", default | {name: value}) != shown, name
    listed = describe_channel("t", "c", default | {"backoff_curve": "5s,1m"})
    assert "backoff    5s,1m, no jitter" in listed
    assert "topic t.c.dead" in describe_channel("t", "c", default | {"max_attempts": 5})
    assert "topic bad" in describe_channel(
        "t", "c", default | {"max_attempts": 5, "dead_letter_topic": "bad"}
    )


def test_the_limits_of_peek_agree() -> None:
    assert message_command.PEEK_MAX == peeking.PEEK_MAX
