"""Tests of what a standby answers."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from support.broker import free_port, wait_for

import zsq
from zsq.actors.bucket.standby.standby_gateway import (
    CONNECTIONS_MAX,
    StandbyGateway,
    StandbyStatus,
    metrics,
    reply_to,
)
from zsq.actors.runtime.actor import StartFailed
from zsq.actors.settings.options import HttpOptions, ServeOptions
from zsq.transport.errors import E_STANDBY, Refused

STATUS = StandbyStatus(
    "following", "s3://bucket/prefix", number=7, quiet_s=0.25, patience_s=10.0,
    primary=("tcp://one:4153",), primary_host="one",
)  # fmt: skip


@pytest.fixture
def given(tmp_path: Path) -> ServeOptions:
    return ServeOptions(
        tmp_path,
        gateway=f"127.0.0.1:{free_port()}",
        extensions=(HttpOptions(listen=f"127.0.0.1:{free_port()}", given=True),),
    )


@pytest.fixture
def gateway(given: ServeOptions) -> Iterator[StandbyGateway]:
    made = StandbyGateway(given, lambda: STATUS)
    made.open()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (STATUS, "the primary is tcp://one:4153"),
        (replace(STATUS, primary=()), "the primary is one"),
        (replace(STATUS, primary=(), primary_host=""), "the primary is not known yet"),
    ],
)
def test_the_sentence_says_who_is_primary(status: StandbyStatus, text: str) -> None:
    assert status.sentence() == (f"this broker is a standby of s3://bucket/prefix, and {text}")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/ping", 200), ("/ready", 503), ("/health", 200), ("/stats?format=json", 200), ("/", 200),
        ("/metrics", 200), ("/pub?topic=t", 503), ("/nowhere", 503),
    ],
)  # fmt: skip
def test_paths(path: str, code: int) -> None:
    assert reply_to(path, STATUS, is_open=True)[0] == code


@pytest.mark.parametrize("path", ["/stats", "/metrics", "/"])
def test_with_an_access_file_only_the_state_is_open_to_everyone(path: str) -> None:
    code, _, body = reply_to(path, STATUS, is_open=False)
    assert code == 403
    assert b"bucket/prefix" not in body
    assert reply_to("/ping", STATUS, is_open=False)[0] == 200
    assert reply_to("/ready", STATUS, is_open=False)[0] == 503
    code, _, body = reply_to("/health", STATUS, is_open=False)
    assert (code, json.loads(body)) == (200, {"role": "standby", "state": STATUS.state})


def test_metrics_have_a_value_in_each_row() -> None:
    rows = [line for line in metrics(STATUS).splitlines() if not line.startswith("#")]
    assert "zsq_standby_tick 7" in rows
    assert all(len(row.split()) == 2 for row in rows)


def test_a_client_is_refused_with_the_address_of_the_primary(gateway: StandbyGateway) -> None:
    with pytest.raises(Refused) as caught, zsq.Admin(gateway.endpoint, timeout=2) as admin:
        admin.stats()
    assert caught.value.code == E_STANDBY
    assert "the primary is tcp://one:4153" in str(caught.value)


def test_http_tells_the_same(gateway: StandbyGateway) -> None:
    base = next(place for place in gateway.places if place.startswith("http:"))
    assert httpx.get(f"{base}/ping").text == "OK"
    assert json.loads(httpx.get(f"{base}/health").text)["primary"] == ["tcp://one:4153"]
    assert httpx.post(f"{base}/pub?topic=t", content=b"x").status_code == 503
    assert httpx.head(f"{base}/ping").text == ""


def test_clients_that_say_nothing_take_a_limited_number_of_threads(
    gateway: StandbyGateway,
) -> None:
    base = next(place for place in gateway.places if place.startswith("http:"))
    place = ("127.0.0.1", int(base.rpartition(":")[2]))
    with contextlib.ExitStack() as silent:
        for _ in range(CONNECTIONS_MAX):
            silent.enter_context(socket.create_connection(place))
        wait_for(lambda: is_closed(place), what="a connection that is closed at once")
        assert threading.active_count() < CONNECTIONS_MAX + 20
    wait_for(lambda: not is_closed(place), what="room for another connection")
    assert httpx.get(f"{base}/ping").text == "OK"


def is_closed(place: tuple[str, int]) -> bool:
    """Return True if the server closes a connection without an answer."""
    with socket.create_connection(place) as one:
        one.settimeout(0.2)
        try:
            return one.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionError:
            return True


def test_an_address_that_is_taken_is_named(gateway: StandbyGateway, given: ServeOptions) -> None:
    with pytest.raises(StartFailed, match=r"cannot listen on tcp://127\.0\.0\.1:"):
        StandbyGateway(given, lambda: STATUS).open()
    other = replace(given, gateway="")
    with pytest.raises(StartFailed, match=r"cannot listen on http://127\.0\.0\.1:"):
        StandbyGateway(other, lambda: STATUS).open()


def test_the_addresses_are_free_after_the_end(given: ServeOptions) -> None:
    for _ in range(3):
        one = StandbyGateway(given, lambda: STATUS)
        one.open()
        one.close()
