"""Tests of the bucket in the supervisor: reports of the archive actor, and the handover."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.actors.bucket.supervision import BucketSupervision
from zsq.actors.runtime.port import Mail
from zsq.actors.supervisor.extension_point import SupervisorParts
from zsq.actors.supervisor.supervisor import EXIT_NOT_PRIMARY
from zsq.transport.errors import E_BUCKET, E_NOT_FOUND, Refused
from zsq.transport.wire import protocol as p

SHIPS = {"shipping": "open", "standbys": 1}
SHIPPED = {"storage": {"extension_settled": True}}


class Place:
    """A broker with an archive actor, as the extension sees it."""

    def __init__(self, **stats: Any) -> None:
        self.sent: list[Any] = []
        self.stops: list[tuple[int, str]] = []
        self.archive: Any = SimpleNamespace(
            spec=SimpleNamespace(kind="archive", key=2), envelope=(b"archive",), state="up", stats=stats,
        )  # fmt: skip
        topic = SimpleNamespace(spec=SimpleNamespace(kind="topic", key=7))
        self.processes = SimpleNamespace(
            children={2: self.archive, 7: topic},
            send=lambda child, message: self.sent.append(message),
        )
        self.registry = SimpleNamespace(bucket="", note_bucket=lambda archive: None)
        self.state = SimpleNamespace(
            stopping=False, groups={}, epoch=0, processes=self.processes, registry=self.registry
        )
        singles = SimpleNamespace(of_kind=lambda kind: [self.archive] if kind == "archive" else [])
        nothing = cast("Any", None)
        parts = SupervisorParts(
            cast("Any", self.state), nothing, cast("Any", singles), nothing, dict,
            lambda code, why: self.stops.append((code, why)),
        )  # fmt: skip
        self.extension = BucketSupervision(parts)


def test_only_the_archive_actor_wakes_a_topic_that_sleeps() -> None:
    place = Place()
    woken: list[str] = []
    place.state.groups = {
        name: SimpleNamespace(
            row=SimpleNamespace(uuid=name * 32), is_dormant=asleep,
            want=lambda channel, then, name=name: woken.append(name + channel),
        )
        for name, asleep in (("a", True), ("b", False), ("c", True))
    }  # fmt: skip
    hears = place.extension.hears
    assert not hears(Mail((b"archive",), p.Stop(), []))
    assert hears(Mail((b"stranger",), p.WakeTopic("a" * 32), []))
    for uuid in ("b" * 32, "d" * 32):
        assert hears(Mail((b"archive",), p.WakeTopic(uuid), []))
    assert woken == []
    assert hears(Mail((b"archive",), p.WakeTopic("a" * 32), []))
    assert woken == ["a"]


def test_a_broker_that_is_replaced_stops_at_once() -> None:
    place = Place(epoch=3, shipping="lost", trouble="two has taken over")
    place.extension.pulse(place.archive)
    assert place.state.epoch == 3
    assert [code for code, _ in place.stops] == [EXIT_NOT_PRIMARY]
    assert "two has taken over" in place.stops[0][1]


@pytest.mark.parametrize(
    ("stats", "code"),
    [({"shipping": "closed"}, E_BUCKET), ({"shipping": "open", "standbys": 0}, E_NOT_FOUND)],
)
def test_a_broker_without_a_bucket_or_a_standby_cannot_hand_over(
    stats: dict[str, Any], code: str
) -> None:
    with pytest.raises(Refused) as refused:
        Place(**stats).extension.hand_over()
    assert refused.value.code == code


@pytest.mark.parametrize("is_shipped", [True, False])
def test_a_broker_hands_over_when_the_bucket_has_all_of_its_topics(is_shipped: bool) -> None:
    place = Place(**SHIPS)
    assert place.extension.hand_over()
    assert place.stops == [], "the client gets its answer first"
    place.extension.tick(0)
    assert [code for code, _ in place.stops] == [EXIT_NOT_PRIMARY]
    place.extension.stopping()
    assert place.sent == [p.ShipNow()]
    assert not place.extension.may_end(), "the last pulse of the topic may still arrive"
    place.extension.last_pulse(7, SHIPPED if is_shipped else {})
    assert place.extension.may_end() is is_shipped
    assert place.sent[1:] == ([p.ShipNow(is_last=True)] if is_shipped else [])
    assert place.extension.may_end() is is_shipped
