"""Tests of `zsq topic close`, `zsq topic open` and `zsq topic retire`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.broker import Broker
from support.zsq_command import run_text

import zsq
from zsq.transport.draining import remaining
from zsq.transport.errors import E_NOT_EMPTY
from zsq.transport.wire.answers import Moved, Nothing

pytestmark = pytest.mark.slow

CHANNEL: dict[str, Any] = {
    "channel_name": "c", "depth": 0, "in_flight_count": 0, "deferred_count": 0, "client_count": 1, "paused": False, "health": "OK",
}  # fmt: skip
TOPIC: dict[str, Any] = {"depth": 0, "delayed_count": 0, "channels": [CHANNEL]}


@pytest.mark.parametrize(
    ("topic", "left"),
    [
        (TOPIC, []),
        (TOPIC | {"channels": []}, []),
        (
            TOPIC | {"channels": [CHANNEL | {"depth": 1_234, "in_flight_count": 2}]},
            ["channel c (1,234 waiting, 2 in flight)"],
        ),
        (
            TOPIC | {"channels": [CHANNEL | {"deferred_count": 1, "client_count": 0}]},
            ["channel c (1 deferred, no consumer)"],
        ),
        (
            TOPIC | {"channels": [CHANNEL | {"depth": 1, "paused": True}]},
            ["channel c (1 waiting, paused)"],
        ),
        (TOPIC | {"channels": [CHANNEL | {"dying_count": 1}]}, ["channel c (1 dying)"]),
        (
            TOPIC | {"channels": [CHANNEL | {"health": "starting"}]},
            ["channel c (it is starting, so its messages cannot be counted)"],
        ),
        (
            TOPIC | {"channels": [], "depth": 3},
            [
                (
                    "3 messages that wait for a first channel (create one and consume them, or run "
                    "`zsq topic empty`)"
                )
            ],
        ),
        (
            TOPIC | {"depth": 3},
            ["3 messages that wait because the topic is paused (run `zsq topic unpause`)"],
        ),
        (
            TOPIC | {"delayed_count": 2},
            ["2 delayed messages that are not due yet (or run `zsq delayed cancel`)"],
        ),
    ],
)
def test_the_text_lists_what_a_topic_must_still_be_drained_of(
    topic: dict[str, Any], left: list[str]
) -> None:
    assert remaining(topic) == left


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("closing") / "data") as broker:
        yield broker


def cli(broker: Broker, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_text("--url", broker.ipc, *arguments, stdin=stdin)


def closed(broker: Broker, topic: str) -> str:
    with zsq.Admin(broker.ipc) as admin:
        return str(admin.stats(topic)["topics"][0]["closed"])


def test_a_topic_is_closed_and_opened_by_command(broker: Broker) -> None:
    with zsq.Producer(broker.ipc) as producer:
        producer.publish("a", b"1")
    for arguments, state in (
        (["close"], "publishers"),
        (["close", "--consumers"], "consumers"),
        (["open", "--consumers"], "publishers"),
    ):
        assert cli(broker, "topic", arguments[0], "a", *arguments[1:]).returncode == 0
        assert closed(broker, "a") == state
    found = cli(broker, "pub", "a", "--timeout", "5")
    assert found.returncode == 0, "nothing to publish"
    refused = cli(broker, "pub", "a", stdin="x\n")
    assert refused.returncode == 1
    assert "E_CLOSED the topic is closed to publishers" in refused.stderr
    assert "closed     to publishers" in cli(broker, "topic", "show", "a").stdout
    assert "closed to publishers" in cli(broker, "stats", "a").stdout
    assert cli(broker, "topic", "open", "a").returncode == 0
    assert closed(broker, "a") == ""
    missing = cli(broker, "topic", "close", "nowhere")
    assert (missing.returncode, "E_NOT_FOUND" in missing.stderr) == (1, True)


def test_retiring_waits_until_all_is_drained_and_says_what_for(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("b", "c")
        producer.publish_many("b", [b"x"] * 3)
        producer.publish("b", b"later", delay=10.0)
    line = [sys.executable, "-m", "zsq", "--url", broker.ipc, "topic", "retire", "b"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as retiring:
        assert retiring.stderr is not None
        said = [retiring.stderr.readline() for _ in range(2)]
        assert said == [
            "zsq: b is closed to publishers\n",
            (
                "zsq: waiting for channel c (3 waiting, no consumer); 1 delayed messages that are "
                "not due yet (or run `zsq delayed cancel`)\n"
            ),
        ]
        assert closed(broker, "b") == "publishers"
        with zsq.Consumer("b", "c", url=broker.ipc) as consumer:
            for _ in range(4):
                message = consumer.receive(20)
                assert message is not None
                message.finish()
        rest = retiring.stderr.read()
        assert retiring.wait(30) == 0
    assert "zsq: b is drained and closed to consumers\nzsq: b is deleted\n" in rest
    with zsq.Admin(broker.ipc) as admin, pytest.raises(zsq.NotFound):
        admin.stats("b")


def test_a_retire_that_gives_up_leaves_the_topic_closed_to_publishers(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("d", "c")
        producer.publish("d", b"x")
    found = cli(broker, "topic", "retire", "d", "--wait", "1s")
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1].startswith("zsq: E_TIMEOUT d is not drained")
    assert (
        "d is not drained: waiting for channel c (1 waiting, no consumer). It stays closed to "
        "publishers; zsq topic open d opens it"
    ) in found.stderr
    assert closed(broker, "d") == "publishers"


def test_a_signal_ends_the_waiting(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("e", "c")
        producer.publish("e", b"x")
    line = [sys.executable, "-m", "zsq", "--url", broker.ipc, "topic", "retire", "e"]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as retiring:
        assert retiring.stderr is not None
        retiring.stderr.readline()
        retiring.stderr.readline()
        retiring.terminate()
        assert "zsq: E_INTERRUPTED stopped; e stays closed to publishers" in retiring.stderr.read()
        assert retiring.wait(30) == 1


def test_retire_waits_for_messages_that_come_back_at_the_last_moment(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seek back between the last check and the deletion makes messages unfinished again. The
    topic is then opened to consumers again, and the rest is drained.
    """
    from click.testing import CliRunner

    from zsq.apps.cli.manage.topic import topic_retire
    from zsq.transport.client.blocking.client import Admin

    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_channel("f", "c")
        producer.publish("f", b"x")
        take(broker)
        delete = Admin.delete_topic
        sought: list[Moved] = []

        def seek_first(self: Admin, name: str, *, force: bool = False) -> Nothing:
            if not sought:
                sought.append(admin.seek("f", "c", 0))
                threading.Timer(1.0, take, (broker,)).start()
            return delete(self, name, force=force)

        monkeypatch.setattr(Admin, "delete_topic", seek_first)
        found = CliRunner().invoke(topic_retire, ["f", "--url", broker.ipc, "--wait", "60s"])
    assert found.exit_code == 0, found.output
    assert "has 1 messages that are not finished" in found.output
    assert "f is deleted" in found.output


def test_a_signal_ends_a_retire_whose_topic_cannot_be_deleted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from zsq.apps.cli.manage import topic
    from zsq.apps.cli.options import Stopping
    from zsq.transport.client.blocking.client import Admin

    tries: list[str] = []
    stopping = Stopping()

    def refuse(self: Admin, name: str, force: bool = False) -> Nothing:
        tries.append(name)
        assert len(tries) < 3, "it goes on after the signal"
        stopping.set()
        raise zsq.Refused(E_NOT_EMPTY, f"{name} has messages")

    monkeypatch.setattr(Admin, "delete_topic", refuse)
    monkeypatch.setattr(topic, "stop_signals", lambda: contextlib.nullcontext(stopping))
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic("g")
    found = CliRunner().invoke(topic.topic_retire, ["g", "--url", broker.ipc])
    assert isinstance(found.exception, zsq.ZsqError)
    assert found.exception.code == "E_INTERRUPTED"
    assert tries == ["g"]


def take(broker: Broker) -> None:
    with zsq.Consumer("f", "c", url=broker.ipc) as consumer:
        message = consumer.receive(20)
        assert message is not None
        message.finish()


def test_help_names_close_open_and_retire() -> None:
    line = [sys.executable, "-m", "zsq", "topic", "--help"]
    text = subprocess.run(
        line, capture_output=True, text=True, timeout=60, check=True, cwd=Path("/")
    ).stdout
    assert all(f"\n  {name} " in text for name in ("close", "open", "retire"))
