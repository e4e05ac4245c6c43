"""Tests of arguments of another type: the error names the argument, and the type that it must have.

A program may have them as text, from its environment.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import zsq
import zsq.aio

URL = "ipc:///nowhere/run"


@pytest.mark.parametrize("kind", [zsq.Consumer, zsq.aio.Consumer])
@pytest.mark.parametrize("name", ["message_timeout", "ready", "heartbeat_ms", "sample_rate"])
def test_an_option_of_a_consumer_that_is_text_is_refused_for_its_type(kind: Any, name: str) -> None:
    with pytest.raises(zsq.UsageError, match=rf"{name} must be a (whole )?number, not str '30'"):
        kind("t", "c", url=URL, **{name: "30"})


@pytest.mark.parametrize("kind", [zsq.Producer, zsq.aio.Producer])
@pytest.mark.parametrize("name", ["linger_ms", "batch_bytes", "batch_count", "heartbeat_ms"])
def test_an_option_of_a_producer_that_is_text_is_refused_for_its_type(kind: Any, name: str) -> None:
    with pytest.raises(zsq.UsageError, match=rf"{name} must be a (whole )?number, not str '30'"):
        kind(URL, **{name: "30"})


@pytest.mark.parametrize("name", ["max_msg_size", "sync_every", "sync_timeout"])
def test_an_option_of_a_disk_queue_that_is_text_is_refused_for_its_type(
    tmp_path: Path, name: str
) -> None:
    text: dict[str, Any] = {name: "30"}
    with pytest.raises(zsq.UsageError, match=rf"{name} must be a (whole )?number, not str '30'"):
        zsq.DiskQueue(tmp_path, "q", **text)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda one: one.consumer.set_ready("2"), "ready must be a whole number, not str '2'"),
        (
            lambda one: one.consumer.run(print, concurrency="2"),
            "concurrency must be a whole number, not str '2'",
        ),
        (lambda one: one.reader.newest("5"), "count must be a whole number, not '5'"),
        (lambda one: one.reader.offset_at("5"), "time_ns must be a whole number, not '5'"),
        (lambda one: one.producer.publish(5, b"x"), "a topic name must be text"),
        (
            lambda one: one.producer.publish("t", b"x", headers="x"),
            "headers must be a mapping, not str",
        ),
        (
            lambda one: one.producer.publish_many("t", [b"x"], keys=5),
            "keys= needs one key for each message",
        ),
    ],
)
def test_an_argument_of_a_call_is_refused_for_its_type(
    clients: Any, call: Callable[[Any], object], text: str
) -> None:
    with pytest.raises(zsq.UsageError, match=text):
        call(clients)


class Clients:
    """Clients of a broker that does not exist. No call here needs one."""

    def __init__(self) -> None:
        self.producer = zsq.Producer(URL, timeout=1)
        self.consumer = zsq.Consumer("t", "c", url=URL, timeout=1)
        self.reader = zsq.Reader("t", url=URL, timeout=1)


@pytest.fixture
def clients() -> Any:
    found = Clients()
    yield found
    for client in (found.producer, found.consumer, found.reader):
        client.close()
