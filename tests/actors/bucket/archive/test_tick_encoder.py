"""Tests of the tick encoder: what a tick has, and which pieces are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from zsq.actors.bucket.archive.tick_encoder import Encoded, TickEncoder
from zsq.storage.bucket.shipping.tick_format import (
    TAILS_EVERY,
    TICK,
    Index,
    Piece,
    Range,
    advanced,
    decode_index,
)
from zsq.storage.files import Files
from zsq.storage.log.log_format import chunk_name
from zsq.transport.wire import protocol as p

ONE, TWO = "1" * 32, "2" * 32
DATA = bytes(range(200))


@pytest.fixture
def encoder(tmp_path: Path) -> TickEncoder:
    (tmp_path / chunk_name(0)).write_bytes(DATA)
    return TickEncoder(Files(), "digest of the takeover", {})


class Maker:
    """Makes pieces of a topic, one after the other."""

    def __init__(self, folder: Path, uuid: str, stream: int = 7) -> None:
        self.folder = folder
        self.uuid = uuid
        self.stream = stream
        self.sequence = 0
        self.position = 0

    def piece(self, size: int = 10, changes: bytes = b"") -> tuple[Piece, p.Ship]:
        self.sequence += 1
        ranges = (Range(0, self.position, self.position + size),) if size else ()
        self.position += size
        message = p.Ship(
            1, self.uuid, str(self.folder), self.stream, self.sequence, self.sequence == 1, "",
            self.sequence, 100, 0, tuple((one[0], one[1], one[2]) for one in ranges), 0, False, changes,
        )  # fmt: skip
        piece = Piece(
            self.uuid, self.stream, self.sequence, self.sequence == 1, "", self.sequence, 100, 0,
            ranges, len(changes),
        )  # fmt: skip
        return piece, message


def index(number: int) -> Index:
    return Index(TICK, number, 1, "a", "c", "host", 0, "", 0, (), -1, ())


def encode(
    encoder: TickEncoder, number: int, *pieces: tuple[Piece, p.Ship], registry: bytes = b""
) -> Encoded:
    return encoder.encode(index(number), pieces, registry, {ONE, TWO})


def test_a_tick_has_the_bytes_of_its_pieces(encoder: TickEncoder, tmp_path: Path) -> None:
    maker = Maker(tmp_path, ONE)
    maker.piece()  # a piece that an earlier process has shipped
    encoder = TickEncoder(
        Files(), "before", {ONE: advanced(None, Maker(tmp_path, ONE).piece()[0], 3)}
    )
    made = encode(encoder, 5, maker.piece(20, b"rows"), registry=b"registry")
    found = decode_index(made.tick.data)
    (piece,) = found.index.pieces
    body = made.tick.data[found.body :]
    assert body[:8] == b"registry"
    assert body[piece.position : piece.position + piece.size] == DATA[10:30] + b"rows"
    assert found.index.previous == "before"
    assert made.tails[ONE] == advanced(advanced(None, Maker(tmp_path, ONE).piece()[0], 3), piece, 5)


def test_each_tick_names_the_one_before_it(encoder: TickEncoder, tmp_path: Path) -> None:
    maker = Maker(tmp_path, ONE)
    first = encode(encoder, 5, maker.piece())
    second = encode(encoder, 6, maker.piece())
    assert first.tick.index.previous == "digest of the takeover"
    assert second.tick.index.previous == first.tick.digest


def test_every_64th_tick_has_the_tails_after_it(encoder: TickEncoder, tmp_path: Path) -> None:
    maker = Maker(tmp_path, ONE)
    before = encode(encoder, TAILS_EVERY - 1, maker.piece())
    assert decode_index(before.tick.data).index.tails is None
    made = encode(encoder, TAILS_EVERY, maker.piece())
    assert decode_index(made.tick.data).index.tails == made.tails
    assert made.tails[ONE].sequence == 2


def test_the_tails_of_deleted_topics_are_forgotten(encoder: TickEncoder, tmp_path: Path) -> None:
    encode(encoder, 5, Maker(tmp_path, ONE).piece(), Maker(tmp_path, TWO).piece())
    made = encoder.encode(index(6), (), b"", {TWO})
    assert set(made.tails) == {TWO}


def test_a_piece_that_cannot_be_read_fails_only_its_topic(
    encoder: TickEncoder, tmp_path: Path
) -> None:
    gone, well = Maker(tmp_path / "gone", ONE), Maker(tmp_path, TWO)
    made = encode(encoder, 5, well.piece(), gone.piece(), well.piece())
    assert set(made.failed) == {1}
    assert [one.uuid for one in made.tick.index.pieces] == [TWO, TWO]
    assert made.tails[TWO].sequence == 2


def test_later_pieces_of_the_same_stream_fail_too(encoder: TickEncoder, tmp_path: Path) -> None:
    maker = Maker(tmp_path / "gone", ONE)
    pieces = [maker.piece() for _ in range(3)]
    maker.folder.mkdir()
    (maker.folder / chunk_name(0)).write_bytes(DATA)
    first = encode(encoder, 5, pieces[0])
    assert first.failed == {}
    (maker.folder / chunk_name(0)).unlink()
    assert set(encode(encoder, 6, pieces[1]).failed) == {0}
    (maker.folder / chunk_name(0)).write_bytes(DATA)
    again = encode(encoder, 7, pieces[1], pieces[2])
    assert set(again.failed) == {0, 1}, "also the same piece again"
    fresh = Maker(maker.folder, ONE, stream=8)
    fresh.position = 10
    assert encode(encoder, 8, fresh.piece()).failed == {}


@pytest.mark.parametrize("skipped", [1, 2])
def test_a_piece_that_does_not_follow_fails(
    encoder: TickEncoder, tmp_path: Path, skipped: int
) -> None:
    maker = Maker(tmp_path, ONE)
    pieces = [maker.piece() for _ in range(4)]
    encode(encoder, 5, *pieces[: skipped - 1])
    made = encode(encoder, 6, pieces[skipped])
    assert set(made.failed) == {0}


def test_a_file_that_is_too_short_fails_the_piece(encoder: TickEncoder, tmp_path: Path) -> None:
    made = encode(encoder, 5, Maker(tmp_path, ONE).piece(len(DATA) + 1))
    assert "ends before" in made.failed[0]


def test_a_stream_that_was_told_of_an_older_end_fails(encoder: TickEncoder, tmp_path: Path) -> None:
    """The last piece of a dead process may arrive after its successor has asked."""
    old = Maker(tmp_path, ONE)
    encode(encoder, 5, old.piece())
    fresh = Maker(tmp_path, ONE, stream=8)
    fresh.position = old.position
    encode(encoder, 6, old.piece())
    made = encode(encoder, 7, fresh.piece())
    assert set(made.failed) == {0}
