"""The extension points that alarms fill: the supervisor's watch, and the process that sends."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Final, TypedDict

from ...transport.records import record
from ..runtime.service import Service, Site
from ..settings.options import AlarmOptions, ServeOptions
from ..settings.starts import ActorStart


class AlarmBroker(TypedDict):
    """The description of the broker that receivers of alarms get."""

    host: str
    node: int
    uuid: str
    data_dir: str


@record(kw_only=True)
class AlarmStart(ActorStart):
    """Start values of the alarm sender; `broker` describes the broker to receivers."""

    alarms: AlarmOptions
    broker: AlarmBroker


class AlarmService(Service):
    """The alarm sender. Without it, alarms are still in the log."""

    kind = "alarm_teller"
    title = "alarms"
    actor = f"{__package__}.alarm_sender:AlarmSender"
    order = 4
    is_preloaded = True
    ends_broker = False

    def start(self, site: Site) -> ActorStart | None:
        alarms = site.options.of(AlarmOptions)
        if alarms is None or not alarms.tells:
            return None
        broker: AlarmBroker = {
            "host": socket.gethostname(), "node": site.node, "uuid": site.uuid,
            "data_dir": str(site.options.data_dir.absolute()),
        }  # fmt: skip
        return AlarmStart(alarms=alarms, broker=broker)

    def merged(self, now: ServeOptions, new: ServeOptions) -> tuple[ServeOptions, Sequence[str]]:
        return now.having(new.of(AlarmOptions) or AlarmOptions()), ()


SERVICES: Final = (AlarmService(),)
SUPERVISOR: Final = f"{__package__}.alarm_watch:AlarmWatch"
