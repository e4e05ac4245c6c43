"""Tests of `zsq redrive` with a broker: dead letters go back to the channel that gave them up, and
to no other channel.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from support.broker import wait_for
from support.zsq_command import run_text

import zsq
from local_setup.broker import LocalBroker, temporary_broker
from zsq.transport.client.core.redrive import BEHIND, NO_LETTER, READY, SETTLED, still_held

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]
KILLED = (
    "import os, signal, sys\n"
    "from zsq.transport.client.core.message import Message\n"
    "Message.finish = lambda self: os.kill(os.getpid(), signal.SIGKILL)\n"
    "from zsq.apps.cli.app import run\n"
    "run(['redrive', sys.argv[1], '--all'])\n"
)


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with temporary_broker("--no-listen", prefix="zsq-test-") as one:
        yield one


@pytest.fixture
def run(broker: LocalBroker) -> Run:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return run_text(*arguments, ZSQ_URL=broker.url)

    return run


def die(broker: LocalBroker, topic: str, *bodies: bytes, channel: str = "c") -> None:
    """Publish these messages and let the channel reject them. Another channel finishes them."""
    with zsq.Admin(broker.url) as admin:
        admin.create_channel(topic, channel)
        admin.create_channel(topic, "other")
    with zsq.Producer(broker.url) as producer:
        producer.publish_many(topic, bodies, keys=bodies, headers=[{"own": 1}] * len(bodies))
    with (
        zsq.Consumer(topic, channel, url=broker.url) as consumer,
        zsq.Consumer(topic, "other", url=broker.url) as other,
    ):
        for _ in bodies:
            one, two = consumer.receive(10), other.receive(10)
            assert one is not None
            assert two is not None
            one.reject("why")
            two.finish()
    with zsq.Reader(f"{topic}.{channel}.dead", url=broker.url, patient=True) as reader:
        wait_for(lambda: head(reader) >= len(bodies), 20, "dead letters")


def head(reader: zsq.Reader) -> int:
    """Return the end of the topic. It is 0 if the dead-letter topic does not exist yet."""
    try:
        return reader.bounds()[1]
    except zsq.NotFound:
        return 0


def take(broker: LocalBroker, topic: str, channel: str, count: int) -> list[zsq.Message]:
    """Receive and finish exactly `count` messages, and check that no more arrive."""
    with zsq.Consumer(topic, channel, url=broker.url) as consumer:
        found = [consumer.receive(10) for _ in range(count)]
        for message in found:
            assert message is not None
            message.finish()
        assert consumer.receive(0.3) is None
        return [message for message in found if message is not None]


def test_for_nothing_no_channel_is_made(broker: LocalBroker, run: Run) -> None:
    """Such a channel would keep messages of the topic and prevent the topic from being drained."""
    with zsq.Admin(broker.url) as admin:
        admin.create_topic("never.c.dead")
        assert run("redrive", "never.c.dead", "--all").stdout == "nothing to send back\n"
        assert json.loads(run("redrive", "never.c.dead", "--all", "--json").stdout) == {
            "sent": [],
            "left": [],
            "not_selected": 0,
            "dry_run": False,
        }
        assert admin.topics()["never.c.dead"] == []


def test_letters_come_back_to_their_channel_only(broker: LocalBroker, run: Run) -> None:
    die(broker, "t", b"a", b"b", b"c")
    assert run("redrive", "t.c.dead", "-n", "1").stdout == "1 to t, for channel c\n"
    assert run("redrive", "t.c.dead", "--all").stdout == "2 to t, for channel c\n"
    assert run("redrive", "t.c.dead", "--all").stdout == "nothing to send back\n"
    back = take(broker, "t", "c", 3)
    assert [(m.body, m.key, m.attempts) for m in back] == [
        (b"a", b"a", 1),
        (b"b", b"b", 1),
        (b"c", b"c", 1),
    ]
    headers = back[0].headers
    assert (
        headers["own"],
        headers["zsq-redriven-offset"],
        headers["zsq-redriven-error"],
        "zsq-channel" in headers,
    ) == (1, 0, "why", False)
    assert not [name for name in headers if name.startswith("zsq-dead-")]
    assert take(broker, "t", "other", 0) == []


def test_chosen_letters_are_sent_back_or_discarded(broker: LocalBroker, run: Run) -> None:
    die(broker, "some", b"a", b"b", b"c", b"d")
    ended = run("redrive", "some.c.dead", "--offset", "2", "--offset", "0")
    assert (ended.stdout, ended.returncode) == ("2 to some, for channel c\n", 0)
    assert [one.body for one in take(broker, "some", "c", 2)] == [b"a", b"c"]
    assert run("redrive", "some.c.dead", "--offset", "1", "--discard").stdout == "1 discarded\n"
    ended = run("redrive", "some.c.dead", "--offset", "1", "--offset", "2", "--json")
    assert ended.returncode == 1
    found = json.loads(ended.stdout)
    assert (found["sent"], found["left"]) == ([], [{"messages": 2, "why": SETTLED}])
    assert run("redrive", "some.c.dead", "--all").stdout == "1 to some, for channel c\n"
    assert [one.body for one in take(broker, "some", "c", 1)] == [b"d"]
    ended = run("channel", "skip", "some.c.dead", "redrive", "3", "9", "--yes")
    assert (ended.stdout, ended.returncode) == ("", 1)
    assert "not skipped: 2 messages (offsets 3, 9)" in ended.stderr
    for wrong in (
        ["--all", "-n", "1"],
        ["--discard", "--all"],
        ["--discard", "--offset", "1", "--to", "x"],
        ["--offset", "1", "--error", "x"],
        ["--offset", "1", "--dry-run"],
    ):
        assert run("redrive", "some.c.dead", *wrong).returncode == 2


def test_a_redriven_message_that_dies_again_is_left_to_the_next_run(
    broker: LocalBroker, run: Run
) -> None:
    die(broker, "again", b"a")
    assert run("redrive", "again.c.dead", "--all").returncode == 0
    with zsq.Consumer("again", "c", url=broker.url) as consumer:
        message = consumer.receive(10)
        assert message is not None
        message.reject("once more")
    with zsq.Reader("again.c.dead", url=broker.url) as reader:
        wait_for(lambda: reader.bounds()[1] == 2, 10, "a second letter")
        headers = reader.message(1).headers
    assert (headers["zsq-dead-error"], headers["zsq-redriven-error"], "zsq-channel" in headers) == (
        "once more",
        "why",
        False,
    )
    assert run("redrive", "again.c.dead", "--all").stdout == "1 to again, for channel c\n"


def test_dead_letters_can_be_sent_to_another_topic_or_channel(
    broker: LocalBroker, run: Run
) -> None:
    die(broker, "from", b"a", b"b")
    with zsq.Admin(broker.url) as admin:
        admin.create_channel("elsewhere", "x")
        admin.create_channel("elsewhere", "y")
    assert (
        run("redrive", "from.c.dead", "-n", "1", "--to", "elsewhere").stdout == "1 to elsewhere\n"
    )
    assert (
        run("redrive", "from.c.dead", "-n", "1", "--to", "elsewhere", "--channel", "y").stdout
        == "1 to elsewhere, for channel y\n"
    )
    assert [message.body for message in take(broker, "elsewhere", "x", 1)] == [b"a"]
    assert [message.body for message in take(broker, "elsewhere", "y", 2)] == [b"a", b"b"]


def test_a_dead_letter_without_a_target_stays(broker: LocalBroker, run: Run) -> None:
    die(broker, "gone", b"a")
    with zsq.Admin(broker.url) as admin:
        admin.delete_channel("gone", "c", force=True)
        done = run("redrive", "gone.c.dead", "--all")
        text = (
            "1 left: channel 'c' of topic 'gone' does not exist; choose another target with "
            "--to and --channel\n"
        )
        assert (done.returncode, done.stdout) == (1, text)
        admin.delete_topic("gone", force=True)
        done = run("redrive", "gone.c.dead", "--all")
        assert (done.returncode, "topic 'gone' does not exist" in done.stdout) == (1, True)
        assert "gone" not in {one["topic_name"] for one in admin.stats()["topics"]}, (
            "it was not made again"
        )
        admin.create_channel("new", "x")
    done = run("redrive", "gone.c.dead", "--all", "--to", "neww")
    assert done.stdout.endswith("--to and --channel. Did you mean 'new'?\n")
    assert run("redrive", "gone.c.dead", "--all", "--to", "new").stdout == "1 to new\n"


def test_messages_that_are_no_letters_stay_and_keep_none_back(
    broker: LocalBroker, run: Run
) -> None:
    die(broker, "mixed", b"a")
    with zsq.Producer(broker.url) as producer:
        producer.publish_many("mixed.c.dead", [b"x", b"y"])
    done = run("redrive", "mixed.c.dead", "--all")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "1 to mixed, for channel c",
        "2 left: not dead letters of a channel: their headers do not name topic, channel and uuid",
    ]


def test_a_redrive_of_a_topic_without_dead_letters_says_that_it_made_a_channel(
    broker: LocalBroker, run: Run
) -> None:
    """The new channel keeps the topic's log files. If the command deleted the channel again, its
    messages would go to the next channel that is created in the topic.
    """
    with zsq.Producer(broker.url) as producer:
        producer.publish_many("plain", [b"x", b"y"])
    done = run("redrive", "plain", "--all")
    assert (done.returncode, done.stdout[:10]) == (1, "2 left: no")
    assert "zsq channel delete plain redrive --force" in done.stderr
    assert "zsq channel delete" not in run("redrive", "plain", "--all").stderr, (
        "it was there before"
    )


def test_letters_are_selected_by_their_content_and_counted_before(
    broker: LocalBroker, run: Run
) -> None:
    bodies = [b'{"user": %d, "n": %d}' % (number % 2, number) for number in range(READY + 4)]
    with zsq.Admin(broker.url) as admin:
        admin.create_channel("stock", "c")
    with zsq.Producer(broker.url) as producer:
        producer.publish_many("stock", bodies, keys=[b"%d" % (n % 3) for n in range(len(bodies))])
    with zsq.Consumer("stock", "c", url=broker.url) as consumer:
        for number in range(len(bodies)):
            message = consumer.receive(10)
            assert message is not None
            message.reject(f"no stock of item {number}")
    with zsq.Reader("stock.c.dead", url=broker.url, patient=True) as reader:
        wait_for(lambda: head(reader) >= len(bodies), 20, "dead letters")
    last = READY + 3
    lines = ["1 to stock, for channel c", f"{last:,} not selected"]
    selected = ("redrive", "stock.c.dead", "--all", "--error", f"item {last}")
    assert run(*selected, "--dry-run").stdout.splitlines() == [f"{one} (dry run)" for one in lines]
    assert run(*selected).stdout.splitlines() == lines
    assert run(*selected).stdout.splitlines() == [lines[1]]
    assert json.loads(
        run("redrive", "stock.c.dead", "--all", "--text", '"n": 5}', "--json").stdout
    ) == {
        "sent": [{"topic": "stock", "channel": "c", "messages": 1}],
        "left": [],
        "not_selected": last - 1,
        "dry_run": False,
    }
    by_both = run("redrive", "stock.c.dead", "-n", "2", "--key", "1", "--field", "user=0")
    assert (by_both.returncode, by_both.stdout.splitlines()[0]) == (0, "2 to stock, for channel c")
    back = [message.body for message in take(broker, "stock", "c", 4)]
    assert back == [bodies[last], bodies[5], bodies[4], bodies[10]]
    for given, text in (("=x", "NAME or NAME=VALUE"), ("\udcff", "printable text")):
        wrong = run("redrive", "stock.c.dead", "--all", "--header", given)
        assert (wrong.returncode, f"--header must be {text}" in wrong.stderr) == (2, True)


def test_letters_behind_a_thousand_that_cannot_be_sent_are_reported(
    broker: LocalBroker, run: Run
) -> None:
    with zsq.Producer(broker.url) as producer:
        producer.publish_many("jam", [b"no letter"] * (READY + 1))
    done = run("redrive", "jam", "--all")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"1,000 left: {NO_LETTER}",
        f"1 left: {BEHIND.format(READY)}",
    ]


def test_a_redrive_killed_before_a_finish_sends_twice_and_loses_nothing(
    broker: LocalBroker, run: Run
) -> None:
    die(broker, "killed", b"a", b"b")
    line = [sys.executable, "-P", "-c", KILLED, "killed.c.dead"]
    killed = subprocess.run(
        line, env=os.environ | {"ZSQ_URL": broker.url}, capture_output=True, timeout=60, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    done = run("redrive", "killed.c.dead", "--all", "--timeout", "30")
    assert done.stdout == "2 to killed, for channel c\n", done.stderr
    with zsq.Reader("killed", url=broker.url) as reader:
        sent = reader.bounds()[1] - 2
    assert sent in (3, 4), "the one that was killed had one letter in its hands, or both"
    assert (
        sorted(message.body for message in take(broker, "killed", "c", sent))
        == [b"a", b"a", b"b", b"b"][:sent]
    )


def test_a_letter_that_is_discarded_while_a_slow_redrive_holds_it_is_not_sent(
    broker: LocalBroker, run: Run
) -> None:
    die(broker, "discarded", b"0", b"1", b"2", b"3")
    dead = "discarded.c.dead"
    command = [sys.executable, "-m", "zsq", "redrive", dead, "--all", "--rate", "1/s"]
    environment = {**os.environ, "ZSQ_URL": broker.url}
    with (
        zsq.Admin(broker.url) as admin,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process,
    ):
        wait_for(lambda: depth(admin, "discarded", "c"), 30, "the first one is sent")
        assert run("redrive", dead, "--offset", "3", "--discard").stdout == "1 discarded\n"
        assert process.communicate(timeout=60)[0] == "3 to discarded, for channel c\n"


def test_letters_that_come_again_after_a_lost_link_are_sent_once() -> None:
    class HeldStub(NamedTuple):
        leased: bool
        cancelled: bool = False

    assert still_held([HeldStub(leased=False), HeldStub(leased=True)]) == [HeldStub(leased=True)]


def depth(admin: zsq.Admin, topic: str, channel: str) -> int:
    (row,) = admin.stats(topic, channel)["topics"][0]["channels"]
    return int(row["depth"])


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("nowhere", "--all"), 1, "E_NOT_FOUND topic 'nowhere' does not exist"),
        (("t.c.dead",), 2, "give one of -n N, --all and --offset"),
        (("t.c.dead", "--all", "-n", "3"), 2, "give one of -n N, --all and --offset"),
        (("t.c.dead", "-n", "0"), 2, "'-n'"),
        (("t c", "--all"), 2, "E_BAD_NAME"),
        (("t.c.dead", "--all", "--channel", "a/b"), 2, "E_BAD_NAME"),
    ],
)
def test_each_senseless_redrive_is_refused(
    run: Run, arguments: tuple[str, ...], code: int, text: str
) -> None:
    done = run("redrive", *arguments)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr
