"""Flip bits of a state store's file, one at a time, and open the topic as its process would. Run it
as a separate process:

    python -m support.state_flips FOLDER FIRST STEP

Every try is a child process, because LMDB may crash. After a crash or an error the topic is opened
once more, as the supervisor would restart it. The child checks the promises. The last line is JSON:
the number of bits, of deaths by signal, of errors, and of stores that were renamed to `.bad`.
"""

from __future__ import annotations

import collections
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from zsq.storage.directory.store import Store, StoreOptions, TopicIdentity, create_store, open_store
from zsq.storage.errors import Damaged, StorageError
from zsq.storage.files import Files
from zsq.storage.log.transactions import TransactionRow
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import ProducerRow, StateBatch
from zsq.transport.block.block import pack

IDENTITY = TopicIdentity("t", "0" * 31 + "1")
OPTIONS = StoreOptions(reserve_bytes=0, map_bytes=1 << 20)
TRIES_MAX = 5
CHANNELS = [f"channel{number}" for number in range(12)]
UNFINISHED = {
    name: {number, 100 + number, 200 + number, *range(300, 320)}
    for number, name in enumerate(CHANNELS)
}
OK, AGAIN, BROKEN = 0, 3, 7


def make(folder: str) -> None:
    """Make a topic with 320 messages. Each channel has finished most of the first 300. Two ranges
    (holes) are unfinished, and one is deferred.
    """
    create_store(Files(), folder, IDENTITY, OPTIONS)
    store = open_store(Files(), folder, OPTIONS, IDENTITY)
    for sequence in range(32):
        store.log.append([pack([b"x"] * 10, producer_id=5, sequence=sequence)], 1_000 + sequence)
    store.log.sync()
    for turn in range(8):  # several commits, so that there are free pages to use again
        batch = StateBatch(
            applied_offset=30 * turn,
            producers={5: ProducerRow(3 * turn, 5, ((0, 0),)), 6: ProducerRow(9, 5, ())},
        )
        for number, name in enumerate(CHANNELS):
            batch.channel_puts[name] = ChannelRow(300, counters={"turn": turn})
            batch.hole_puts += [(name, start + number, 1, turn + 1, 0) for start in (0, 100)]
            batch.hole_puts.append((name, 200 + number, 1, turn + 1, 900 + turn))
        batch.transactions = {"app": TransactionRow(turn, "app", 5, 5, 5)}
        store.state.commit(batch)
    store.keeper.write()
    store.close()


def unfinished(store: Store, name: str) -> set[int]:
    row = store.state.load().channels[name]
    rows = [*store.state.holes(name), *store.state.deferred_rows(name)]
    due, _ = store.state.due(name, 10**9, 1_000)
    assert {one.start for one in due} == {one.start for one in store.state.deferred_rows(name)}
    return {offset for one in rows for offset in range(one.start, one.start + one.count)} | set(
        range(row.next_offset, 320)
    )


def check(store: Store) -> None:
    """Check the promises: no unfinished message counts as finished, no sequence number is
    forgotten, and no transaction can be committed twice.
    """
    table = store.state.load()
    assert sorted(table.channels) == sorted(CHANNELS)
    for name in CHANNELS:
        assert unfinished(store, name) >= UNFINISHED[name], (
            f"{name} lost {UNFINISHED[name] - unfinished(store, name)}"
        )
    assert table.producers[5].next_sequence == 32
    assert table.producers[6].next_sequence == 9
    assert table.transactions["app"].version == 7
    assert store.log.end == 320


def attempt(folder: str) -> int:
    store = open_store(Files(), folder, OPTIONS, IDENTITY)
    try:
        check(store)
        row = store.state.load().channels[CHANNELS[0]]
        for turn in range(3):
            rows = [(name, 310 + turn, 1, 1, 0) for name in CHANNELS]
            store.state.commit(
                StateBatch(
                    hole_puts=rows,
                    channel_puts={CHANNELS[0]: row.changed({"filler": bytes(3_000 * turn)})},
                )
            )
        check(store)
    except StorageError:
        store.keeper.distrust()  # `commits.py` does the same
        raise
    store.close()
    return OK


def child(folder: str) -> int:
    """Open the topic in a child process. Return its exit code, or the negative number of the signal
    that ended it.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = BROKEN
    try:
        code = attempt(folder)
    except (Damaged, StorageError):
        code = AGAIN
    except BaseException as error:
        sys.stderr.write(f"{error!r}\n")
    finally:
        os._exit(code)


def main(root: str, first: int, step: int) -> None:
    template, folder = f"{root}/template", f"{root}/run"
    make(template)
    data = Path(f"{template}/state/data.mdb").read_bytes()
    found: collections.Counter[str] = collections.Counter()
    for bit in range(first, len(data) * 8, step):
        shutil.copytree(template, folder)
        flipped = bytearray(data)
        flipped[bit >> 3] ^= 1 << (bit & 7)
        Path(f"{folder}/state/data.mdb").write_bytes(flipped)
        codes: list[Any] = []
        while not codes or (codes[-1] != OK and codes[-1] != BROKEN and len(codes) < TRIES_MAX):
            codes.append(child(folder))
        if codes[-1] != OK:
            raise SystemExit(f"bit {bit} (page {bit >> 15}, byte {(bit >> 3) & 4095}): {codes}")
        found["bits"] += 1
        found["deaths"] += sum(code < 0 for code in codes)
        found["errors"] += codes.count(AGAIN)
        aside = list(Path(folder).glob("state.bad-*"))
        found["aside"] += bool(aside)
        assert not aside or (aside[0] / "data.mdb").stat().st_size >= len(data) // 2
        shutil.rmtree(folder)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
