"""Archive service: the archive actor as a process of the broker, and the role of the broker."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ...transport.wire import protocol as p
from ..runtime.process import advertised
from ..runtime.service import Service, Site
from ..settings.options import ServeOptions
from ..settings.starts import ActorStart, ArchiveStart


class ArchiveService(Service):
    """The archive actor. It stops after all others, because topics ship while they stop."""

    kind = "archive"
    title = "bucket"
    actor = f"{__package__}.archive.archive_actor:ArchiveActor"
    order = 1
    needs_outside = True
    keeps_endpoint = True
    stops_last = True

    def start(self, site: Site) -> ActorStart | None:
        options = site.options
        if not options.bucket:
            return None
        return ArchiveStart(
            front=site.archive,
            url=options.bucket,
            broker=site.uuid,
            writer=uuid.uuid4().hex,
            known=site.archive_identity,
            fresh=uuid.uuid4().hex,
            data_dir=str(options.data_dir),
            run_dir=site.run_dir,
            is_probed=options.is_probed,
            addresses=advertised(options.gateway, options.advertise),
            ship_lag_s=options.bucket_lag_s,
            costs=options.bucket_costs,
            cluster=options.cluster,
        )

    def successor(self, start: ActorStart, site: Site) -> ActorStart:
        assert isinstance(start, ArchiveStart)
        return replace(start, first=False, known=site.archive_identity)

    def name_for_topics(self, key: int) -> str:
        return self.kind

    def merged(self, now: ServeOptions, new: ServeOptions) -> tuple[ServeOptions, Sequence[str]]:
        if now.bucket and bool(now.bucket_lag_s) != bool(new.bucket_lag_s):
            return now, ["--bucket-lag (to turn shipping on or off)"]
        return replace(now, bucket_lag_s=new.bucket_lag_s), ()

    def renewed(self, start: ActorStart, options: ServeOptions) -> ActorStart:
        assert isinstance(start, ArchiveStart)
        return replace(start, ship_lag_s=options.bucket_lag_s)

    def reload(self, request: int, options: ServeOptions) -> p.Reload:
        if not options.ships:
            return super().reload(request, options)
        return p.ReloadShipping(request, options.log_level, options.bucket_lag_s)


SERVICES: Final = (ArchiveService(),)


def role(options: ServeOptions) -> str:
    """Return the function that runs a broker with a standby, which may change its role."""
    return f"{__package__}.standby.role:run_broker" if options.ships else ""
