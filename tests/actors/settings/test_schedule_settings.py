"""Tests of the settings of schedules: what is refused, and that a row keeps everything."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.actors.settings.schedule_settings import (
    MISSED,
    SCHEDULE_BODY_BYTES_MAX,
    Schedule,
    as_row,
    asked_schedule,
    check_schedule_name,
    from_row,
)
from zsq.transport.errors import E_BAD_NAME, E_TOO_BIG, UsageError

GIVEN: dict[str, Any] = {"name": "n", "cron": "* * * * *", "body": b"x"}
_VALUES = st.one_of(
    st.text(),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(
    st.builds(
        Schedule,
        st.just("a" * 32),
        st.text(min_size=1, max_size=20),
        st.binary(max_size=50),
        st.text(min_size=1, max_size=20),
        st.sampled_from(MISSED),
        st.integers(0, 2**40),
        st.booleans(),
        st.none() | st.binary(max_size=20),
        st.none() | st.text(max_size=20),
        st.dictionaries(st.text(max_size=5), _VALUES, max_size=3),
    )
)
def test_a_row_of_the_registry_keeps_all_of_a_schedule(schedule: Schedule) -> None:
    assert from_row(json.loads(json.dumps(as_row(schedule), allow_nan=False))) == schedule


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"body": "text"}, "body must be bytes, not str"),
        ({"body": b"x" * (SCHEDULE_BODY_BYTES_MAX + 1)}, "the limit of a schedule is 32,768"),
        ({"cron": 5}, "cron must be text of 1 to 200 characters"),
        ({"cron": "x" * 201}, "cron must be text of 1 to 200 characters"),
        ({"timezone": ""}, "timezone must be text"),
        ({"missed": "some"}, "missed must be one of one, all, skip, not 'some'"),
        ({"missed": ["one"]}, "missed must be one of"),
        ({"key": "text"}, "key must be bytes"),
        ({"key": b"x" * 257}, "key of 257 bytes: the limit of a schedule is 256"),
        ({"tag": b"x"}, "tag must be text"),
        ({"tag": "x" * 257}, "tag of 257 bytes"),
        ({"headers": []}, "headers must be a map"),
        ({"headers": {"a": b"x"}}, "header 'a' of a schedule must be text, a number or a flag"),
        ({"headers": {"a": float("nan")}}, "header 'a'"),
        ({"headers": {"a": float("inf")}}, "header 'a'"),
        ({"headers": {"a": {}}}, "header 'a'"),
        ({"headers": {1: "a"}}, "header 1"),
        ({"headers": {"zsq-due": "x"}}, "header zsq-due is set by the schedule"),
        ({"headers": {"a": 1 << 70}}, "headers must map text to text"),
        ({"headers": {"a": "x" * 20_000}}, "headers of 20,0.. bytes"),
        ({"colour": "red"}, "a schedule has no option colour"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name(wrong: dict[str, Any], why: str) -> None:
    """A number that JSON does not have would make the whole registry unreadable."""
    with pytest.raises(UsageError, match=why):
        asked_schedule(GIVEN | wrong, "a" * 32, 5)


@pytest.mark.parametrize(
    "wrong",
    [{"uuid": ""}, {"since": -1}, {"since": True}, {"paused": 1}, {"body": "!"}, {"key": 5}],
)
def test_a_wrong_row_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        from_row(as_row(asked_schedule(GIVEN, "a" * 32, 5)) | wrong)


@pytest.mark.parametrize("name", ["", "a b", "a#1", "x" * 100, 5, None, "n#ephemeral"])
def test_a_bad_name_is_refused(name: object) -> None:
    with pytest.raises(UsageError) as caught:
        check_schedule_name(name)
    assert caught.value.code == E_BAD_NAME


def test_a_body_that_is_too_large_has_its_own_code() -> None:
    with pytest.raises(UsageError) as caught:
        asked_schedule(GIVEN | {"body": bytes(SCHEDULE_BODY_BYTES_MAX + 1)}, "a" * 32, 5)
    assert caught.value.code == E_TOO_BIG
