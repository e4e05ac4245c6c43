"""How a channel begins: with what storage has of it, from which its logic is made."""

from __future__ import annotations

import random
import time
from typing import Any

from ..transport import protocol as p
from ..transport.errors import ZsqError
from ..transport.names import is_ephemeral
from . import channel_settings, options
from .actor import StartFailed
from .deferred import Deferred
from .delivery import Delivery
from .port import Mail, Port

_WAIT_MS = 10_000


def ask_for_row(storage: Port, channel: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Storage's answer to OpenChannel; many holes come in several. `settings`: those of a channel that is made now."""
    storage.send((), p.OpenChannel(1, channel, settings))
    holes: list[Any] = []
    while storage.socket.poll(_WAIT_MS):
        for mail in storage.receive(1):
            if isinstance(mail, Mail) and isinstance(mail.word, p.Dropped):
                continue  # the answer comes after it, and knows
            if isinstance(mail, Mail) and isinstance(mail.word, p.Failed):
                raise ZsqError(mail.word.code, mail.word.text)
            if not isinstance(mail, Mail) or not isinstance(mail.word, p.Done):
                raise StartFailed(f"storage answered something else than the channel's row: {mail[1]}")
            holes += mail.word.data["holes"]
            if not mail.word.data["more"]:
                return mail.word.data | {"holes": holes}
    raise StartFailed("storage did not answer within 10 s")


def make_delivery(key: int, channel: str, data: dict[str, Any]) -> Delivery:
    """From the row, its holes, and what the log holds now."""
    row = data["row"]
    deferred = Deferred(*data["deferred"])
    deferred.limit(options.EPHEMERAL_DEFERRED_ROWS_MAX if is_ephemeral(channel) else options.DEFERRED_ROWS_MAX)
    settings = channel_settings.resolve(row.get("settings", {}))
    made = Delivery(key, row["next"], data["holes"], row["counters"], row["paused"], deferred, settings, channel, random.random)
    made.begin = row.get("begin", row["next"])  # 0.1.0 did not say it
    made.figures.sample((), time.monotonic_ns(), time.time_ns())  # from here on rates count
    made.supply.drop_below(data["start"])
    return made
