"""Opening of a channel: its stored state, and the core that is made from it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import NamedTuple

from ...storage.state.channel_row import ChannelRow
from ...transport.errors import ZsqError
from ...transport.names import is_ephemeral
from ...transport.settings import NONE, NewChannelSettings
from ...transport.wire import protocol as p
from ..primitives.boot_clock import boot_ns
from ..primitives.ranges import Span
from ..runtime.actor import StartFailed
from ..runtime.port import Mail, Port
from ..settings import channel_settings, options
from .core import ChannelCore
from .deferred import Deferred
from .lease import Hole
from .rate_limit import restored

_WAIT_MS = 10_000


class OpenedChannel(NamedTuple):
    """The stored state of a channel.

    `holes` are the rows of unfinished messages below the cursor (see `supply.py`). They include the
    deferred rows only if the channel is ordered. `deferred` holds the number of deferred rows, the
    number of their messages, and the next due time. `start` and `end` are the bounds of the log.
    `gaps` are the spans of offsets that the log skips. `expires_s` is the topic's setting.
    """

    row: ChannelRow
    holes: Sequence[Hole]
    deferred: tuple[int, int, int]
    start: int
    end: int
    gaps: Sequence[Span]
    expires_s: float


def ask_for_row(storage: Port, channel: str, settings: NewChannelSettings) -> OpenedChannel:
    """Open the channel in the storage and return its state.

    If the channel has many holes, the storage sends them in several replies. `settings` are the
    settings of a channel that is created now.
    """
    storage.send((), p.OpenChannel(1, channel, {**settings}))
    holes: list[Hole] = []
    while storage.socket.poll(_WAIT_MS):
        for mail in storage.receive(1):
            if isinstance(mail, Mail) and isinstance(mail.message, p.Dropped | p.SetRetention):
                continue  # the reply that follows has the new start and the new setting too
            if isinstance(mail, Mail) and isinstance(mail.message, p.Failed):
                raise ZsqError(mail.message.code, mail.message.text)
            if not isinstance(mail, Mail) or not isinstance(mail.message, p.Done):
                raise StartFailed(
                    f"storage did not answer with the state of channel {channel}, but with "
                    f"{mail[1]}"
                )
            data = mail.message.data
            holes += data["holes"]
            if not data["more"]:
                return OpenedChannel(
                    ChannelRow.decode(data["row"]),
                    holes,
                    data["deferred"],
                    data["start"],
                    data["end"],
                    data["gaps"],
                    data.get("expires_s", NONE),
                )
    raise StartFailed("the topic's storage did not answer within 10 s")


def make_delivery(key: int, channel: str, opened: OpenedChannel) -> ChannelCore:
    """Create the channel core from the stored state and the present bounds of the log."""
    row = opened.row
    deferred = Deferred(*opened.deferred)
    deferred.limit(
        options.EPHEMERAL_DEFERRED_ROWS_MAX if is_ephemeral(channel) else options.DEFERRED_ROWS_MAX
    )
    settings = channel_settings.resolve(row.settings or {})
    core = ChannelCore(
        key,
        row.next_offset,
        opened.holes,
        row.counters,
        row.paused,
        deferred,
        settings,
        channel,
        random.random,
    )
    if row.limit_full_ns is not None:
        core.limit = restored(settings, row.limit_full_ns, boot_ns(), time.time_ns())
    # An import from nsqd does not store `begin`.
    begin = row.next_offset if row.begin is None else row.begin
    # Rates are measured from here on.
    core.measurements.sample((), time.monotonic_ns(), time.time_ns())
    core.go_on(opened.gaps, begin, row.emptied or ())
    core.supply.choice.endings.go_on_with(row.revoked or ())
    core.set_lifetime(opened.expires_s)
    core.supply.drop_below(opened.start)
    return core
