"""Tests of what the supervisor does when a process ends at an unusual moment."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.group import Broker

from zsq.actors.runtime.child import OUT_OF_FILES, ChildSpec, Failure, OutOfFiles, Phase
from zsq.actors.settings import options
from zsq.actors.settings.options import ServeOptions
from zsq.actors.settings.starts import ActorStart, ZeroMqStart
from zsq.actors.statistics.broker_view import ChannelProcess, GroupState
from zsq.actors.supervisor.singles import Singles
from zsq.transport.errors import E_LIMIT, ZsqError


def singles_of(did: list[str], refusals: list[ZsqError] | None = None) -> Singles:
    """Return single processes that note in `did` what they do. Starts are refused with `refusals`,
    from the last one on, while there are any.
    """
    keys = itertools.count(8)

    def start(spec: ChildSpec) -> Any:
        if refusals:
            did.append("refused")
            raise refusals.pop()
        did.append("start")
        return SimpleNamespace(spec=spec, state="starting")

    processes = SimpleNamespace(
        new_key=lambda: next(keys), endpoint=lambda key: f"ipc:///run/{key}", run_dir="/run",
        scan_endpoint="ipc:///run/1", archive_endpoint="ipc:///run/2", start=start,
        children={},
    )  # fmt: skip
    state: Any = SimpleNamespace(
        channels_changed=False, stopping=False, processes=processes,
        options=ServeOptions(Path("/data")), registry=SimpleNamespace(node=0, uuid="u", bucket=""),
    )  # fmt: skip
    return Singles(state, cast("Any", None), lambda code, why: did.append("stop"))


def test_a_second_process_that_ends_does_not_change_an_ended_group() -> None:
    group = Broker().group
    topic = group.topic
    assert topic is not None
    topic.state = "ended"
    group.state = GroupState.ENDED  # the end of a channel was reported just before
    group.died(topic)
    assert group.state is GroupState.ENDED


@pytest.mark.parametrize(
    ("code", "made", "gone"),
    [
        ("E_LIMIT", False, True), ("E_INTERNAL", False, True), ("E_DISK_FULL", False, True),
        ("E_START", False, False), ("E_CLOSING", False, False), ("E_LIMIT", True, False),
    ],
)  # fmt: skip
def test_a_new_channel_that_storage_refuses_is_removed_from_its_group(
    code: str, made: bool, gone: bool
) -> None:
    """The client that asked gets the reason. If a new start may help, or if the channel existed
    before, the channel is started again.
    """
    broker = Broker()
    if made:
        broker.group.channels["c"] = ChannelProcess()
    broker.want("c", start=5)
    child = broker.group.child("c")
    assert child is not None
    child.state, child.failure = "ended", Failure(Phase.START, code, "because of the weather")
    broker.group.died(child)
    assert ("c" not in broker.group.channels) == gone
    assert [(error.code, error.text) for error in broker.answers if error] == (
        [(code, "because of the weather")] if gone else []
    )
    if gone:
        broker.want("c")
        assert broker.started == ["c", "c"], "it may be asked for again"


@pytest.mark.parametrize(
    ("failure", "ends"), [(None, False), (Failure(Phase.START, "E_START", "cannot listen"), True)]
)
def test_a_killed_gateway_restarts_and_one_without_a_port_ends_the_broker(
    failure: Failure | None, ends: bool
) -> None:
    """A gateway that was killed before it was up is started again. If its address is not available,
    the broker reports that and ends.
    """
    did: list[str] = []
    singles = singles_of(did)
    spec = SimpleNamespace(
        key=7,
        kind="gateway",
        start=ZeroMqStart(listen="127.0.0.1:1", push="", supervisor=""),
        title="gateway zeromq",
    )
    gateway: Any = SimpleNamespace(told_to_stop=False, envelope=(), failure=failure, spec=spec)
    singles.children[7] = gateway
    assert singles.ended(gateway)
    assert did == (["stop"] if ends else ["start"])
    assert not singles.ended(gateway)


def test_the_broker_runs_on_when_the_alarm_sender_fails_too_often() -> None:
    did: list[str] = []
    singles = singles_of(did)
    spec = SimpleNamespace(key=7, kind="alarm_teller", start=ActorStart(), title="alarms")
    for _ in range(options.RESTARTS_MAX + 5):
        teller: Any = SimpleNamespace(told_to_stop=False, envelope=(b"x",), failure=None, spec=spec)
        singles.children[7] = teller
        assert singles.ended(teller)
    assert did == ["start"] * options.RESTARTS_MAX


REFUSALS = (OutOfFiles(E_LIMIT, "no file is free"), ZsqError(E_LIMIT, "too many processes"))


@pytest.mark.parametrize("refusal", REFUSALS, ids=["files", "processes"])
@pytest.mark.parametrize("how", ["needed", "ended", "pool"])
def test_a_service_whose_start_is_refused_is_started_later(
    monkeypatch: pytest.MonkeyPatch, how: str, refusal: ZsqError
) -> None:
    now_ns, pause_ns = 0, int(options.FILES_RETRY_S_MAX * 1e9)
    monkeypatch.setattr(time, "monotonic_ns", lambda: now_ns)
    did: list[str] = []
    singles = singles_of(did, [refusal, refusal])

    def cause() -> None:
        if how == "needed":
            singles.start_when_needed("scheduler")
        elif how == "pool":
            singles.size_pool(1)
        else:
            spec = SimpleNamespace(key=7, kind="scan_loop", start=ActorStart(), title="scan")
            loop: Any = SimpleNamespace(told_to_stop=False, envelope=(), failure=None, spec=spec)
            singles.children[7] = loop
            assert singles.ended(loop)

    cause()
    if how != "ended":
        cause()  # one that waits for its start is not started twice
    singles.tick(pause_ns - 1)
    assert did == ["refused"]
    now_ns = pause_ns
    singles.tick(now_ns)
    singles.tick(2 * pause_ns - 1)
    assert did == ["refused", "refused"]
    singles.tick(2 * pause_ns)
    singles.tick(10 * pause_ns)
    if how != "ended":
        cause()  # it runs
    assert did == ["refused", "refused", "start"]


def test_a_service_that_found_no_free_file_is_started_later_as_often_as_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pause_ns = int(options.FILES_RETRY_S_MAX * 1e9)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    did: list[str] = []
    singles = singles_of(did)
    spec = SimpleNamespace(key=7, kind="scan_loop", start=ActorStart(), title="scan")
    failure = Failure(Phase.START, OUT_OF_FILES, "no file is free")
    for number in range(options.RESTARTS_MAX + 5):
        loop: Any = SimpleNamespace(told_to_stop=False, envelope=(), failure=failure, spec=spec)
        singles.children[7] = loop
        assert singles.ended(loop)
        assert did == ["start"] * number
        singles.tick(pause_ns)
    assert did == ["start"] * (options.RESTARTS_MAX + 5)
