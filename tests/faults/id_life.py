"""A topic's store whose messages have ids. The promises about ids are checked after a crash:

1. The index knows the id of each message that is in the log, or that waits as a delayed message, at
the right offset. So the ids of all acknowledged messages are known.
2. It knows no id of a message that was never stored, or that the crash has taken. Otherwise the
next publish with this id would be called a duplicate of nothing, and would be lost.
3. An id stays known when retention has removed its message, until the window ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final
from unittest import mock

from zsq.storage.dedupe import id_index, id_table
from zsq.storage.dedupe.id_format import NO_OFFSET
from zsq.storage.delayed.delayed_format import DelayedKey
from zsq.storage.directory.store import Store
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import Block, pack
from zsq.transport.wire.dedupe import digest_of, digests_of, pack_id, with_ids

from .life import Life

BITS: Final = 4  # the size of the first table, for 8 ids, so that few ids fill several files


@contextmanager
def small_tables() -> Iterator[None]:
    with (
        mock.patch.object(id_table, "BITS_MIN", BITS),
        mock.patch.object(id_index, "BITS_MIN", BITS),
    ):
        yield


def block_with_ids(bodies: Sequence[bytes], producer_id: int, sequence: int) -> Block:
    """Return a block whose messages have as ids the first bytes of their bodies."""
    headers = [pack_id(name_of(body)) for body in bodies]
    block = pack(bodies, headers=headers, producer_id=producer_id, sequence=sequence)
    block = with_ids(block, headers)
    block.ids = digests_of(block)
    return block


def name_of(body: bytes) -> bytes:
    return body.rstrip(b".")


class IdLife(Life):
    """`old`: names whose window has ended. `removed_at`: names that retention has removed from the
    log, with their offsets.
    """

    def __init__(self, *given: object) -> None:
        self.old: set[bytes] = set()
        self.removed_at: dict[bytes, int] = {}
        self.stored_ns: dict[bytes, int] = {}
        super().__init__(*given)  # type: ignore[arg-type]

    def open(self) -> Store:
        with small_tables():
            return super().open()

    # What the storage does

    def make_block(self, bodies: Sequence[bytes], producer_id: int, sequence: int) -> Block:
        return block_with_ids(bodies, producer_id, sequence)

    def publish(self, blocks: int = 1, count: int = 3, size: int = 20) -> None:
        first = len(self.sent)
        super().publish(blocks, count, size)
        names: list[bytes] = []
        offsets: list[int] = []
        for sequence in range(first, len(self.sent)):
            for index, body in enumerate(self.sent[sequence]):
                names.append(name_of(body))
                offsets.append(self.offsets[sequence] + index)
        self._add(names, offsets, self.log.end)

    def publish_delayed(self, *due: int, count: int = 2) -> list[DelayedKey]:
        known = set(self.put)
        keys = super().publish_delayed(*due, count=count)
        names = [name_of(body) for body in self.put if body not in known]
        self._add(names, [NO_OFFSET] * len(names), 0)
        return keys

    def _add(self, names: Sequence[bytes], offsets: Sequence[int], end: int) -> None:
        assert self.store is not None
        self.stored_ns.update(dict.fromkeys(names, self.now_ns))
        digests = [digest_of(name) for name in names]
        with small_tables():
            self.store.make_ids().add(digests, offsets, self.now_ns, end)

    def counted(self, batch: StateBatch) -> StateBatch:
        assert self.store is not None
        if self.store.ids is not None:
            first, end = self.store.ids.range
            synced_end = self.log.synced_end
            batch.ids = min(first, synced_end), min(end, synced_end)
        return super().counted(batch)

    def write_ids(self) -> None:
        """Do what the storage does once a second."""
        assert self.store is not None
        assert self.store.ids is not None
        flush = self.store.ids.take(self.log.synced_end)
        if flush is not None:
            flush.run()
            self.store.ids.done(flush)

    def end_window(self) -> None:
        """Forget the ids whose window has ended: all up to now."""
        assert self.store is not None
        assert self.store.ids is not None
        self.old.update(name for name, time_ns in self.stored_ns.items() if time_ns <= self.now_ns)
        self.store.ids.expire(self.now_ns)
        self.write_ids()

    def retain(self, start: int) -> None:
        for block in self.read_all():
            for offset, body in enumerate(block.body.values(), block.first_offset):
                if offset < start:
                    self.removed_at[name_of(body or b"")] = offset
        super().retain(start)

    # What must hold

    def check(self, lost_max: int = 0) -> list[int]:
        found = super().check(lost_max)
        assert self.store is not None
        present = self._present()
        bodies = [body for block in self.sent for body in block]
        delayed = [*self.put, *self.gone, *(body for some in self.perhaps for body in some)]
        names = sorted({*map(name_of, (*bodies, *delayed)), *self.removed_at, *present})
        known: dict[bytes, int] = {}
        if self.store.ids is not None:
            digests = [digest_of(name) for name in names]
            known = {names[at]: at_ for at, at_ in self.store.ids.known(digests, 0).items()}
        for name, offset in present.items():
            if name not in self.old:
                assert name in known, f"the id {name!r} of a stored message is not known"
            is_delayed = name.startswith(b"delayed ")
            allowed = {offset, NO_OFFSET} if is_delayed else {offset}
            assert known.get(name, offset) in allowed, f"the id {name!r} is at another offset"
        taken = {name_of(body) for body in delayed}
        for name in known.keys() - present.keys():
            was_removed = name in self.removed_at or known[name] in range(self.log.start)
            assert was_removed or (name in taken and known[name] == NO_OFFSET), (
                f"the id {name!r} is known, and its message was not stored"
            )
        for name in self.removed_at.keys() - self.old:
            assert name in known, f"the id {name!r} is forgotten with its message"
        return found

    def _present(self) -> dict[bytes, int]:
        """Return name -> offset of all messages of the log and of those that are delayed."""
        present = {name_of(body): NO_OFFSET for body in self.waiting()}
        for block in self.read_all():
            for offset, body in enumerate(block.body.values(), block.first_offset):
                present[name_of(body or b"")] = offset
        return present


def ids(life: Life) -> None:
    """Messages with ids fill several files. Ids are written before and after the commits that count
    them. Retention removes messages, and windows end.
    """
    assert isinstance(life, IdLife)
    life.publish(blocks=2)
    life.write_ids()  # nothing is synced yet
    life.sync()
    life.write_ids()
    life.checkpoint()
    life.publish()
    life.sync()
    life.checkpoint()  # counts ids that no file has
    life.publish()
    life.write_ids()
    life.checkpoint()
    keys = life.publish_delayed(50, 60)
    life.publish(blocks=2)
    life.sync()
    life.write_ids()
    life.move(55)
    life.cancel(keys[1])
    for _ in range(3):
        life.publish(blocks=2, size=60)
        life.sync()
        life.write_ids()
    life.checkpoint()
    life.retain(life.log.chunks[2])
    life.publish()
    life.restart()
    life.acknowledged = len(life.sent)
    life.write_ids()
    life.end_window()
    life.publish(blocks=2)
    life.sync()
    life.write_ids()
    life.checkpoint()
