"""Tests of deferrals: for how long, and which errors of a handler are deferrals."""

from __future__ import annotations

import pickle
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import zsq
from zsq.transport.client.core.deferral import deferral_in, deferral_ms
from zsq.transport.client.core.message import as_traceback
from zsq.transport.wire.protocol import TRACEBACK_TEXT_MAX


def test_a_delay_or_a_time_can_be_given() -> None:
    assert deferral_ms(0.0, None) == 0
    assert deferral_ms(1.5, None) == 1_500
    assert deferral_ms(timedelta(days=366), None) == 366 * 86_400_000
    before_s = time.time()
    ms = deferral_ms(0.0, datetime.now(UTC) + timedelta(hours=1))
    assert before_s + 3_600 <= time.time() + ms / 1000, "never before the time that was asked for"
    assert 3_590_000 < ms <= 3_600_000
    assert deferral_ms(0.0, datetime.now() + timedelta(hours=1)) > 3_590_000, "local time"
    assert deferral_ms(0.0, datetime(1999, 1, 1)) == 0, "a time that has passed"
    assert deferral_ms(0.0, datetime.min) == 0, "and one that is no number of seconds"


@pytest.mark.parametrize(
    ("delay", "until", "text"),
    [
        (-1, None, "the delay of a deferral must be 0 to 31622400 s"),
        (float("nan"), None, "the delay of a deferral must be"),
        (10**400, None, "the delay of a deferral must be"),
        (-(10**400), None, "the delay of a deferral must be"),
        ("soon", None, "a delay must be a number of seconds or a timedelta, not 'soon'"),
        (1, datetime(2099, 1, 1), "give a delay or until to defer, not both"),
        (0.0, 5, "until must be a datetime, not int 5"),
        (0.0, datetime(2999, 1, 1), "the delay of a deferral must be"),
        (0.0, datetime.max, "the delay of a deferral must be"),
    ],
)
def test_a_wrong_time_is_refused_where_it_is_given(delay: Any, until: Any, text: str) -> None:
    with pytest.raises(zsq.UsageError) as refused:
        zsq.RetryAfter(delay, until=until)
    assert refused.value.text.startswith(text)


def test_only_retry_after_is_a_deferral() -> None:
    assert deferral_in(zsq.RetryAfter(2)) == 2_000
    assert deferral_in(ValueError("no")) is None
    assert deferral_in("a reason") is None
    both = ExceptionGroup("tasks", [zsq.RetryAfter(2), ExceptionGroup("", [zsq.RetryAfter(9)])])
    assert deferral_in(both) == 9_000
    assert deferral_in(ExceptionGroup("tasks", [zsq.RetryAfter(2), ValueError()])) is None


def _limited(_: int) -> None:
    raise zsq.RetryAfter(timedelta(seconds=3))


def test_a_process_of_a_pool_can_raise_it() -> None:
    until = datetime.now(UTC) + timedelta(days=9)
    copied = pickle.loads(pickle.dumps(zsq.RetryAfter(until=until)))
    assert copied.until == until
    with ProcessPoolExecutor(1) as pool, pytest.raises(zsq.RetryAfter) as raised:
        pool.submit(_limited, 0).result(60)
    assert deferral_in(raised.value) == 3_000


def _deep(depth: int) -> None:
    secret = "hunter2"
    if depth:
        _deep(depth - 1)
    raise ValueError(f"{len(secret)} characters")


def test_a_traceback_has_the_newest_frames_and_no_values() -> None:
    try:
        _deep(300)
    except ValueError as error:
        text = as_traceback(error)
    assert text.endswith("ValueError: 7 characters")
    assert "_deep(depth - 1)" in text
    assert "_deep(300)" not in text, "the oldest frame"
    assert len(text) <= TRACEBACK_TEXT_MAX
    assert text.count("hunter2") <= 1, "the line of the source, and no value"


def test_a_traceback_never_makes_an_answer_fail() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    long = ValueError("\udcff" + "x" * 10_000)
    for error in (Bad(), long):
        try:
            raise error
        except Exception as caught:
            text = as_traceback(caught)
            text.encode()
            assert len(text) <= TRACEBACK_TEXT_MAX
    assert as_traceback("a reason") == as_traceback(ValueError("never raised")) == ""
