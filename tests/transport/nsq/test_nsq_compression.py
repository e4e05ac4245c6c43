"""Tests of NSQ's deflate and snappy layers: round trips in pieces, data of other implementations,
limits, and broken data.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zsq.transport.nsq.layers import (
    PARTS_PIECE,
    PIECE,
    DeflateLayer,
    LayerError,
    Layers,
    SnappyLayer,
)

STREAM = b"\xff\x06\x00\x00sNaPpY"
MAKERS: list[Callable[[], Any]] = [lambda: DeflateLayer(6), SnappyLayer]
BOTH = pytest.mark.parametrize("make", MAKERS, ids=["deflate", "snappy"])


def everything(layer: Any, data: bytes) -> bytes:
    plain = layer.receive(data)
    while layer.held:
        plain += layer.receive(b"")
    return bytes(plain)


def chunk(kind: int, data: bytes) -> bytes:
    return struct.pack("<I", kind | len(data) << 8) + data


def plain_chunk(data: bytes) -> bytes:
    """Return a chunk from our own writer, which does not compress data that is too short."""
    return SnappyLayer().send(data).removeprefix(STREAM)


@BOTH
@given(
    messages=st.lists(st.binary(max_size=400) | st.just(b"ab" * 50_000), max_size=6),
    cut=st.integers(1, 700),
)
def test_data_arrives_complete_however_it_is_divided(
    make: Callable[[], Any], messages: list[bytes], cut: int
) -> None:
    near, far = make(), make()
    sent = [near.send(message) for message in messages]
    assert b"".join(everything(far, packed) for packed in sent) == b"".join(messages)
    wire, other = b"".join(sent), make()
    assert b"".join(
        everything(other, wire[at : at + cut]) for at in range(0, len(wire), cut)
    ) == b"".join(messages)


@BOTH
def test_each_send_can_be_read_at_once(make: Callable[[], Any]) -> None:
    near, far = make(), make()
    for message in (b"", b"OK", b"x" * 200_000, os.urandom(100_000), b"OK"):
        assert everything(far, near.send(message)) == message


@BOTH
def test_a_bomb_comes_in_pieces(make: Callable[[], Any]) -> None:
    size = 64 * 2**20
    packed = make().send(bytes(size))
    layer, biggest, whole = make(), 0, 0
    plain = layer.receive(packed)
    while True:
        whole += len(plain)
        biggest = max(biggest, len(plain))
        if not layer.held:
            break
        plain = layer.receive(b"")
    assert whole == size
    assert biggest <= PIECE + 65_536
    assert layer.receive(b"") == b""


def test_nothing_waits_in_zlib_for_more_input() -> None:
    """At the end of a piece, zlib may have taken all input and still have output to write."""
    for size in range(PIECE, PIECE + 600, 37):
        packed = DeflateLayer(6).send(bytes(size))
        for cut in range(len(packed) - 12, len(packed)):
            assert len(everything(DeflateLayer(6), packed[:cut])) == len(
                zlib.decompressobj(-15).decompress(packed[:cut])
            )


def test_deflate_is_raw_as_gos_flate_is() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    layer = DeflateLayer(6)
    assert (
        layer.receive(packer.compress(b"hello " * 100) + packer.flush(zlib.Z_SYNC_FLUSH))
        == b"hello " * 100
    )
    packed = DeflateLayer(3).send(b"hello")
    assert packed.endswith(b"\x00\x00\xff\xff")
    assert zlib.decompressobj(-15).decompress(packed) == b"hello"


def test_a_higher_deflate_level_packs_smaller_and_wrong_levels_are_refused() -> None:
    data = os.urandom(300) * 40 + b"abcdefgh" * 3000
    assert len(DeflateLayer(9).send(data)) < len(DeflateLayer(1).send(data))
    for level in (0, 10, -1):
        with pytest.raises(ValueError, match=f"level must be 1 to 9, not {level}"):
            DeflateLayer(level)


def test_deflate_ends_with_its_last_block() -> None:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    layers = Layers()
    layers.push(DeflateLayer(6))
    assert layers.receive(packer.compress(b"bye") + packer.flush() + b"more") == b"bye"
    assert layers.receive(b"more") == b""
    assert not layers.held


def test_deflate_with_a_zlib_header_is_refused() -> None:
    with pytest.raises(LayerError, match="deflate"):
        DeflateLayer(6).receive(zlib.compress(b"with a header") * 3)


@pytest.mark.parametrize("data", [b"", b"short", b"z" * 300_000, os.urandom(70_000)], ids=len)
def test_snappy_agrees_with_another_implementation(data: bytes) -> None:
    other = cramjam.snappy.Compressor()
    other.compress(data[:1000])
    first = bytes(other.flush())
    other.compress(data[1000:])
    layer = SnappyLayer()
    assert everything(layer, first) + everything(layer, bytes(other.flush())) == data
    assert bytes(cramjam.snappy.decompress(SnappyLayer().send(data))) == data


def test_snappy_bytes_as_the_format_says() -> None:
    layer = SnappyLayer()
    sent = layer.send(b"OK")
    assert sent == STREAM + b"\x01\x06\x00\x00" + sent[14:18] + b"OK"
    assert sent == bytes(cramjam.snappy.compress(b"OK"))  # including its checksum
    # The data is compressed, and there is no second stream identifier.
    assert layer.send(b"a" * 64)[:4] == b"\x00\x0a\x00\x00"


def test_each_tls_record_of_snappy_completes_a_chunk() -> None:
    """pynsq closes the connection if a read returns compressed bytes and no plain ones."""
    record = 16_384
    for body in (os.urandom(300_000), b"x" * 10_000_000, os.urandom(10_000) * 30):
        sender, reader = SnappyLayer(), SnappyLayer()
        assert reader.receive(sender.send(b"OK")) == b"OK"
        packed = sender.send(body)
        plain = [reader.receive(packed[at : at + record]) for at in range(0, len(packed), record)]
        assert all(plain)
        while reader.held:
            plain.append(reader.receive(b""))
        assert b"".join(plain) == body


def test_snappy_skips_what_may_be_skipped() -> None:
    layer = SnappyLayer()
    wire = (
        STREAM
        + chunk(0x80, b"?" * 300)
        + chunk(0xFE, bytes(100_000))
        + STREAM
        + plain_chunk(b"here")
        + chunk(0xFD, b"")
    )
    assert (
        b"".join(layer.receive(wire[at : at + 999]) for at in range(0, len(wire), 999)) == b"here"
    )


def test_skipped_chunks_are_not_kept_in_memory() -> None:
    layer = SnappyLayer()
    layer.receive(STREAM + struct.pack("<I", 0xFE | 0xFFFFFF << 8))
    for _ in range(200):
        assert layer.receive(bytes(65_536)) == b""
        assert len(layer._rest) < 4


@pytest.mark.parametrize(
    "one",
    [chunk(0xFE, b""), chunk(0x01, struct.pack("<I", 0xA282EAD8)), STREAM],
    ids=["skipped", "empty", "stream"],
)
def test_chunks_that_hold_nothing_are_looked_at_piece_by_piece(one: bytes) -> None:
    layer = SnappyLayer()
    assert layer.receive(STREAM + one * 10_000 + plain_chunk(b"end")) == b""
    pieces = 1
    while layer.held:
        plain = layer.receive(b"")
        pieces += 1
    assert plain == b"end"
    assert pieces == -(-10_002 // PARTS_PIECE)


WRONG: dict[str, tuple[bytes, str]] = {
    "no stream identifier": (plain_chunk(b"a"), "does not begin with a stream identifier"),
    "padding before it": (chunk(0xFE, b""), "does not begin with a stream identifier"),
    "a wrong identifier": (chunk(0xFF, b"sNaPpy"), "the stream identifier is not sNaPpY"),
    "an identifier too long": (
        struct.pack("<I", 0xFF | 7 << 8),
        "the stream identifier is 7 bytes; it must be 6",
    ),
    "a reserved kind": (STREAM + struct.pack("<I", 0x02 | 4 << 8), "chunk type 0x02 is reserved"),
    "a chunk too long to be right": (
        STREAM + struct.pack("<I", 0x00 | 0xFFFFFF << 8),
        r"a chunk has 16777215 bytes; it must have 4 to \d+",
    ),
    "a plain chunk too long": (
        STREAM + struct.pack("<I", 0x01 | 65_541 << 8),
        "a chunk has 65541 bytes; it must have 4 to 65540",
    ),
    "no room for a checksum": (
        STREAM + chunk(0x01, b"abc"),
        "a chunk has 3 bytes; it must have 4 to 65540",
    ),
    "a wrong checksum": (STREAM + chunk(0x01, b"0000body"), "checksum"),
    "garbage packed": (STREAM + chunk(0x00, b"0000\x05\xff\xff"), "snappy"),
    "a bomb in one chunk": (
        STREAM + chunk(0x00, b"0000\x81\x80\x04" + b"a" * 9),
        "decompresses to 65537 bytes; the limit is 65536",
    ),
    "four gigabytes promised": (
        STREAM + chunk(0x00, b"0000\xff\xff\xff\xff\x0f" + b"a" * 9),
        "decompresses to 4294967295 bytes; the limit is 65536",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_each_broken_snappy_stream_is_refused(name: str) -> None:
    wire, text = WRONG[name]
    with pytest.raises(LayerError, match=text):
        SnappyLayer().receive(wire)


@BOTH
@given(data=st.binary(max_size=2000), begun=st.booleans())
def test_garbage_raises_nothing_but_layer_errors(
    make: Callable[[], Any], data: bytes, begun: bool
) -> None:
    layer = make()
    try:
        if begun:
            layer.receive(make().send(b"begun"))
        everything(layer, data)
    except LayerError:
        pass


def test_without_layers_bytes_pass() -> None:
    layers = Layers()
    assert (layers.receive(b"in"), layers.send(b"out"), layers.take_out(), layers.close()) == (
        b"in",
        b"out",
        b"",
        b"",
    )
    assert not layers.held
