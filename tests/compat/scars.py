"""Scars: damage to the files of a stopped broker, from which its next start makes those kinds of
files that only damage brings about. Each topic has one kind of damage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from support.broker import Broker, wait_for

import zsq

from . import subjects

SOON: Final = b"a row that is damaged when it becomes due"
SOON_S: Final = 5.0
HEADERS_BYTES: Final = 128  # both copies of the header of a log file
META_PAGES_BYTES: Final = 8_192
BODIES: Final = [b"scar-%d-" % number + b"." * 30_000 for number in range(4)]
LATER: Final = [b"later-%d-" % number + b"." * 100 for number in range(4)]


def _flip(path: Path, text: bytes) -> None:
    """Flip a bit in each copy of the text. LMDB keeps older copies in pages that are not used."""
    data = path.read_bytes()
    assert text in data
    with path.open("r+b") as file:
        file.write(data.replace(text, bytes([text[0] ^ 1]) + text[1:]))


def _overwrite(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.write(b"\xa5" * size)


def _block(folder: Path) -> None:
    chunk = next(path for path in folder.glob("*.chunk") if BODIES[1] in path.read_bytes())
    _flip(chunk, BODIES[1])


def _chunk(folder: Path) -> None:
    _overwrite(sorted(folder.glob("*.chunk"))[-1], HEADERS_BYTES)


def _state(folder: Path) -> None:
    _overwrite(folder / "state" / "data.mdb", META_PAGES_BYTES)


def _snapshot(folder: Path) -> None:
    _state(folder)
    _overwrite(folder / "state.snapshot", 16)


def _delayed(folder: Path) -> None:
    _overwrite(folder / "delayed" / "data.mdb", META_PAGES_BYTES // 2)


def _row(folder: Path) -> None:
    _flip(folder / "delayed" / "data.mdb", SOON)


SCARS: Final[Mapping[str, Callable[[Path], None]]] = {
    "scar-block": _block,
    "scar-chunk": _chunk,
    "scar-state": _state,
    "scar-snapshot": _snapshot,
    "scar-delayed": _delayed,
    "scar-row": _row,
}


def make(broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        for topic in SCARS:
            admin.create_channel(topic, "work")
            for body in BODIES:
                producer.publish(topic, body)
            for number, body in enumerate(LATER):
                producer.publish(topic, body, delay=subjects.FAR_S + number)
        producer.publish("scar-row", SOON, delay=SOON_S)


def scar(data_dir: Path) -> None:
    """Damage the files of the topics. The broker is stopped."""
    for topic, damage in SCARS.items():
        damage(folder_of(data_dir, topic))


def folder_of(data_dir: Path, topic: str) -> Path:
    """Return the folder of a topic."""
    text = f'"name": "{topic}"'.encode()
    (folder,) = (
        path.parent for path in data_dir.glob("topics/*/topic") if text in path.read_bytes()
    )
    return folder


def wait_met(broker: Broker) -> None:
    """Wait until the broker has met the damaged row."""
    with zsq.Admin(broker.ipc) as admin:
        wait_for(lambda: admin.delayed_count("scar-row")["lost"], what="the damaged row")


def facts(broker: Broker) -> dict[str, Any]:
    """Return what is left of each topic, by its name."""
    return {topic: _left(broker, topic) for topic in SCARS}


def _left(broker: Broker, topic: str) -> dict[str, Any]:
    with zsq.Admin(broker.ipc) as admin:
        left = [body[:6].decode() for body in subjects.bodies_of(broker, topic)]
        row = admin.stats(topic)["topics"][0]
        return {
            "bodies": left,
            "lost": row["lost_messages"],
            "channels": [one["channel_name"] for one in row["channels"]],
            "delayed": admin.delayed_count(topic)["messages"],
            "delayed_lost": admin.delayed_count(topic)["lost"],
        }
