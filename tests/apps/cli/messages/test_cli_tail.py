"""Tests of `zsq tail` for a topic with parts, one of whose brokers is away."""

from __future__ import annotations

import io
from typing import Any

import pytest

from zsq.apps.cli.messages import tail
from zsq.apps.cli.options import Stopping
from zsq.transport.block.block import pack
from zsq.transport.client.core.message import Fetched
from zsq.transport.errors import E_TIMEOUT, BrokerUnreachable

pytestmark = pytest.mark.slow


class Part:
    """A part with one block. `away`: this many reads fail."""

    def __init__(self, *bodies: bytes, away: int = 0) -> None:
        self.block = pack(list(bodies), first_offset=0)
        self.away = away

    def bounds(self) -> tuple[int, int]:
        found = self.read(0)
        return found.start, found.head

    def read(self, offset: int, max_bytes: int = 0) -> Fetched:
        self.away -= 1
        if self.away >= 0:
            raise BrokerUnreachable(E_TIMEOUT, "no broker answers")
        head = self.block.next_offset
        return Fetched(0, head, [self.block] if offset < head else [], head)


def log_of(name: str, part: Part, *, is_part: bool = True) -> tail.TailedLog:
    reader: Any = part
    return tail.TailedLog(
        name, reader, tail.beginning("earliest"), tail.bodies_from, is_part=is_part
    )


def test_the_other_parts_go_on_until_the_broker_is_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tail, "AWAY_S", 0.0)
    logs = [log_of("t#0", Part(b"a", b"b", away=3)), log_of("t#1", Part(b"c"))]
    out = io.BytesIO()
    tail.follow_logs(logs, out, 3, Stopping(), follow=True)
    assert out.getvalue() == b"c\na\nb\n"
    said = capsys.readouterr().err
    assert said == "zsq: t#0 is not read for now: no broker answers\nzsq: t#0 is read again\n"


def test_a_part_that_does_not_answer_is_asked_again_after_a_pause() -> None:
    part = Part(b"a", away=1)
    logs = [log_of("t#0", part), log_of("t#1", Part(b"c"))]
    tail.follow_logs(logs, io.BytesIO(), 1, Stopping(), follow=True)
    assert part.away == 0
    assert tail._fetched(logs[0], Stopping(), True) is None
    assert part.away == 0, "it was not asked"


@pytest.mark.parametrize(("is_part", "follow"), [(True, False), (False, True)])
def test_the_error_is_raised_where_nothing_else_can_be_read(is_part: bool, follow: bool) -> None:
    log = log_of("t", Part(b"a", away=1), is_part=is_part)
    with pytest.raises(BrokerUnreachable):
        tail.follow_logs([log], io.BytesIO(), None, Stopping(), follow=follow)


def test_what_retention_removes_ahead_of_a_tail_is_lost_but_not_what_it_removed_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Log:
        """A log whose older messages are removed at each read."""

        def __init__(self) -> None:
            self.start = 10

        def bounds(self) -> tuple[int, int]:
            return self.start, 40

        def read(self, offset: int, max_bytes: int = 0) -> Fetched:
            start = self.start
            self.start += 20
            block = pack([b"x"] * 5, first_offset=start)
            return Fetched(start, 40, [block], block.next_offset)

    reader: Any = Log()
    log = tail.TailedLog("t", reader, tail.beginning(5), tail.bodies_from)
    out = io.BytesIO()
    tail.follow_logs([log], out, 10, Stopping(), follow=True)
    assert (out.getvalue(), log.lost) == (b"x\n" * 10, 15)
    assert capsys.readouterr().err == (
        "zsq: offsets 5 to 9 of topic t cannot be read: the topic now begins at offset 10; older "
        "messages were removed\n"
        "zsq: offsets 15 to 29 of topic t cannot be read: the topic now begins at offset 30; older "
        "messages were removed\n"
    )
