"""Tests of the table of services: the core's rows, and those that extensions add."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from zsq.actors.alarms.extension import AlarmStart
from zsq.actors.runtime.actor import Actor
from zsq.actors.runtime.service import Site
from zsq.actors.runtime.services import doors, is_door, services
from zsq.actors.settings.options import AlarmOptions, HttpOptions, NsqOptions, ServeOptions
from zsq.actors.settings.starts import ActorStart, ArchiveStart, DoorStart, ZeroMqStart

BARE = ServeOptions(Path("/data"), gateway="")
ALL = ServeOptions(
    Path("/data"), bucket="file:///b",
    extensions=(AlarmOptions(webhooks=("http://x/",)), NsqOptions(), HttpOptions()),
)  # fmt: skip


def starts(options: ServeOptions) -> dict[str, type[ActorStart]]:
    site = Site(
        options=options, node=1, uuid="u", run_dir="/run", scan="ipc:///s", archive="ipc:///a"
    )
    started = (row for row in services().values() if row.starts_with_broker)
    return {row.kind: type(start) for row in started if (start := row.start(site)) is not None}


def test_each_service_starts_when_its_options_ask_for_it() -> None:
    scan = {"scan_loop": ActorStart, "scan_worker": ActorStart}
    assert starts(BARE) == scan
    assert starts(ALL) == scan | {
        "gateway": ZeroMqStart, "archive": ArchiveStart, "nsq_gateway": DoorStart,
        "http_gateway": DoorStart, "alarm_teller": AlarmStart,
    }  # fmt: skip


def test_the_http_gateway_describes_the_nsq_gateway_that_runs_beside_it() -> None:
    site = Site(options=ALL, node=1, uuid="u", run_dir="/run", scan="", archive="")
    start = services()["http_gateway"].start(site)
    assert isinstance(start, DoorStart)
    assert start.options.nsq == NsqOptions()


def test_each_service_names_a_class_of_an_actor() -> None:
    for row in services().values():
        assert issubclass(pkgutil.resolve_name(row.actor), Actor), row.kind


def test_gateways_are_doors_and_other_processes_are_not() -> None:
    assert [door.kind for door in doors()] == ["gateway", "nsq_gateway", "http_gateway"]
    assert is_door("nsq_gateway")
    assert not any(map(is_door, ("archive", "scan_loop", "topic", "channel")))
