"""Settings and counters of all channels of a broker: what a restart must not change."""

from __future__ import annotations

from typing import Any

from support.broker import Broker

import zsq
from zsq.actors.statistics.schema import COUNTERS


def channels(broker: Broker) -> dict[str, Any]:
    """Return the settings and counters of each channel, by topic and channel."""
    with zsq.Admin(broker.ipc) as admin:
        topics = admin.stats()["topics"]
    return {
        f"{topic['topic_name']}/{row['channel_name']}": {
            "settings": row["settings"],
            "counters": {name: row[name] for name in COUNTERS if row[name]},
        }
        for topic in topics
        for row in topic["channels"]
    }
