"""Tests of the checker of publishes and reads (`support/torture/standby/linear.py`): it finds every
broken rule. A complaint about anything else fails a torture.
"""

from __future__ import annotations

from support.torture.bucket.history import BucketHistory, Sent
from support.torture.standby.linear import (
    NEVER,
    Commit,
    Look,
    Publish,
    Read,
    violations,
    wrong_versions,
)

# The first history breaks no rule, and each test changes it so that it breaks one.
A = Publish("one", 0, 2, 1.0, 1.1, 0)
B = Publish("two", 64, 1, 2.0, 2.1, 2)
C = Publish("one", 128, 1, 3.0, 3.1, 70_000)
ROWS = ((0, 0), (1, 1), (2, 64), (70_000, 128))
LATE = Read(4.0, 4.1, 0, NEVER, ROWS)


def found(publishes: list[Publish], reads: list[Read], lost: set[int] | None = None) -> str:
    (text,) = violations(publishes, reads, lost or ())
    return text


def test_an_acknowledged_message_that_a_later_read_does_not_have_is_found() -> None:
    text = found([A, B, C], [Read(4.0, 4.1, 0, NEVER, ROWS[:3])])
    assert text.startswith("message 128 was acknowledged at 70000 0.900 s before a read began")


def test_a_message_that_is_read_before_it_is_sent_is_found() -> None:
    early = Read(0.5, 0.6, 0, NEVER, ROWS[:2])
    assert "message 0 at 0 was read before it was sent" in violations([A], [early])


def test_a_message_that_disappears_is_found() -> None:
    unanswered = Publish("one", 0, 1, 1.0)
    first, later = Read(2.0, 2.1, 0, NEVER, ((0, 0),)), Read(3.0, 3.1, 0, NEVER, ())
    assert found([unanswered], [first, later]) == ("a read has None at 0, and an earlier one had 0")


def test_an_offset_with_another_message_is_found() -> None:
    one, other = Publish("one", 0, 1, 1.0), Publish("two", 64, 1, 1.0)
    reads = [Read(2.0, 2.1, 0, NEVER, ((0, 0),)), Read(3.0, 3.1, 0, NEVER, ((0, 64),))]
    assert found([one, other], reads) == "a read has 64 at 0, and an earlier one had 0"


def test_messages_of_a_producer_in_another_order_are_found() -> None:
    first, second = Publish("one", 0, 1, 1.0), Publish("one", 64, 1, 1.05)
    text = found([first, second], [Read(4.0, 4.1, 0, NEVER, ((0, 64), (1, 0)))])
    assert text == ("message 64 is at 0, and message 0, which the same producer sent before, at 1")


def test_a_later_publish_at_a_lower_offset_is_found() -> None:
    first, second = Publish("one", 0, 1, 1.0, 1.1, 5), Publish("two", 64, 1, 2.0, 2.1, 4)
    text = found([first, second], [Read(4.0, 4.1, 0, NEVER, ((4, 64), (5, 0)))])
    assert text == (
        "message 64 is at 4, and message 0, which was acknowledged before that one was sent, at 5"
    )


def test_a_publish_in_two_pieces_is_found() -> None:
    text = found([Publish("one", 0, 2, 1.0)], [Read(4.0, 4.1, 0, NEVER, ((0, 0), (9, 1)))])
    assert text == "the publish of message 0, acknowledged at -1, is at [0, 9]"


# The checker of versions

FIRST = Commit(0, Sent(0, 2, 1.0, acked_s=1.1))
SECOND = Commit(1, Sent(64, 2, 2.0, acked_s=2.1))


def test_an_answered_version_that_is_gone_is_found() -> None:
    (text,) = wrong_versions([FIRST, SECOND], [Look(2.35, 2.4, 0)])
    assert text == "version 1 was committed 0.250 s before a question, and the answer was 0"


def test_a_version_before_its_commit_is_found() -> None:
    (text,) = wrong_versions([FIRST, SECOND], [Look(1.5, 1.6, 1)])
    assert text == "the answer was version 1 before its commit was sent"
    (text,) = wrong_versions([], [Look(1.5, 1.6, 0)])
    assert text == "the answer was version 0 before its commit was sent"


def test_a_lost_transaction_is_found() -> None:
    history = BucketHistory((("fast", False),), 0.5)
    sent = history.send(2, 1.0)
    history.committed(0, sent, 7, 1.1)
    history.lose_disk(-1)
    history.check(0, history.to_check(0))
    (text,) = history.complaints
    assert text.endswith("at offset 7 and is lost, although its commit was answered")
