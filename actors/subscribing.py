"""Who may take part in a channel, and on what terms. Pure."""

from __future__ import annotations

from typing import Final

from ..transport import protocol as p
from ..transport.errors import E_BAD_ARGUMENT, E_BAD_COMMAND, E_LIMIT, Refused, UsageError
from . import options
from .delivery import Delivery
from .lease import Consumer, Peer

_MS: Final = 1_000_000


def check_ready(ready: int) -> None:
    if not 0 <= ready <= p.READY_MAX:
        raise UsageError(E_BAD_ARGUMENT, f"ready {ready} is outside of 0 to {p.READY_MAX}")


def consumer_of(word: p.Sub, peer: Peer, delivery: Delivery, now_ns: int, wall_ns: int) -> Consumer:
    """The consumer that this word asks for; `UsageError` or `Refused` says why not."""
    if word.version != p.PROTOCOL_VERSION:
        raise UsageError(E_BAD_COMMAND, f"protocol version {word.version} is not spoken here, only {p.PROTOCOL_VERSION}")
    timeout_ms = word.message_timeout_ms or p.MESSAGE_TIMEOUT_MS
    if not p.MESSAGE_TIMEOUT_MS_MIN <= timeout_ms <= p.MESSAGE_TIMEOUT_MS_MAX:
        limits = f"{p.MESSAGE_TIMEOUT_MS_MIN} to {p.MESSAGE_TIMEOUT_MS_MAX} ms"
        raise UsageError(E_BAD_ARGUMENT, f"a message timeout of {timeout_ms} ms is outside of {limits}")
    check_ready(word.ready)
    if not 0 <= word.sample_rate <= p.SAMPLE_RATE_MAX:
        raise UsageError(E_BAD_ARGUMENT, f"a sample rate is 1 to {p.SAMPLE_RATE_MAX} percent, or 0 for all, not {word.sample_rate}")
    _check_room(peer, delivery, now_ns)
    heartbeat_ms = min(p.HEARTBEAT_MS_MAX, max(p.HEARTBEAT_MS_MIN, word.heartbeat_ms))
    return Consumer(
        peer, word.label[:128], word.ready, timeout_ms * _MS, heartbeat_ms * _MS, now_ns, wall_ns // 1_000_000_000,
        sample_rate=word.sample_rate,
    )  # fmt: skip


def _check_room(peer: Peer, delivery: Delivery, now_ns: int) -> None:
    """Those that are lost hold no place, though no scan has found them yet."""
    consumers = delivery.consumers
    limit = min(delivery.settings.max_consumers or options.CONSUMERS_MAX, options.CONSUMERS_MAX)
    if peer in consumers or len(consumers) < limit:
        return
    for lost in delivery.lost_consumers(now_ns):
        delivery.unsubscribe(lost)
    if len(consumers) >= limit:
        raise Refused(E_LIMIT, f"the channel has {len(consumers)} consumers, and takes {limit} at a time; try again when one has left")
