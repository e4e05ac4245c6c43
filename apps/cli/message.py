"""zsq message: one message, by its offset or its id."""

from __future__ import annotations

import base64
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from .options import with_broker
from .output import json_option, tell

if TYPE_CHECKING:
    from ...transport.stored import StoredMessage


@click.command()
@click.argument("topic")
@click.argument("which", metavar="OFFSET|ID")
@json_option
@with_broker
def message(topic: str, which: str, as_json: bool, url: str, timeout: float) -> None:
    """Write the body of one message of TOPIC to standard output; nothing is finished.

    It is named by its offset, or by its id: 16 hex digits, of which 10 bits are the node and 54 the offset.
    """
    from ...transport.client import Admin, Reader
    from ...transport.errors import E_NOT_FOUND, NotFound
    from ...transport.names import check_name
    from ...transport.stored import parse_id

    node, offset = parse_id(which)
    check_name(topic)
    if node is not None:
        with Admin(url, timeout=timeout) as admin:
            here = int(admin.stats(topic)["node"])
        if here != node:
            raise NotFound(E_NOT_FOUND, f"the id {which} is of node {node}; this broker is node {here}")
    with Reader(url, topic, timeout=timeout) as reader:
        found = reader.message(offset)
    if as_json:
        tell(as_object(found))
        return
    sys.stdout.buffer.write(found.body + b"\n")
    sys.stdout.buffer.flush()


def as_object(found: StoredMessage) -> dict[str, Any]:
    """For JSON: bytes as text where they are UTF-8, else in base64 under a name that says so."""
    time = datetime.fromtimestamp(found.timestamp_ns / 1e9, UTC).isoformat()
    shown: dict[str, Any] = {"topic": found.topic, "offset": found.offset, "timestamp_ns": found.timestamp_ns, "timestamp": time}
    for name, value in (("key", found.key), ("body", found.body)):
        if value is None:
            continue
        try:
            shown[name] = value.decode()
        except UnicodeDecodeError:
            shown[f"{name}_base64"] = base64.b64encode(value).decode()
    if found.tag is not None:
        shown["tag"] = found.tag
    if found.headers:
        shown["headers"] = {name: value if not isinstance(value, bytes) else value.hex() for name, value in found.headers.items()}
    return shown
