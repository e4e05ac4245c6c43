"""Tests of silences: which alarms they cover, and when they end."""

from __future__ import annotations

import pytest

from zsq.actors.alarms.backlog import AlarmSubject
from zsq.actors.alarms.silences import SILENCES_MAX, Silence, Silences, from_json
from zsq.transport.errors import Refused

DEPTH = AlarmSubject("t", "c", "depth")


def silence(topic: str = "", channel: str = "", kind: str = "", until_ns: int = 0) -> Silence:
    return Silence(AlarmSubject(topic, channel, kind), "ann", 5, until_ns)


@pytest.mark.parametrize(
    ("place", "covered"),
    [
        (("t", "c", "depth"), True),
        (("t", "c", "age_s"), False),
        (("t", "c"), True),
        (("t",), True),
        (("t", "", "depth"), False),
        (("t", "d"), False),
        (("u",), False),
        ((), False),  # the broker's own alarms
    ],
)
def test_a_silence_covers_an_alarm_or_all_below_its_place(
    place: tuple[str, ...], covered: bool
) -> None:
    topic, channel, kind = (*place, "", "", "")[:3]
    assert silence(topic, channel, kind).covers(DEPTH) is covered
    assert silence().covers(AlarmSubject("", "", "bucket"))


def test_an_acknowledgement_ends_with_its_alarm_and_a_silence_with_its_time() -> None:
    acknowledged, timed = silence(*DEPTH), silence("u", until_ns=100)
    silences = Silences(map(from_json, [acknowledged.as_json(), timed.as_json()]))
    assert silences.pass_by([], 99, settled=False) == [], "alarms may be raised after a start"
    assert silences.pass_by([DEPTH], 99, settled=True) == []
    assert silences.of(DEPTH) == acknowledged
    assert silences.pass_by([DEPTH], 100, settled=True) == [timed]
    assert silences.pass_by([], 101, settled=True) == [acknowledged]
    assert (silences.rows(), silences.of(DEPTH)) == ([], None)


def test_silences_have_a_limit_and_one_for_each_place() -> None:
    silences = Silences()
    for number in range(SILENCES_MAX):
        silences.add(silence(f"t{number}"))
    silences.add(silence("t0", until_ns=7))
    with pytest.raises(Refused, match="E_LIMIT"):
        silences.add(silence("more"))
    assert [one.until_ns for one in silences.end(AlarmSubject("t0", "c", ""))] == [7]
    for wrong in ({}, {**silence().as_json(), "by": 1}):
        with pytest.raises((ValueError, KeyError)):
            from_json(wrong)
