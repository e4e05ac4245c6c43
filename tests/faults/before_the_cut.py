"""Histories of a topic before the start during which the power is cut. Each leaves damage of one
kind that a start, or a repair, must handle.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from zsq.storage.log.log_format import CHUNK_HEADER_BYTES, chunk_name, index_name

from .life import Life

# Position of LMDB's magic number in each meta page (the first two pages of the file).
HEAD_MAGIC: Final = 16
HEAD_COMMIT: Final = 16 + 128


def some_history(life: Life) -> None:
    for _ in range(4):
        life.publish(blocks=2)
        life.sync()
    life.checkpoint()
    life.save_channel("one", 7, [(2, 1, 1, 0)])


def without_its_state(life: Life) -> None:
    """The state store is unusable: the start rebuilds it from its snapshot and the log."""
    some_history(life)
    life.damage_while_closed("state/data.mdb", lambda data: b"\xff" * len(data))


def without_a_footer(life: Life) -> None:
    """The footer of the first chunk, its index, the identity and the snapshot are invalid."""
    some_history(life)
    life.damage_while_closed(chunk_name(0), lambda data: data[:-20] + bytes(20))
    life.damage_while_closed(index_name(0), lambda data: data[:30])
    life.damage_while_closed("topic", lambda data: data[5:])
    life.damage_while_closed("state.snapshot", lambda data: data[:-9])


def with_a_bad_block(life: Life) -> None:
    some_history(life)
    life.lose(1)


def with_a_bad_delayed_row(life: Life) -> None:
    life.publish_delayed(10, 20, 30)
    life.publish_delayed(40)
    life.move(10)
    life.lose_delayed(b"delayed 2/0", b"delayed 2/1")


def with_its_end_cut_off(life: Life) -> None:
    """The last synced bytes are missing. The log continues after the hole that they leave."""
    some_history(life)
    base = life.log.chunks[-1]
    life.lost.add(len(life.sent) - 1)
    life.damage_while_closed(chunk_name(base), lambda data: data[:-60])


def without_its_last_header(life: Life) -> None:
    """The header of the last chunk is lost: the start moves the chunk to a `.bad` file, with all of
    its messages.
    """
    some_history(life)
    base = life.log.chunks[-1]
    life.lost.update(sequence for sequence, offset in life.offsets.items() if offset >= base)
    life.damage_while_closed(
        chunk_name(base), lambda data: bytes(CHUNK_HEADER_BYTES) + data[CHUNK_HEADER_BYTES:]
    )


def without_a_chunk(life: Life) -> None:
    for _ in range(4):
        some_history(life)
    first, base, following = life.log.chunks[:3]
    life.lost.update(
        sequence for sequence, offset in life.offsets.items() if base <= offset < following
    )
    life.damage_while_closed(chunk_name(first), lambda data: data)
    (Path(life.directory) / chunk_name(base)).unlink()


def without_delayed_messages(life: Life) -> None:
    """The folder of the delayed messages is missing. The start reports that once, and new delayed
    messages can be published.
    """
    life.publish_delayed(10, 20)
    life.abandon_cleanly()
    shutil.rmtree(f"{life.directory}/delayed")
    life.put.clear()
    life.damaged = True


def with_a_damaged_head(life: Life) -> None:
    """The newer of LMDB's two meta pages is damaged. The start copies all rows, and keeps the
    damaged environment.
    """
    life.publish_delayed(10, 20, 30)
    life.publish_delayed(40)
    life.move(10)

    def hit(data: bytes) -> bytes:
        first, second = (
            int.from_bytes(data[page + HEAD_COMMIT : page + HEAD_COMMIT + 8], "little")
            for page in (0, 4096)
        )
        at = HEAD_MAGIC if first > second else 4096 + HEAD_MAGIC
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    life.damage_while_closed("delayed/data.mdb", hit)


def with_an_older_commit(life: Life) -> None:
    """LMDB's file is replaced by an older one that lacks the newest commit. No meta page has that
    commit, so it is lost.
    """
    life.publish_delayed(10, 20, 30)
    life.move(10)
    life.abandon_cleanly()
    older = (Path(life.directory) / "delayed/data.mdb").read_bytes()
    life.open()
    before = set(life.put)
    life.publish_delayed(40)
    for body in life.put.keys() - before:
        del life.put[body]
    life.damage_while_closed("delayed/data.mdb", lambda data: older)
