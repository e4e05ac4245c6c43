"""Tests of the registry's format: what is written can be read, and everything else is refused with
the name of the wrong key.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from zsq.actors.supervisor.topics.registry_format import (
    CHECKSUM,
    Content,
    ImportRecord,
    LocalParts,
    RegistryDamaged,
    TopicRow,
    checksum,
    decode,
    encode,
)
from zsq.storage.cluster.directory import NOBODY, TopicEntry
from zsq.storage.errors import ForeignDirectory

UUID = "00112233445566778899aabbccddeeff"
OTHER = "ffeeddccbbaa99887766554433221100"
PART, OWNER = "a" * 32, "b" * 32


TAPS = {
    "kind": "topic", "id": PART, "topic": "taps", "uuid": OWNER, "brokers": [0, 0], "settings": {},
    "closed": [], "removed": [],
}  # fmt: skip


def content() -> Content:
    topics = {
        "clicks": TopicRow(1, UUID, "always", 0, "live", {"keep_time_s": 60.5}),
        "views": TopicRow(
            3, OTHER, "interval", 2**53, "deleting", schedules={"nightly": {"cron": "0 3 * * *"}}
        ),
        "taps#12": TopicRow(2, PART, "always", 0, "live", part_of=OWNER),
    }
    imports: dict[str, ImportRecord] = {
        "d1": {"state": "begun", "numbers": [4, 5], "from": "/ä"},
        "d2": {"state": "done"},
    }
    parted = LocalParts(
        (
            TopicEntry(PART, "taps", OWNER, (0, 0, NOBODY), {"sync": "always"}, (1,), ((2, 17),)),
            TopicEntry(OWNER, "drops", PART, (0,), {}),
        ),
        (OTHER,),
    )
    return Content(UUID, 1023, 6, topics, {"old": 1234}, imports, parted=parted)


def test_an_encoded_registry_decodes_to_the_same_content() -> None:
    assert decode(encode(content()), "r") == content()
    assert isinstance(json.loads(encode(content())), dict), "any JSON tool reads it"


def test_earlier_versions_can_read_the_row_of_a_topic_without_later_settings() -> None:
    rows = json.loads(encode(content()))["topics"]
    of_earlier = {"number", "uuid", "sync", "base_offset", "state", "retention", "closed"}
    assert rows["clicks"].keys() == of_earlier
    assert rows["taps#12"].keys() == of_earlier | {"part_of"}
    assert rows["views"].keys() == of_earlier | {"schedules"}


def test_a_registry_with_another_json_layout_has_the_same_content() -> None:
    assert (
        decode(json.dumps(json.loads(encode(content())), sort_keys=True).encode(), "r") == content()
    )


def test_every_flipped_bit_is_found_or_has_no_effect() -> None:
    good = encode(content())
    found = 0
    for at in range(len(good)):
        for bit in range(8):
            flipped = bytearray(good)
            flipped[at] ^= 1 << bit
            try:
                read = decode(bytes(flipped), "r")
            except RegistryDamaged:
                found += 1
                continue
            assert read == content(), (at, bit)
    assert found > len(good) * 8 * 0.7


@pytest.mark.parametrize("size", [0, 1, 7, 100, -1])
def test_an_incomplete_registry_is_refused(size: int) -> None:
    with pytest.raises(RegistryDamaged):
        decode(encode(content())[:size], "r")


def spoilt(path: str, value: Any) -> bytes:
    """Return a registry with this value at `path`, without a checksum, as if edited by hand. The
    value `...` removes the key.
    """
    data = json.loads(encode(content()))
    del data[CHECKSUM]
    *way, last = path.split(".")
    inner = data
    for key in way:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(data).encode()


WRONG: list[tuple[str, Any]] = [
    *((key, ...) for key in ("version", "uuid", "node", "next_number", "topics", "ended")),
    *((f"topics.clicks.{key}", ...) for key in ("number", "uuid", "sync", "base_offset", "state")),
    *(
        (key, value)
        for key in ("version", "node", "next_number", "ended.old")
        for value in ("1", 1.0, True, None, -1)
    ),
    *(
        (key, value)
        for key in ("uuid", "topics.clicks.uuid")
        for value in (5, None, "ab", UUID.upper(), "g" * 32)
    ),
    *(
        (f"topics.clicks.{key}", value)
        for key in ("number", "base_offset")
        for value in ("1", 1.0, True, None, -1, 2**60)
    ),
    *(
        (key, value)
        for key in ("topics", "ended", "imports", "topics.clicks", "topics.clicks.retention")
        for value in (5, "x")
    ),
    ("node", 1024),
    ("next_number", 3),
    ("topics.clicks.number", 0),
    ("topics.clicks.number", 3),
    ("topics.clicks.uuid", OTHER),
    ("topics.clicks.sync", "alwayq"),
    ("topics.clicks.state", "nive"),
    ("topics.clicks.colour", "red"),
    *(("topics.taps#12.part_of", value) for value in ("", "ab", 5, None)),
    ("topics.a/b", {}),
    ("ended.a/b", 7),
    ("ended.old", 2**54),
    ("imports.d1.state", "lost"),
    ("imports.d1.numbers", None),
    ("imports.d1.numbers", ["4"]),
    ("colour", "red"),
    ("parted", 5),
    ("parted.topics", {}),
    ("parted.topics", [{"kind": "part", "id": PART, "uuid": OWNER, "broker": 0}]),
    ("parted.topics", [{"kind": "topic"}]),
    ("parted.topics", [{**TAPS, "brokers": [0, 1]}]),
    ("parted.topics", [{**TAPS, "removed": [[0, 5]]}]),
    ("parted.topics", [{**TAPS, "removed": [[0]]}]),
    ("parted.topics", [{**TAPS, "closed": [2]}]),
    ("parted.topics", [TAPS, TAPS]),
    ("parted.removed", ["x"]),
    ("parted.colour", "red"),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_wrong_value_is_refused_with_its_key(key: str, value: Any) -> None:
    with pytest.raises(RegistryDamaged, match=r"^some/registry\.json is damaged: ") as error:
        decode(spoilt(key, value), "some/registry.json")
    assert key.rpartition(".")[2] in str(error.value)


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_value_that_another_version_wrote_is_no_damage(key: str, value: Any) -> None:
    data = json.loads(spoilt(key, value))
    data[CHECKSUM] = checksum(data)
    with pytest.raises(ForeignDirectory) as error:
        decode(json.dumps(data).encode(), "some/registry.json")
    assert not isinstance(error.value, RegistryDamaged)
    assert key.rpartition(".")[2] in str(error.value)


def test_a_registry_without_a_checksum_is_accepted_as_not_checked() -> None:
    lines = encode(content()).splitlines()
    assert not decode(b"\n".join(line for line in lines if b"checksum" not in line), "r").checked, (
        "an editor takes out one line"
    )
    read = decode(spoilt("node", 7), "r")
    assert (read.node, read.checked) == (7, False)
    assert not decode(spoilt("imports", ...), "r").imports


@pytest.mark.parametrize("with_checksum", [True, False])
def test_an_unknown_version_is_not_reported_as_damage(with_checksum: bool) -> None:
    data = json.loads(spoilt("version", 2)) | {"new": "meaning"}
    if with_checksum:
        data[CHECKSUM] = checksum(data)
    with pytest.raises(ForeignDirectory, match="use a newer zsq") as error:
        decode(json.dumps(data).encode(), "r")
    assert not isinstance(error.value, RegistryDamaged)
