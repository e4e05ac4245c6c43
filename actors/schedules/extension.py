"""The extension points that schedules fill: the process that publishes, the commands about
schedules, and their statistics.
"""

from __future__ import annotations

from typing import Final

from ...transport.records import record
from ..runtime.service import Service, Site
from ..settings.starts import ActorStart


@record(kw_only=True)
class SchedulerStart(ActorStart):
    """Start values of the scheduler; `url` is the broker's address, by which it publishes."""

    url: str


class SchedulerService(Service):
    """The scheduler starts with the first schedule. Without it, the broker's health says so, and
    everything else goes on.
    """

    kind = "scheduler"
    title = "scheduler"
    actor = f"{__package__}.scheduler:Scheduler"
    starts_with_broker = False
    ends_broker = False

    def start(self, site: Site) -> ActorStart:
        return SchedulerStart(url=f"ipc://{site.run_dir}")


SERVICES: Final = (SchedulerService(),)
SUPERVISOR: Final = f"{__package__}.supervision:ScheduleSupervision"
STATISTICS: Final = f"{__package__}.statistics:STATISTICS"
