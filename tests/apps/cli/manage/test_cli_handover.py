"""Tests of how `zsq handover` finds out who is primary afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import pytest
from click.testing import CliRunner

from zsq.apps.cli.manage import handover
from zsq.transport.client.blocking import client
from zsq.transport.errors import E_STANDBY, E_TIMEOUT, BrokerUnreachable, Refused, ZsqError

URL = "tcp://one:4153,tcp://two:4153"
TWO = {"standby_addresses": "tcp://two:4153"}
BEFORE = {"pid": 7, "bucket": {"addresses": "tcp://one:4153", "epoch": 4, **TWO}}
AGAIN = {"pid": 7, "bucket": {"addresses": "tcp://one:4153", "epoch": 5}}
OTHER = {"pid": 7, "bucket": {"addresses": "tcp://two:4153", "epoch": 5}}
STARTS: dict[str, Any] = {"pid": 7, "bucket": {}}
NOBODY = BrokerUnreachable(E_TIMEOUT, "nobody is primary")
STANDBY = Refused(E_STANDBY, "this broker is a standby")
STOPS = Refused("E_CLOSING", "the broker is stopping")


class FakeAdmin:
    """Gives the answers of `script`, one after the other. The last one is repeated."""

    script: list[dict[str, Any] | ZsqError]
    standby: ZsqError | None  # its answer
    orders: int

    def __init__(self, url: str, *, timeout: float) -> None:
        self._url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def _near(self, urls: Sequence[str]) -> str:
        return ",".join(urls)

    def handover(self) -> None:
        type(self).orders += 1

    def ping(self) -> str:
        assert self._url == "tcp://two:4153"
        if self.standby is not None:
            raise self.standby
        return "OK"

    def stats(self) -> dict[str, Any]:
        assert self._url == URL
        said = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(said, ZsqError):
            raise said
        return said


def run(
    monkeypatch: pytest.MonkeyPatch,
    *script: dict[str, Any] | ZsqError,
    standby: ZsqError | None = STANDBY,
    options: tuple[str, ...] = (),
) -> tuple[str, BaseException | None]:
    monkeypatch.setattr(client, "Admin", FakeAdmin)
    monkeypatch.setattr(handover, "PAUSE_S", 0.0)
    monkeypatch.setattr(FakeAdmin, "script", list(script), raising=False)
    monkeypatch.setattr(FakeAdmin, "standby", standby, raising=False)
    monkeypatch.setattr(FakeAdmin, "orders", 0, raising=False)
    done = CliRunner().invoke(handover.handover, ["--url", URL, "--timeout", "1", *options])
    return done.output, done.exception


def test_it_waits_until_another_process_is_primary(monkeypatch: pytest.MonkeyPatch) -> None:
    said, error = run(monkeypatch, BEFORE, BEFORE, STOPS, NOBODY, STARTS, OTHER)
    assert error is None
    assert "the standby is primary" in said


def test_it_fails_if_the_same_broker_is_primary_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start raises the epoch as a takeover does."""
    said, error = run(monkeypatch, BEFORE, BEFORE, NOBODY, STARTS, AGAIN)
    assert isinstance(error, ZsqError)
    assert "the same broker is primary again: check with `zsq cluster`" in error.text
    assert "the standby is primary" not in said


def test_it_says_what_to_look_at_if_nobody_is_primary_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handover, "WAIT_S", 0.05)
    _, error = run(monkeypatch, BEFORE, NOBODY)
    assert isinstance(error, ZsqError)
    assert "no broker is primary 1 s after the command" in error.text


@pytest.mark.parametrize("answer", [None, NOBODY])
def test_nothing_is_done_if_no_standby_answers(
    monkeypatch: pytest.MonkeyPatch, answer: ZsqError | None
) -> None:
    _, error = run(monkeypatch, BEFORE, OTHER, standby=answer)
    assert isinstance(error, BrokerUnreachable)
    assert "tcp://two:4153" in error.text
    assert "give --force" in error.text
    assert FakeAdmin.orders == 0
    said, error = run(monkeypatch, BEFORE, OTHER, standby=answer, options=("--force",))
    assert error is None
    assert "the standby is primary" in said
    assert FakeAdmin.orders == 1
