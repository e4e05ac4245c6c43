"""What the forkserver imports before it forks.

All that a child needs first is here, also what only unpickles it: each child would import it anew (11 of 26 ms to make a channel).
"""

import gc
import importlib
import multiprocessing.popen_forkserver  # noqa: F401
import os
from typing import Final

from . import alarm_teller, channel, gateway, scan_loop, scan_worker, storage_actor, topic
from . import process_table as _process_table  # noqa: F401
from .actor import Actor

# Gateways with libraries of their own: each is there once, so who does not start one does not pay for it.
_LAZY: Final = {"nsq_gateway": ("nsq.gateway", "NsqGateway"), "http_gateway": ("http.gateway", "HttpGateway")}

ACTORS: Final[dict[str, type[Actor]]] = {
    "storage": storage_actor.StorageActor,
    "topic": topic.Topic,
    "channel": channel.Channel,
    "scan_loop": scan_loop.ScanLoop,
    "scan_worker": scan_worker.ScanWorker,
    "gateway": gateway.Gateway,
    "alarm_teller": alarm_teller.AlarmTeller,
}


def actor_class(kind: str) -> type[Actor]:
    if kind in _LAZY:
        module, name = _LAZY[kind]
        found: type[Actor] = getattr(importlib.import_module(f".{module}", __package__), name)
        return found
    return ACTORS[kind]


if "ZSQ_SUPERVISOR_PID" in os.environ:
    gc.collect()
    gc.freeze()  # a collection in a child would write to every object's page, and so copy what all children share
