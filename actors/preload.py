"""What the forkserver imports before it forks, and its own end: it dies with the supervisor."""

import os

from . import channel, gateway, process, scan_loop, scan_worker, storage_actor, topic

_supervisor = int(os.environ.get("ZSQ_SUPERVISOR_PID", "0"))
if _supervisor:
    process.die_with_parent(_supervisor)
    process.set_title("forkserver")

ACTORS = {
    "storage": storage_actor.StorageActor,
    "topic": topic.Topic,
    "channel": channel.Channel,
    "scan_loop": scan_loop.ScanLoop,
    "scan_worker": scan_worker.ScanWorker,
    "gateway": gateway.Gateway,
}
