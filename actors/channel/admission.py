"""Admission: checks which consumers a channel accepts. No I/O."""

from __future__ import annotations

from ...transport.errors import E_BAD_ARGUMENT, E_BAD_COMMAND, E_LIMIT, Refused, UsageError
from ...transport.units import NS_PER_MS, NS_PER_S
from ...transport.wire import protocol as p
from ..settings import options
from .core import ChannelCore
from .lease import Peer, Subscriber


def check_ready(ready: int) -> None:
    if not 0 <= ready <= p.READY_MAX:
        raise UsageError(E_BAD_ARGUMENT, f"ready count must be 0 to {p.READY_MAX}, not {ready}")


def consumer_of(
    message: p.Sub, peer: Peer, core: ChannelCore, now_ns: int, wall_ns: int
) -> Subscriber:
    """Return the consumer that this request describes.

    Raises `UsageError` or `Refused` if the channel does not accept it.
    """
    if message.version != p.PROTOCOL_VERSION:
        text = f"the broker uses protocol version {p.PROTOCOL_VERSION}, not {message.version}; use the same version of ZSQ on both sides"
        raise UsageError(E_BAD_COMMAND, text)
    timeout_ms = message.message_timeout_ms or p.MESSAGE_TIMEOUT_MS
    if not p.MESSAGE_TIMEOUT_MS_MIN <= timeout_ms <= p.MESSAGE_TIMEOUT_MS_MAX:
        limits = f"{p.MESSAGE_TIMEOUT_MS_MIN} to {p.MESSAGE_TIMEOUT_MS_MAX} ms"
        raise UsageError(E_BAD_ARGUMENT, f"message timeout must be {limits}, not {timeout_ms} ms")
    check_ready(message.ready)
    if not 0 <= message.sample_rate <= p.SAMPLE_RATE_MAX:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"sample rate must be 1 to {p.SAMPLE_RATE_MAX} percent, or 0 for all, not {message.sample_rate}",
        )
    core.end_session(message.session, message.request)
    _check_room(peer, core, now_ns)
    heartbeat_ms = min(p.HEARTBEAT_MS_MAX, max(p.HEARTBEAT_MS_MIN, message.heartbeat_ms))
    return Subscriber(
        peer, message.label[:128], message.ready, timeout_ms * NS_PER_MS, heartbeat_ms * NS_PER_MS, now_ns, wall_ns // NS_PER_S,
        sample_rate=message.sample_rate, reports=message.reports, session=message.session,
        attempt=message.request,
    )  # fmt: skip


def _check_room(peer: Peer, core: ChannelCore, now_ns: int) -> None:
    """Raise `Refused` (E_LIMIT) if the channel has no room for another consumer.

    Lost consumers do not count, even if no scan has found them yet.
    """
    consumers = core.consumers
    limit = min(core.settings.max_consumers or options.CONSUMERS_MAX, options.CONSUMERS_MAX)
    if peer in consumers or len(consumers) < limit:
        return
    for lost in core.lost_consumers(now_ns):
        core.unsubscribe(lost)
    if len(consumers) >= limit:
        raise Refused(
            E_LIMIT,
            (
                f"the channel has {len(consumers)} consumers; the limit is {limit}. Try again when "
                "a consumer has left"
            ),
        )
