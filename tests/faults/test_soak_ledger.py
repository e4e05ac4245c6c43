"""Tests of the soak's ledger and of its growth check (`support/soak`): they complain about
everything that has no explanation. A complaint about anything else fails a soak.
"""

from __future__ import annotations

import pytest
from support.soak import flat
from support.soak.flat import MIB, Sample
from support.soak.ledger import Channel, Ledger, Topic, body_of, number_of

S = 1_000_000_000


class Book:
    """A ledger with one topic, one channel with two consumers, and a clock that stands still."""

    def __init__(self) -> None:
        self.now_ns = 1_000 * S
        self.ledger = Ledger(lambda: self.now_ns)
        self.topic: Topic = self.ledger.add_topic("t")
        self.channel: Channel = self.ledger.add_channel(self.topic, "c", (0, 0), 2)

    def publish(self, count: int = 4, offset: int = 0, due_s: float = 0.0) -> list[int]:
        """Publish messages that are acknowledged. Read them in the log, unless they are delayed."""
        numbers = list(
            self.ledger.sent(self.topic, count, self.now_ns + int(due_s * S) if due_s else 0)
        )
        self.ledger.acknowledged(numbers, -1 if due_s else offset)
        if not due_s:
            self.log(numbers, offset)
        return numbers

    def log(self, numbers: list[int], offset: int) -> None:
        for index, number in enumerate(numbers):
            self.ledger.logged(self.topic, offset + index, body_of(number, 9))

    def get(self, offset: int, number: int, consumer: int = 0, attempts: int = 1) -> bool:
        return self.ledger.got(self.channel, consumer, offset, attempts, body_of(number, 9))

    def finish(self, offset: int, number: int, consumer: int = 0, attempts: int = 1) -> None:
        self.get(offset, number, consumer, attempts)
        self.ledger.told(self.channel, [offset])
        self.ledger.confirmed(self.channel, consumer, [offset])

    def complaint(self) -> str:
        """Return the only complaint."""
        (found,) = self.ledger.complaints
        self.ledger.complaints.clear()
        return found


@pytest.fixture
def book() -> Book:
    return Book()


def test_a_body_carries_its_number_and_is_found_altered() -> None:
    body = body_of(17, 40)
    assert number_of(body) == 17
    assert number_of(body[:20] + b"!" + body[21:]) == -1
    assert number_of(b"") == -1


def test_a_lost_message_is_found(book: Book) -> None:
    numbers = list(book.ledger.sent(book.topic, 2))
    book.ledger.acknowledged(numbers)
    assert book.ledger.missing() == numbers
    assert book.ledger.unexplained()["unexplained"] == 2
    assert (
        book.complaint() == "acknowledged, and neither in the log nor cancelled nor removed: 0, 1"
    )


def test_a_gap_in_the_log_is_found(book: Book) -> None:
    numbers = book.ledger.sent(book.topic, 2)
    book.ledger.logged(book.topic, 0, body_of(numbers[0], 9))
    book.ledger.logged(book.topic, 2, body_of(numbers[1], 9))
    assert book.complaint() == "t: after offset 1 the log goes on with 2"


def test_a_delayed_message_that_never_comes_is_found_when_it_is_due(book: Book) -> None:
    numbers = book.publish(1, due_s=5)
    assert book.ledger.missing() == []
    book.now_ns += 5 * S
    assert book.ledger.missing() == numbers


def test_an_early_delayed_message_is_found(book: Book) -> None:
    numbers = book.publish(1, due_s=5)
    book.get(0, numbers[0])
    assert book.complaint() == f"t: c gets 0, {5 * S} ns before it is due"


def test_a_cancelled_message_that_comes_is_found(book: Book) -> None:
    numbers = book.publish(1, due_s=5)
    book.ledger.cancelling(numbers)
    book.ledger.cancelled(numbers, [True])
    book.now_ns += 9 * S
    book.log(numbers, 0)
    assert book.complaint() == "t: the log holds 0 at 0, which was cancelled"


def test_a_phantom_and_a_message_of_another_topic_are_found(book: Book) -> None:
    book.get(0, 5)
    assert "which was never sent there" in book.complaint()
    other = book.ledger.add_topic("u")
    book.get(0, book.ledger.sent(other, 1)[0])
    assert "which was never sent there" in book.complaint()


def test_an_altered_body_is_found(book: Book) -> None:
    book.publish()
    book.ledger.got(book.channel, 0, 0, 1, body_of(0, 9)[:-1] + b"!")
    assert "is altered" in book.complaint()


def test_a_message_that_is_stored_twice_is_found(book: Book) -> None:
    numbers = book.publish()
    book.log(numbers[:1], 4)
    assert book.complaint() == "t: 0 is stored twice: at 0, and the log holds 4"


def test_an_offset_with_two_messages_is_found(book: Book) -> None:
    numbers = book.publish()
    book.get(1, numbers[0])
    assert "offset 1 named 1, and now c gets 0" in book.complaint()


@pytest.mark.parametrize("consumer", [0, 1])
def test_a_duplicate_after_a_confirmed_finish_is_found(book: Book, consumer: int) -> None:
    book.publish()
    book.finish(0, 0)
    book.get(0, 0, consumer, attempts=2)
    assert "came again" in book.complaint()


def test_an_old_delivery_in_another_consumers_hands_must_be_refused(book: Book) -> None:
    book.publish()
    book.finish(0, 0, attempts=2)
    assert not book.get(0, 0, consumer=1, attempts=1)
    assert book.ledger.complaints == []
    book.ledger.confirmed(book.channel, 1, [0])
    assert "was confirmed to consumer 0 and again to 1" in book.ledger.complaints[0]


def test_a_finish_that_is_confirmed_under_an_old_lease_is_found(book: Book) -> None:
    book.publish()
    book.get(0, 0, 0, attempts=1)
    book.get(0, 0, 1, attempts=2)
    book.ledger.confirmed(book.channel, 0, [0])
    assert "another has a later attempt" in book.complaint()


def test_attempts_that_fall_are_found(book: Book) -> None:
    book.publish()
    book.get(0, 0, attempts=3)
    book.get(0, 0, attempts=2)
    assert "which had it at attempt 3" in book.complaint()


def test_a_removal_of_what_a_channel_has_not_finished_is_found(book: Book) -> None:
    for number in book.publish():
        if number != 1:
            book.finish(number, number)
    book.ledger.removed(book.topic, 4)
    assert book.complaint() == "t: offset 1 was removed, and c had not finished it"


def test_a_removal_of_a_message_that_was_never_seen_is_found(book: Book) -> None:
    book.ledger.removed(book.topic, 1)
    assert book.ledger.complaints[0] == "t: offset 0 was removed, and nobody has ever seen it"


def test_an_empty_channel_that_never_gave_out_a_message_is_found(book: Book) -> None:
    for number in book.publish():
        if number != 2:
            book.finish(number, number)
    assert book.ledger.unexplained()["unexplained"] == 1
    assert book.complaint() == "t/c is empty, and never finished offsets: 2"


def test_a_channel_is_owed_what_lies_behind_its_start(book: Book) -> None:
    book.publish()
    late = book.ledger.add_channel(book.topic, "late", (1, 2), 1)
    book.ledger.got(late, 0, 1, 1, body_of(1, 9))
    assert book.ledger.complaints == [], "it may have begun there"
    book.ledger.got(late, 0, 0, 1, body_of(0, 9))
    assert "the channel begins behind it" in book.complaint()
    for number in range(4):
        book.finish(number, number)
    assert book.ledger.unexplained()["unexplained"] == 3
    assert "t/late is empty, and never finished offsets: 1, 2, 3" in book.complaint()


def test_dead_letters_explain_and_a_dead_letter_of_a_finished_message_is_found(book: Book) -> None:
    for number in book.publish():
        if number:
            book.finish(number, number)
    book.get(0, 0)
    book.ledger.dead(book.channel, 0, body_of(0, 9), book.now_ns)
    assert book.ledger.unexplained()["unexplained"] == 0
    book.ledger.dead(book.channel, 1, body_of(1, 9), book.now_ns)
    assert "is a dead letter after its finish was confirmed" in book.complaint()


def test_after_a_seek_back_all_later_messages_are_expected_again(book: Book) -> None:
    for number in book.publish():
        book.finish(number, number)
    book.ledger.seek_begins(book.channel, turbulent=False)
    book.ledger.seek_answered(book.channel, 2)
    book.get(2, 2)
    assert book.ledger.complaints == [], "again, as attempt 1"
    book.ledger.removed(book.topic, 3)
    assert book.complaint() == "t: offset 2 was removed, and c had not finished it"
    book.get(1, 1, attempts=2)
    assert "came again" in book.complaint()


def test_an_old_dead_letter_explains_nothing_behind_a_seek(book: Book) -> None:
    book.publish(1)
    died_ns = book.now_ns
    book.now_ns += S
    book.ledger.seek_begins(book.channel, turbulent=False)
    book.ledger.seek_answered(book.channel, 0)
    book.ledger.dead(book.channel, 0, body_of(0, 9), died_ns)
    assert book.ledger.unexplained()["unexplained"] == 1


def test_a_seek_forward_passes_what_waits_and_only_that(book: Book) -> None:
    book.publish()
    book.ledger.seek_begins(book.channel, turbulent=False)
    book.ledger.seek_answered(book.channel, 3)
    assert book.ledger.unexplained()["unexplained"] == 1
    assert book.complaint() == "t/c is empty, and never finished offsets: 3"
    book.get(2, 2)
    assert "the channel begins behind it" in book.complaint()


def looks(after: dict[str, float], title: str = "zsq: storage t") -> list[Sample]:
    """Make ten samples for each third of the run. `after` changes values in the last third."""
    plain = {"descriptors": 20.0, "threads": 5.0, "memory": 9.0 * MIB}
    whole = {**plain, "files": 60.0, "bytes": 5.0 * MIB}
    last = {"all": whole, title: plain}
    last = {
        who: {figure: after.get(f"{who} {figure}", value) for figure, value in row.items()}
        for who, row in last.items()
    }
    found = [Sample(number, {title: plain}, whole) for number in range(20)]
    return [
        *found,
        *(Sample(number, {title: last[title]}, last["all"]) for number in range(20, 30)),
    ]


@pytest.mark.parametrize(
    ("who", "value"),
    [
        ("zsq: storage t descriptors", 50.0),
        ("zsq: storage t threads", 7.0),
        ("zsq: storage t memory", 30.0 * MIB),
        ("all descriptors", 200.0),
        ("all threads", 30.0),
        ("all memory", 60.0 * MIB),
        ("all files", 200.0),
        ("all bytes", 60.0 * MIB),
    ],
)
def test_growth_is_found(who: str, value: float) -> None:
    (found,) = flat.growths(looks({who: value}), 0, 30)
    assert found.startswith(f"{who.rpartition(' ')[2]} of {who.rpartition(' ')[0]} grew from ")
