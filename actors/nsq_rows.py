"""What `stats` shows of NSQ's clients: what the channels know of them, with what they said of themselves to the gateway. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

Row = dict[str, Any]

# The channel's own figures stand; what only the gateway knows is added.
OF_GATEWAY: Final = (
    "client_id", "hostname", "version", "remote_address", "state", "deflate", "snappy", "user_agent", "authed", "auth_identity",
    "auth_identity_url", "topology_region", "topology_zone", "pub_counts", "tls", "tls_cipher_suite", "tls_version",
    "tls_negotiated_protocol", "tls_negotiated_protocol_is_mutual",
)  # fmt: skip


def label_of(client_id: str, remote: str) -> str:
    """What a channel calls a client of the gateway: readable, and no other connection's."""
    return f"{client_id[:64]} {remote}"


def add_clients(topics: Iterable[Row], clients: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Fill the rows of consumers in `topics` in; returned are those that publish, as nsqd's `producers`."""
    rows = [dict(row) for row in clients if {"topic", "channel", "label", *OF_GATEWAY} <= row.keys()]  # a gateway ends nobody but itself
    known = {(row["topic"], row["channel"], row["label"]): row for row in rows}
    for topic in topics if known else ():
        for channel in topic["channels"]:
            channel["clients"] = tuple(
                _merged(one, known.get((topic["topic_name"], channel["channel_name"], one["client_id"]))) for one in channel["clients"]
            )
    return [{name: value for name, value in row.items() if name not in {"topic", "channel", "label"}} for row in rows if row["pub_counts"]]


def _merged(client: Mapping[str, Any], row: Row | None) -> Row:
    return {**client, **{name: row[name] for name in OF_GATEWAY}} if row is not None else dict(client)
