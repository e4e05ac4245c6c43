"""What SIGHUP may change of a broker's options, and what each kind of actor is told of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from zsq.actors.actor import Actor
from zsq.actors.alarm_options import AlarmOptions
from zsq.actors.child import ChildSpec
from zsq.actors.nsq.options import HttpOptions, NsqOptions, TlsOptions
from zsq.actors.options import ServeOptions
from zsq.actors.process_table import Child
from zsq.actors.reloading import Fresh, Reloading, merged, told
from zsq.actors.security_options import SecurityOptions
from zsq.transport.errors import Refused, UsageError

DOORS = ServeOptions(
    Path("d"), nsq=NsqOptions(tls=TlsOptions(cert="a", key="b")), http=HttpOptions(tls_cert="c", tls_key="d"), security=SecurityOptions("e")
)


def test_only_what_may_change_does() -> None:
    new = ServeOptions(
        Path("other"), gateway="h:1", nsq=NsqOptions(listen=("x:1",), max_rdy_count=1, tls=TlsOptions("A", "B", "C", required="true")),
        http=HttpOptions("y:1", tls_cert="C", tls_key="D"), node_id=3, chunk_bytes=1, log_level="debug", sync="never", stage_timeout_s=1,
        retention={"keep_bytes": 1}, alarms=AlarmOptions(depth=1), security=SecurityOptions("E", "k", True),
    )  # fmt: skip
    assert DOORS.nsq is not None
    assert DOORS.http is not None
    assert merged(DOORS, new) == (
        replace(
            DOORS, log_level="debug", retention={"keep_bytes": 1}, alarms=AlarmOptions(depth=1), security=SecurityOptions("E"),
            nsq=replace(DOORS.nsq, tls=TlsOptions("A", "B", "C")), http=replace(DOORS.http, tls_cert="C", tls_key="D"),
        ),
        (),
    )  # fmt: skip
    assert merged(DOORS, DOORS) == (DOORS, ())


def test_what_would_open_or_close_a_door_needs_a_restart() -> None:
    open_ones = ServeOptions(Path("d"), nsq=NsqOptions(), http=HttpOptions())
    for now, new in ((DOORS, open_ones), (open_ones, DOORS)):
        found, kept = merged(now, new)
        assert found == now
        assert [text.split()[0] for text in kept] == ["--access", "--nsq-tls-cert", "--http-tls-cert"]
    assert merged(DOORS, replace(DOORS, nsq=None, http=None)) == (DOORS, ())  # --no-nsq and --no-http are told by their names


def test_each_kind_is_told_what_concerns_it() -> None:
    assert told("channel", DOORS) == {"log_level": "info"}
    assert told("gateway", DOORS) == {"log_level": "info", "access_file": "e"}
    assert told("http_gateway", DOORS) == {"log_level": "info", "access_file": "e", "tls": {"cert": "c", "key": "d"}}
    assert told("nsq_gateway", DOORS)["tls"] == {
        "cert": "a", "key": "b", "root_ca": "", "client_auth": "", "required": "", "min_version": "tls1.2",
    }  # fmt: skip


class Double:
    """A supervisor of which a gateway is up, and one on its way up."""

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.orders: list[tuple[int, str, dict[str, Any]]] = []
        children = {key: self.child(key, state) for key, state in ((1, "up"), (2, "starting"))}
        self.table = SimpleNamespace(children=children, log_level="info")
        self.singles = SimpleNamespace(children=children)
        self.alarms = SimpleNamespace(configure=lambda given: None)
        self.groups: dict[str, Any] = {}
        self.management = SimpleNamespace(order=lambda child, action, given, answered: self.orders.append((child.spec.key, action, given)))

    def child(self, key: int, state: str) -> Child:
        settings = {"options": self.options.nsq, "security": self.options.security}
        child = Child(ChildSpec(key, "nsq_gateway", "nsq gateway", settings), 1, None, None, state)  # type: ignore[arg-type]
        child.envelope = (b"x",)
        return child


def test_who_is_on_its_way_up_hears_of_it_then_and_its_successor_begins_with_it(caplog: pytest.LogCaptureFixture) -> None:
    new = replace(DOORS, nsq=NsqOptions(tls=TlsOptions(cert="A", key="B")), security=SecurityOptions("E"))
    double: Any = Double(DOORS)
    reloading = Reloading(double, lambda: Fresh(new))
    with caplog.at_level("INFO"):
        reloading.begin()
        assert [key for key, *_ in double.orders] == [1]
        double.table.children[2].state = "up"
        reloading.tick()
        reloading.tick()
    assert [(key, action) for key, action, _ in double.orders] == [(1, "reload"), (2, "reload")]
    assert double.orders[1][2] == told("nsq_gateway", new)
    for child in double.table.children.values():
        assert (child.spec.settings["options"].tls.cert, child.spec.settings["security"].access_file) == ("A", "E")


@pytest.mark.parametrize(("raised", "code"), [(UsageError("E_BAD_ARGUMENT", "no"), "E_BAD_ARGUMENT"), (OSError("gone"), "E_INTERNAL")])
def test_an_actor_that_cannot_take_them_says_so(raised: Exception, code: str, caplog: pytest.LogCaptureFixture) -> None:
    class Unwilling(Actor):
        def on_reload(self, told: dict[str, object]) -> None:
            raise raised

    with caplog.at_level("WARNING"), pytest.raises((UsageError, Refused)) as caught:  # the level before comes back
        Unwilling(1, "x", {})._reload({"log_level": "info"})
    assert caught.value.code == code
