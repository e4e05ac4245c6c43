"""Which class carries out which kind of process, by its dotted name: neither the supervisor nor the runtime imports any of them."""

from typing import Final

ACTORS: Final = {
    "storage": "zsq.actors.storage.storage_actor:StorageActor",
    "topic": "zsq.actors.topic.topic:TopicActor",
    "channel": "zsq.actors.channel.channel:ChannelActor",
    "scan_loop": "zsq.actors.scan.scan_loop:ScanLoop",
    "scan_worker": "zsq.actors.scan.scan_worker:ScanWorker",
    "gateway": "zsq.actors.gateways.zeromq:ZeroMqGateway",
    "nsq_gateway": "zsq.actors.gateways.nsq.gateway:NsqGateway",
    "http_gateway": "zsq.actors.gateways.http.gateway:HttpGateway",
    "alarm_teller": "zsq.actors.alarms.alarm_sender:AlarmSender",
}
# Gateways with libraries of their own: each is there once, so who does not start one does not pay for it.
NOT_PRELOADED: Final = frozenset({"nsq_gateway", "http_gateway"})
