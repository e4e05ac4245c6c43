"""Tests of SIGHUP: which options of a broker it may change, and which settings each kind of actor
receives.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.actors.runtime.actor import Actor
from zsq.actors.runtime.child import ChildSpec
from zsq.actors.runtime.process_table import Child
from zsq.actors.settings.options import (
    AlarmOptions,
    HttpOptions,
    NsqOptions,
    SecurityOptions,
    ServeOptions,
    TlsOptions,
)
from zsq.actors.settings.starts import ActorStart, ArchiveStart, DoorStart
from zsq.actors.supervisor.reloading import Fresh, Reloading, merged, reload_order
from zsq.actors.supervisor.singles import Singles
from zsq.transport.errors import Refused, UsageError, ZsqError
from zsq.transport.wire import protocol as p

DOORS = ServeOptions(
    Path("d"),
    security=SecurityOptions("e"),
    extensions=(
        AlarmOptions(), NsqOptions(tls=TlsOptions(cert="a", key="b")),
        HttpOptions(tls_cert="c", tls_key="d"),
    ),
)  # fmt: skip


def test_a_reload_changes_only_options_that_may_change() -> None:
    new = ServeOptions(
        Path("other"), gateway="h:1", node_id=3, chunk_bytes=1, log_level="debug", sync="never", stage_timeout_s=1,
        retention={"keep_bytes": 1}, security=SecurityOptions("E", "k", True),
        extensions=(
            AlarmOptions(depth=1), HttpOptions("y:1", tls_cert="C", tls_key="D"),
            NsqOptions(listen=("x:1",), max_rdy_count=1, tls=TlsOptions("A", "B", "C", required="true")),
        ),
    )  # fmt: skip
    assert merged(DOORS, new) == (
        replace(
            DOORS, log_level="debug", retention={"keep_bytes": 1}, security=SecurityOptions("E"),
            extensions=(
                AlarmOptions(depth=1), NsqOptions(tls=TlsOptions("A", "B", "C")),
                HttpOptions(tls_cert="C", tls_key="D"),
            ),
        ),
        (),
    )  # fmt: skip
    assert merged(DOORS, DOORS) == (DOORS, ())


def test_options_that_turn_security_on_or_off_need_a_restart() -> None:
    open_ones = ServeOptions(Path("d"), extensions=(AlarmOptions(), NsqOptions(), HttpOptions()))
    for now, new in ((DOORS, open_ones), (open_ones, DOORS)):
        found, kept = merged(now, new)
        assert found == now
        assert [text.split()[0] for text in kept] == [
            "--access",
            "--nsq-tls-cert",
            "--http-tls-cert",
        ]
    # --no-nsq and --no-http are reported by their names.
    assert merged(DOORS, replace(DOORS, extensions=(AlarmOptions(),))) == (
        DOORS,
        (),
    )


def test_each_kind_of_actor_gets_the_settings_that_concern_it() -> None:
    assert reload_order(7, "channel", DOORS) == p.Reload(7, "info")
    assert reload_order(7, "gateway", DOORS) == p.ReloadGateway(7, "info", "e")
    assert reload_order(7, "http_gateway", DOORS) == p.ReloadHttpGateway(
        7, "info", "e", cert="c", key="d"
    )
    assert reload_order(7, "nsq_gateway", DOORS) == p.ReloadNsqGateway(
        7,
        "info",
        "e",
        cert="a",
        key="b",
        root_ca="",
        client_auth="",
        required="",
        min_version="tls1.2",
    )


class Double:
    """A supervisor with one gateway that is up and one that is still starting."""

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.orders: list[tuple[int, Any]] = []
        children = {key: self.child(key, state) for key, state in ((1, "up"), (2, "starting"))}
        self.table = SimpleNamespace(log_level="info")
        self.processes = SimpleNamespace(
            children=children,
            table=self.table,
            kill=lambda child: self.killed.append(child.spec.key),
        )
        self.singles = Singles(cast("Any", self), cast("Any", None), lambda code, why: None)
        self.singles.children = cast("Any", children)
        self.groups: dict[str, Any] = {}
        self.answers: dict[int, Any] = {}  # key of the child -> its answer
        self.killed: list[int] = []
        self.stopping = False

    def reloading(self, new: ServeOptions) -> Reloading:
        double: Any = self
        return Reloading(
            double,
            double.singles,
            cast("Any", SimpleNamespace(send=self.order)),
            lambda: None,
            lambda: Fresh(new),
        )

    def order(self, child: Child, make: Any, answered: Any, patience_s: float) -> None:
        self.orders.append((child.spec.key, make(1)))
        self.answers[child.spec.key] = answered

    def child(self, key: int, state: str) -> Child:
        nsq = self.options.of(NsqOptions)
        assert nsq is not None
        start = DoorStart(supervisor="", options=nsq, security=self.options.security)
        child = Child(ChildSpec(key, "nsq_gateway", "nsq gateway", start), None, state)
        child.envelope = (b"x",)
        return child


def test_the_log_says_when_all_gateways_have_the_new_settings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    double: Any = Double(DOORS)
    reloading = double.reloading(DOORS)
    for times in (1, 2):
        double.processes.children[2].state = "starting"
        with caplog.at_level("INFO"):
            reloading.begin()
            double.answers.pop(1)(p.Done(1, {}), None)
            assert caplog.text.count("in force") == times - 1, "one gateway is still starting"
            double.processes.children[2].state = "up"
            reloading.tick()
            double.answers.pop(2)(p.Done(1, {}), None)
            reloading.tick()
            assert caplog.text.count("in force at all gateways") == times


def test_a_starting_process_gets_the_new_settings_when_it_is_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    new = replace(DOORS, security=SecurityOptions("E")).having(
        NsqOptions(tls=TlsOptions(cert="A", key="B"))
    )
    double: Any = Double(DOORS)
    reloading = double.reloading(new)
    with caplog.at_level("INFO"):
        reloading.begin()
        assert [key for key, *_ in double.orders] == [1]
        double.processes.children[2].state = "up"
        reloading.tick()
        reloading.tick()
    assert double.orders == [(key, reload_order(1, "nsq_gateway", new)) for key in (1, 2)]
    for child in double.processes.children.values():
        assert (child.spec.start.options.tls.cert, child.spec.start.security.access_file) == (
            "A",
            "E",
        )


def test_the_bound_of_shipping_may_change_but_shipping_is_not_turned_on_or_off() -> None:
    ships = replace(DOORS, bucket="file:///b")
    slower = replace(ships, bucket_lag_s=60.0)
    off = replace(ships, bucket_lag_s=0.0)
    assert merged(ships, slower) == (slower, ())
    for now, new in ((ships, off), (off, ships)):
        assert merged(now, new) == (now, ("--bucket-lag (to turn shipping on or off)",))
    for kind in ("topic", "archive"):
        assert reload_order(7, kind, slower) == p.ReloadShipping(7, "info", 60.0)
        assert reload_order(7, kind, off) == reload_order(7, kind, DOORS) == p.Reload(7, "info")
    assert reload_order(7, "channel", slower) == p.Reload(7, "info")


def test_an_archive_actor_that_is_started_again_has_the_new_bound() -> None:
    start = ArchiveStart(url="file:///b", broker="", writer="", known="", fresh="", ship_lag_s=1.0)
    double: Any = Double(replace(DOORS, bucket="file:///b"))
    archive = double.processes.children[3] = double.child(3, "up")
    archive.spec = ChildSpec(3, "archive", "bucket", start)
    double.reloading(replace(DOORS, bucket="file:///b", bucket_lag_s=9.0)).begin()
    assert archive.spec.start == replace(start, ship_lag_s=9.0)
    assert (3, p.ReloadShipping(1, "info", 9.0)) in double.orders


@pytest.mark.parametrize(
    ("raised", "code"),
    [(UsageError("E_BAD_ARGUMENT", "no"), "E_BAD_ARGUMENT"), (OSError("gone"), "E_INTERNAL")],
)
def test_an_actor_that_cannot_apply_new_settings_answers_with_an_error(
    raised: Exception, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    def unwilling(told: p.Reload) -> None:
        raise raised

    # `caplog` restores the log level afterwards.
    with (
        caplog.at_level("WARNING"),
        pytest.raises((UsageError, Refused)) as caught,
    ):
        Actor(1, "x", ActorStart())._reload(unwilling, p.Reload(1, "info"))
    assert caught.value.code == code


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = SimpleNamespace(now=10**12)
    monkeypatch.setattr("zsq.actors.supervisor.reloading.time.monotonic_ns", lambda: found.now)
    return found


def test_a_gateway_that_misses_two_reloads_is_killed_and_health_is_bad(
    clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    double: Any = Double(DOORS)
    del double.processes.children[2]
    reloading = double.reloading(DOORS)
    reloading.begin()
    assert reloading.trouble() == "", "it has a moment to answer"
    double.answers[1](None, ZsqError("E_TIMEOUT", "no answer"))
    clock.now += 2_000_000_000
    assert "nsq gateway: the new settings" in reloading.trouble()
    reloading.tick()
    assert ([key for key, *_ in double.orders], double.killed) == ([1, 1], [])
    clock.now += 10_000_000_000
    double.answers[1](None, ZsqError("E_TIMEOUT", "no answer"))
    reloading.tick()
    assert double.killed == [1]
    assert "nsq gateway" in reloading.trouble(), "the killed one is still in the table"
    del double.processes.children[1]
    double.processes.children[5] = double.child(5, "starting")
    reloading.tick()
    assert "nsq gateway" in reloading.trouble()
    assert "in force" not in caplog.text, "its successor is still starting"
    double.processes.children[5].state = "up"
    reloading.tick()
    assert reloading.trouble() == ""
    assert "in force at all gateways" in caplog.text


def test_a_gateway_that_refuses_new_settings_is_not_killed(
    clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    double: Any = Double(DOORS)
    reloading = double.reloading(DOORS)
    reloading.begin()
    double.answers[1](None, UsageError("E_BAD_ARGUMENT", "access.toml is not TOML"))
    double.processes.children[2].state = "up"
    reloading.tick()
    double.answers[2](p.Done(1, {}), None)
    clock.now += 60_000_000_000
    reloading.tick()
    assert (reloading.trouble(), double.killed, len(double.orders)) == ("", [], 2)
    assert "nsq gateway keeps its old settings: access.toml is not TOML" in caplog.text
    assert "in force at all gateways, but not at nsq gateway" in caplog.text


def test_a_storage_that_misses_a_reload_gets_it_again_and_is_not_killed(clock: Any) -> None:
    double: Any = Double(DOORS)
    double.processes.children = {3: double.child(3, "up")}
    spec = ChildSpec(3, "storage", "storage t")
    double.processes.children[3].spec = spec
    reloading = double.reloading(DOORS)
    reloading.begin()
    for _ in range(5):
        double.answers[3](None, ZsqError("E_TIMEOUT", "no answer"))
        clock.now += 20_000_000_000
        reloading.tick()
    assert (len(double.orders), double.killed, reloading.trouble()) == (6, [], "")
    double.answers[3](p.Done(1, {}), None)
    clock.now += 20_000_000_000
    reloading.tick()
    assert len(double.orders) == 6


def test_an_answer_to_an_older_reload_does_not_count_for_a_newer_one(clock: Any) -> None:
    double: Any = Double(DOORS)
    del double.processes.children[2]
    reloading = double.reloading(DOORS)
    reloading.begin()
    first = double.answers[1]
    reloading.begin()
    first(p.Done(1, {}), None)
    clock.now += 5_000_000_000
    assert "nsq gateway" in reloading.trouble()
    double.answers[1](p.Done(1, {}), None)
    assert reloading.trouble() == ""
