"""Tests of limits of the command line: how much it asks for at a time, and how many unanswered
blocks it has.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from click.testing import CliRunner

from zsq.apps.cli.app import app
from zsq.apps.cli.manage import topic as topic_command
from zsq.apps.cli.messages import delayed, publish
from zsq.transport.client.blocking import client

pytestmark = pytest.mark.slow


class Closing:
    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Listing(Closing):
    """A client with 2,500 delayed messages. Each call lists those that follow a key."""

    asked: list[int]

    def delayed_list(self, topic: str, *, after: str, count: int) -> list[dict[str, Any]]:
        self.asked.append(count)
        first = int(after, 16) + 1 if after else 0
        return [
            {"delayed_key": f"{number:032x}", "due_ns": 0, "size": 1, "body": b"x"}
            for number in range(first, min(first + count, 2_500))
        ]


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [(10, [10]), (1_500, [1_000, 500]), (9_999, [1_000, 1_000, 1_000]), (2_000, [1_000, 1_000])],
)
def test_a_list_is_asked_for_in_turns(
    monkeypatch: pytest.MonkeyPatch, wanted: int, asked: list[int]
) -> None:
    Listing.asked = []
    monkeypatch.setattr(client, "Admin", Listing)
    done = CliRunner().invoke(app, ["delayed", "list", "t", "--json", "-n", str(wanted)])
    assert done.exit_code == 0, done.output
    keys = [json.loads(line)["delayed_key"] for line in done.output.splitlines()]
    assert keys == [f"{number:032x}" for number in range(min(wanted, 2_500))]
    assert Listing.asked == asked


@pytest.mark.parametrize(
    ("size", "shown"), [(delayed.BODY_CHARACTERS, False), (delayed.BODY_CHARACTERS + 1, True)]
)
def test_a_long_body_is_shown_by_its_beginning(size: int, shown: bool) -> None:
    line = delayed._line(
        {
            "delayed_key": "k",
            "due_ns": 0,
            "size": size,
            "body": b"x" * size,
            "tag": None,
            "key": None,
        }
    )
    assert line.endswith("...") == shown
    assert line.count("x") == delayed.BODY_CHARACTERS


class Silent(Closing):
    """A client whose blocks are answered only when the caller waits for an answer."""

    out = out_max = 0

    class Receipt:
        done = False
        count = 1
        duplicates = 0

        def wait(self, timeout: float) -> None:
            Silent.out -= 1

    def publish_many(self, topic: str, bodies: list[bytes], **more: Any) -> Receipt:
        Silent.out += 1
        Silent.out_max = max(Silent.out_max, Silent.out)
        return Silent.Receipt()


def test_a_file_is_published_with_a_bounded_number_of_unanswered_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "Producer", Silent)
    (tmp_path / "lines").write_bytes(b"line\n" * 500)
    done = CliRunner().invoke(
        app, ["pub", "t", "--batch", "1", "--file", str(tmp_path / "lines"), "--json"]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["messages"] == 500
    assert (Silent.out, Silent.out_max) == (0, publish.RECEIPTS_MAX + 1)


@pytest.mark.parametrize(("say_s", "said"), [(-1.0, 5), (1_000.0, 1)])
def test_a_waiting_command_repeats_its_reason_but_not_at_each_look(
    monkeypatch: pytest.MonkeyPatch, say_s: float, said: int
) -> None:
    channel = {
        "channel_name": "c",
        "depth": 7,
        "in_flight_count": 0,
        "deferred_count": 0,
        "client_count": 1,
        "paused": False,
        "health": "OK",
    }
    looks = [
        {"depth": 0, "delayed_count": 0, "channels": channels} for channels in ([channel],) * 5
    ]
    looks.append({"depth": 0, "delayed_count": 0, "channels": []})
    told: list[str] = []
    monkeypatch.setattr(topic_command, "SAY_S", say_s)
    monkeypatch.setattr(topic_command, "_say", told.append)
    admin = SimpleNamespace(
        stats=lambda topic, partial: {"topics": [{"topic_name": topic} | looks.pop(0)]}
    )
    topic_command._drain(
        cast("Any", admin), "t", cast("Any", SimpleNamespace(wait=lambda seconds: False)), None
    )
    assert told == ["waiting for channel c (7 waiting)"] * said
