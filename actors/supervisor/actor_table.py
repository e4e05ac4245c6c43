"""The table of actor classes: maps each kind of process to the dotted name of its class.

The names are strings, so neither the supervisor nor the runtime imports the classes.
"""

from typing import Final

ACTORS: Final = {
    "topic": "zsq.actors.topic.topic:TopicActor",
    "channel": "zsq.actors.channel.channel:ChannelActor",
    "scan_loop": "zsq.actors.scan.scan_loop:ScanLoop",
    "scan_worker": "zsq.actors.scan.scan_worker:ScanWorker",
    "gateway": "zsq.actors.gateways.zeromq:ZeroMqGateway",
    "nsq_gateway": "zsq.actors.gateways.nsq.gateway:NsqGateway",
    "http_gateway": "zsq.actors.gateways.http.gateway:HttpGateway",
    "alarm_teller": "zsq.actors.alarms.alarm_sender:AlarmSender",
    "scheduler": "zsq.actors.schedules.scheduler:Scheduler",
    "archive": "zsq.actors.bucket.archive.archive_actor:ArchiveActor",
}
# Each of these actors runs in one process, and needs libraries that no other process uses.
# Loading them only in its process keeps their cost away from brokers that do not start it.
NOT_PRELOADED: Final = frozenset({"nsq_gateway", "http_gateway", "scheduler", "archive"})
