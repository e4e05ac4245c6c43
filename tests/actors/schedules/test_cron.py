"""Tests of due times: expressions, time zones, and what happens when the clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.actors.schedules.cron import Cron
from zsq.transport.errors import E_BAD_ARGUMENT, UsageError

BERLIN = ZoneInfo("Europe/Berlin")
# In 2026, Berlin's clocks go from 02:00 to 03:00 on 29 March, and back on 25 October.
FORWARD = datetime(2026, 3, 29, tzinfo=BERLIN)
BACK = datetime(2026, 10, 25, tzinfo=BERLIN)


def due(expression: str, begin: datetime, count: int, zone: str = "Europe/Berlin") -> list[str]:
    """Return the first due times from `begin` on, as UTC."""
    found = islice(Cron(expression, zone).after(int(begin.timestamp()) - 1), count)
    return [datetime.fromtimestamp(one, UTC).strftime("%d %H:%M") for one in found]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 3 * * *", ["01 03:00", "02 03:00"]),
        ("*/20 * * * *", ["01 00:00", "01 00:20"]),
        ("0 0 * * MON", ["05 00:00", "12 00:00"]),
        ("30 12 L * *", ["31 12:30", "28 12:30"]),
        ("0 9 1-7 * 1", ["01 09:00", "02 09:00"]),  # day of month or day of week, as in cron
    ],
)
def test_due_times_are_those_of_cron(expression: str, expected: list[str]) -> None:
    assert due(expression, datetime(2026, 1, 1, tzinfo=UTC), 2, "UTC") == expected


@pytest.mark.parametrize(
    ("expression", "begin", "expected"),
    [
        # The hour from 02:00 to 03:00 is missing. A due time in it is at its end.
        ("30 2 * * *", FORWARD, ["29 01:00", "30 00:30"]),
        ("0 2,3 * * *", FORWARD, ["29 01:00", "30 00:00"]),
        ("*/30 2 * * *", FORWARD, ["30 00:00", "30 00:30"]),
        ("0 * * * *", FORWARD + timedelta(hours=1), ["29 00:00", "29 01:00"]),
        # The hour from 02:00 to 03:00 comes twice. Only a wildcard is due twice.
        ("30 2 * * *", BACK, ["25 00:30", "26 01:30"]),
        ("*/30 2 * * *", BACK, ["25 00:00", "25 00:30", "25 01:00", "25 01:30", "26 01:00"]),
        ("0 * * * *", BACK + timedelta(hours=1), ["24 23:00", "25 00:00", "25 01:00", "25 02:00"]),
    ],
)
def test_a_change_of_the_clocks(expression: str, begin: datetime, expected: list[str]) -> None:
    assert due(expression, begin, len(expected)) == expected


def test_a_search_in_the_second_of_two_hours_finds_nothing_that_is_earlier() -> None:
    second = datetime(2026, 10, 25, 1, 20, tzinfo=UTC)  # 02:20 in Berlin, for the second time
    assert due("45 2 * * *", second, 1) == ["26 01:45"]


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "has 0 fields, not 5: minute, hour, day of month, month, day of week"),
        ("* * * *", "has 4 fields"),
        ("0 * * * * *", "has 6 fields"),
        ("@daily", "has 1 fields"),
        ("60 * * * *", "has a minute that is not valid: '60'"),
        ("0 24 * * *", "has a hour that is not valid: '24'"),
        ("0 0 0 * *", "has a day of month that is not valid: '0'"),
        ("0 0 1 FOO *", "has a month that is not valid: 'FOO'"),
        ("0 0 * * 8", "has a day of week that is not valid: '8'"),
        ("*/0 * * * *", "has a minute that is not valid: '\\*/0'"),
        ("0 0 30 2 *", "is never due"),
        ("* * */20 * 1L", "is never due"),
    ],
)
def test_a_wrong_expression_is_refused_with_its_wrong_field(expression: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        Cron(expression)
    assert caught.value.code == E_BAD_ARGUMENT


@pytest.mark.parametrize("zone", ["Nowhere/City", "../../etc/passwd", "America", "", "europe\0"])
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(UsageError, match="is not known"):
        Cron("* * * * *", zone)


@given(st.text(alphabet="0123456789*/,-#LWA²MON ", max_size=20))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        found = Cron(text).first_after(1_790_000_000)
    except UsageError:
        return
    assert found is None or found > 1_790_000_000


_ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago"]
_FIELDS = st.tuples(
    st.sampled_from(["*", "0", "30", "*/7", "15,45"]),
    st.sampled_from(["*", "0", "2", "1-3", "*/5"]),
)


@settings(max_examples=50, deadline=None)
@given(
    _FIELDS,
    st.sampled_from(_ZONES),
    st.integers(1_767_225_600, 1_798_761_600),  # 2026
    st.integers(0, 3 * 86_400),
)
def test_due_times_do_not_depend_on_where_a_search_begins(
    fields: tuple[str, str], zone: str, begin: int, first: int
) -> None:
    cron = Cron(f"{fields[0]} {fields[1]} * * *", zone)
    end = begin + 4 * 86_400
    whole = list(takewhile(lambda one: one <= end, cron.after(begin)))
    middle = begin + first
    parts = list(takewhile(lambda one: one <= middle, cron.after(begin)))
    parts += takewhile(lambda one: one <= end, cron.after(middle))
    assert parts == whole == sorted(set(whole))
    assert all(one > begin and one % 60 == 0 for one in whole)
