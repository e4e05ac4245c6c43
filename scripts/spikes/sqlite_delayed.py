#!/usr/bin/env python3
"""A spike that compares LMDB with SQLite as the engine of delayed messages:
scripts/spikes/sqlite_delayed.py [--help].

The spike asks whether SQLite could replace LMDB, whose pages have no checksums. `docs/design.md`
has the result.

Both engines run the code of the product (`DelayedStore`, `StateStore`), with the same rows, keys,
counts and checksums. Only the database below this code differs: `SqliteEnvironment` offers the few
calls of LMDB that the stores use. SQLite's table is WITHOUT ROWID, and its keys are those of the
stores. Its page cache is small, nothing is mapped into memory, and each commit is synced.

The engines take turns. In each round, each engine gets a new forked process. So each number is a
median of interleaved rounds, and the memory and the written bytes belong to one engine alone.

Parts:

| part | what it does |
|---|---|
| rates | measures puts, reads, removals and lists with `--rows` waiting rows; also bytes written, memory, and the size of the file |
| checks | measures a check of the largest store |
| flips | flips one bit of a small store, and finds out whether that is noticed, whether it kills the process, and what can still be read |
| power | mixes old and new sectors of the files that one commit changes, and flips bits of a write-ahead log |
| full | fills a small file system (`--small FOLDER`, such as a tmpfs of 8 MB), frees space, and continues |

Bytes written are those of write calls (`wchar` in /proc/PID/io), because each of them is synced.
`write_bytes` in the same file is not used: it depends on the sizes of the pieces in which the
kernel caches a file.

The script writes below --folder, and removes its files at the end. It never opens a data directory
of a broker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import resource
import shutil
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import lmdb
from sqlite_engines import SqliteEnvironment, open_delayed, open_state

from zsq.storage.delayed import delayed_recovery
from zsq.storage.delayed.delayed import Rows, rows_from
from zsq.storage.delayed.delayed import translated as errors_translated
from zsq.storage.delayed.delayed_format import DelayedKey, DelayedRow, decode_row, row_key, wrap
from zsq.storage.errors import DiskFull, StorageError
from zsq.storage.files import Files
from zsq.storage.state import state_check
from zsq.storage.state.channel_row import ChannelRow
from zsq.storage.state.state import StateBatch
from zsq.storage.state.state_rows import (
    HOLE_ROW,
    META,
    SUM_MASK,
    TOTAL_ROW,
    crc_of,
    deferred_key,
    due_key,
    total_key,
    unwrap_meta,
)
from zsq.storage.state.state_rows import wrap as state_wrap
from zsq.storage.state.state_transaction import SmallRows
from zsq.transport.block.block import Block, pack

ENGINES: Final = ("lmdb", "wal", "delete")
DATA_NAMES: Final = {"lmdb": "data.mdb", "wal": "data.sqlite", "delete": "data.sqlite"}
FILL_CACHE_KB: Final = 400_000
BASE_NS: Final = 1_700_000_000_000_000_000
HOUR_NS: Final = 3_600 * 1_000_000_000
NOW_NS: Final = BASE_NS + 100 * HOUR_NS
MOVE_ROWS: Final = 2_000  # the broker moves this many due rows at a time
MOVE_BYTES: Final = 2 * 1024 * 1024
FILL_ROWS: Final = 20_000  # the number of rows of one commit
SECTOR: Final = 512
CHANNEL: Final = "archive"
CHANNEL_ROW: Final = ChannelRow(1)


# Processes and numbers


def in_child(call: Callable[[Callable[[Any], None]], Any]) -> tuple[list[Any], Any, int]:
    """Call `call` in a forked process.

    Return the values that it passed to `say`, its result (None if it did not return), and the
    number of the signal that ended the process (0 for none).
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        with os.fdopen(writing, "w") as pipe:

            def say(what: Any) -> None:
                pipe.write(json.dumps(["said", what]) + "\n")
                pipe.flush()

            try:
                pipe.write(json.dumps(["returned", call(say)]) + "\n")
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                pipe.flush()
                os._exit(1)
        os._exit(0)
    os.close(writing)
    said, returned = [], None
    with os.fdopen(reading) as pipe:
        for line in pipe:
            # If the process died, the last line may be incomplete. It is ignored.
            with contextlib.suppress(ValueError):
                kind, what = json.loads(line)
                if kind == "said":
                    said.append(what)
                else:
                    returned = what
    status = os.waitpid(pid, 0)[1]
    return said, returned, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def numbers_of(path: str, *names: str) -> list[int]:
    found = dict(line.split(":", 1) for line in Path(path).read_text().splitlines() if ":" in line)
    return [int(found[name].split()[0]) for name in names]


def folder_bytes(path: str) -> int:
    return sum(one.stat().st_size for one in Path(path).iterdir())


class Clock:
    """Times of calls by name, in seconds."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.times.setdefault(name, []).append(time.perf_counter() - begin)

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(times) for name, times in self.times.items()}


def single(number: int) -> Block:
    return pack([b"%012d" % number + bytes(88)], producer_id=number % 100, sequence=number)


# Workloads


def put_many(env: Any, txn: Any, rows: list[tuple[bytes, bytes]]) -> None:
    """Put encoded rows with new keys by the fastest call of the engine."""
    if isinstance(env, SqliteEnvironment):
        env.connection.executemany("INSERT INTO rows VALUES (?, ?)", rows)
    else:
        txn.cursor().putmulti(rows)


def growing(env: Any) -> None:
    if not isinstance(env, SqliteEnvironment):
        env.set_mapsize(1 << 34)


def fill_delayed(engine: str, path: str, rows: int) -> None:
    """Write the rows that `put` would write, without its checks."""
    os.mkdir(path)
    store = open_delayed(engine, path, create=True, cache_kb=FILL_CACHE_KB)
    env: Any = store._env
    growing(env)
    drawn, block = random.Random(1), single(0)
    dues = sorted(BASE_NS + drawn.randrange(HOUR_NS) for _ in range(rows))
    data = (block.wire_header(), block.columns)
    for begin in range(0, rows, FILL_ROWS):
        with env.begin(write=True) as txn:
            batch = Rows(txn)
            keys = [
                row_key(DelayedKey(due_ns, begin + number))
                for number, due_ns in enumerate(dues[begin : begin + FILL_ROWS])
            ]
            items = [(key, wrap(key, *data)) for key in keys]
            put_many(env, txn, items)
            batch.meta["rows"] += len(items)
            batch.meta["messages"] += len(items)
            batch.meta["bytes"] += len(items) * block.length
            batch.meta["serial"] += len(items)
            batch.meta["sum"] = (
                batch.meta["sum"] + sum(crc_of(value) for _, value in items)
            ) & SUM_MASK
            batch.finish()
    store.close()


def work_delayed(engine: str, path: str, seed: int, scale: float) -> dict[str, Any]:
    drawn, clock, put_bytes = random.Random(seed), Clock(), 0
    times = max(1, round(10 * scale))
    big = pack([bytes(100)] * 10_000, producer_id=7, sequence=seed)
    (written,) = numbers_of("/proc/self/io", "wchar")
    memory = numbers_of("/proc/self/status", "RssAnon", "RssFile")
    with clock("open"):
        store = open_delayed(engine, path)

    def put(what: str, rows: list[tuple[Block, int]]) -> None:
        nonlocal put_bytes
        put_bytes += sum(block.length for block, _ in rows)
        with clock(what):
            store.put(rows, BASE_NS)

    mixed = sorted(drawn.randrange(HOUR_NS) for _ in range(110 * times))
    drawn.shuffle(mixed)
    for at in mixed[: 10 * times]:
        put("put 1 row", [(single(at), BASE_NS + at)])
    for turn in range(times):
        put(
            "put 100 rows, mixed delays",
            [(single(at), BASE_NS + at) for at in mixed[(10 + 100 * turn) :][:100]],
        )
    for turn in range(times):
        due_ns = BASE_NS + HOUR_NS + (seed * 1000 + turn) * 1_000_000
        put("put 1,000 rows, one delay", [(single(one), due_ns) for one in range(1_000)])
    for _ in range(times):
        after = DelayedKey(BASE_NS + drawn.randrange(HOUR_NS), 0)
        with clock("list 100 messages"):
            store.listed(after, 100, 200)
    for _ in range(max(1, round(1_110 * times / MOVE_ROWS))):
        with clock("read 2,000 due rows"):
            rows = store.due(NOW_NS, MOVE_BYTES, MOVE_ROWS)
        with clock("remove 2,000 rows"):
            store.remove([row.key for row in rows], known=True)
    for _ in range(times):
        put("put a block of 10,000 messages", [(big, BASE_NS - HOUR_NS)])
    for _ in range(times):
        with clock("read a block of 10,000 messages"):
            rows = store.due(BASE_NS - 1, MOVE_BYTES // 4, MOVE_ROWS)
        with clock("remove a block of 10,000 messages"):
            store.remove([row.key for row in rows], known=True)
    found = closing(store, path, clock, written, memory, put_bytes)
    alone(engine, path, clock, times)
    return {**found, "times": clock.medians()}


def alone(engine: str, path: str, clock: Clock, times: int) -> None:
    """Measure the engine without ZSQ's code, with encoded rows. Each transaction has 1,000 rows."""
    store = open_delayed(engine, path)
    env: Any = store._env
    value = bytes(250)
    for turn in range(times):
        rows = [(row_key(DelayedKey(NOW_NS + turn, number)), value) for number in range(1_000)]
        with clock("the engine alone: put 1,000 rows, one delay"), env.begin(write=True) as txn:
            put_many(env, txn, rows)
        with clock("the engine alone: remove 1,000 rows"), env.begin(write=True) as txn:
            if engine == "lmdb":
                for key, _ in rows:
                    txn.delete(key)
            else:
                env.connection.executemany(
                    "DELETE FROM rows WHERE k = ?", [(key,) for key, _ in rows]
                )
    store.close()


def closing(
    store: Any, path: str, clock: Clock, written: int, memory: list[int], put_bytes: int
) -> dict[str, Any]:
    anonymous, mapped = numbers_of("/proc/self/status", "RssAnon", "RssFile")
    store.close()  # writes that SQLite has postponed are part of the measured work
    figures = {
        "memory of its own, MB": (anonymous - memory[0]) / 1024,
        "mapped file in memory, MB": (mapped - memory[1]) / 1024,
    }
    figures["file, MB"] = folder_bytes(path) / 1e6
    if put_bytes:
        figures["bytes written by bytes of blocks put"] = (
            numbers_of("/proc/self/io", "wchar")[0] - written
        ) / put_bytes
    return {"times": clock.medians(), "figures": figures}


def fill_state(engine: str, path: str, rows: int) -> None:
    """Write the rows that commits would write, without their checks."""
    os.mkdir(path)
    state = open_state(engine, path, create=True, cache_kb=FILL_CACHE_KB)
    env: Any = state._env
    growing(env)
    state.commit(StateBatch(channel_puts={CHANNEL: CHANNEL_ROW}))
    drawn = random.Random(2)
    dues = [BASE_NS + drawn.randrange(HOUR_NS) for _ in range(rows)]
    total = 0
    with env.begin(write=True) as txn:
        by_start = (
            (deferred_key(CHANNEL, start), HOLE_ROW.pack(1, 1, due_ns))
            for start, due_ns in enumerate(dues)
        )
        by_due = (
            (due_key(CHANNEL, due_ns, start), b"")
            for due_ns, start in sorted((due_ns, start) for start, due_ns in enumerate(dues))
        )
        for source in (by_start, by_due):
            while items := [
                (key, state_wrap(key, data)) for key, data in islice(source, FILL_ROWS)
            ]:
                put_many(env, txn, items)
                total += sum(crc_of(value) for _, value in items)
        small = SmallRows(txn, unwrap_meta(txn.get(META)))
        small.put(total_key(CHANNEL), TOTAL_ROW.pack(rows, rows, total & SUM_MASK))
        small.save()
    state.close()


def work_state(engine: str, path: str, seed: int, scale: float) -> dict[str, Any]:
    drawn, clock = random.Random(seed), Clock()
    times = max(1, round(10 * scale))
    (written,) = numbers_of("/proc/self/io", "wchar")
    memory = numbers_of("/proc/self/status", "RssAnon", "RssFile")
    with clock("open and load"):
        state = open_state(engine, path)
        state.load()
    first = 10_000_000_000 + seed * 1_000_000
    for turn in range(10 * times):
        with clock("commit a cursor"):
            state.commit(
                StateBatch(
                    channel_puts={CHANNEL: replace(CHANNEL_ROW, next_offset=turn)},
                    applied_offset=turn,
                )
            )
    for turn in range(times):
        puts = [
            (CHANNEL, first + 1_000 * turn + at, 1, 1, BASE_NS + drawn.randrange(HOUR_NS))
            for at in range(1_000)
        ]
        with clock("defer 1,000 holes"):
            state.commit(StateBatch(hole_puts=puts))
    for _ in range(times):
        with clock("read 1,000 due holes"):
            rows, _ = state.due(CHANNEL, NOW_NS, 1_000)
        with clock("remove 1,000 deferred holes"):
            state.commit(StateBatch(hole_gones=[(CHANNEL, row.start) for row in rows]))
    return closing(state, path, clock, written, memory, 0)


def rates(folder: str, rows: int, rounds: int, scale: float) -> None:
    for what, fill, work in (
        ("delayed messages", fill_delayed, work_delayed),
        ("deferred rows", fill_state, work_state),
    ):
        paths = {engine: f"{folder}/{what.split()[0]}-{engine}-{rows}" for engine in ENGINES}
        filling = Clock()
        for engine in ("lmdb", "wal"):
            with filling(engine):
                in_child(
                    lambda _, engine=engine, fill=fill, paths=paths: fill(  # type: ignore[misc]
                        engine, paths[engine], rows
                    )
                )
        shutil.copytree(paths["wal"], paths["delete"])
        found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
        for turn in range(rounds):
            for engine in ENGINES if turn % 2 else reversed(ENGINES):
                path = paths[engine]
                returned = in_child(
                    lambda _, engine=engine, path=path, turn=turn, work=work: work(  # type: ignore[misc]
                        engine, path, turn, scale
                    )
                )[1]
                if returned is None:
                    raise SystemExit(f"the work of {engine} with {rows} rows failed")
                found[engine].append(returned)
        table(
            (
                f"{rows:,} {what}, {rounds} rounds; filled in "
                f"{', '.join(f'{one} {times[0]:.1f} s' for one, times in filling.times.items())}"
            ),
            found,
        )


def heading(title: str, columns: str) -> None:
    print(f"\n{title}\n\n| {columns} |\n|{'---|' * (columns.count('|') + 1)}", flush=True)


def table(title: str, found: dict[str, list[dict[str, Any]]]) -> None:
    """Print medians, and medians of the ratios within a round."""
    heading(title, " | LMDB | SQLite WAL | SQLite DELETE | WAL / LMDB | DELETE / LMDB")
    for kind, unit in (("times", 1e3), ("figures", 1.0)):
        for name in found["lmdb"][0][kind]:
            values = {
                engine: [one[kind][name] * unit for one in found[engine]] for engine in ENGINES
            }
            cells = [f"{statistics.median(values[engine]):.3g}" for engine in ENGINES]
            for engine in ENGINES[1:]:
                ratios = [
                    own / max(base, 1e-9)
                    for own, base in zip(values[engine], values["lmdb"], strict=True)
                ]
                cells.append(f"{statistics.median(ratios):.2f}")
            print(f"| {name}{', ms' if kind == 'times' else ''} | {' | '.join(cells)} |")
    sys.stdout.flush()


# Checks


def checks(folder: str, rows: int) -> None:
    heading(f"Checks of {rows:,} delayed messages", "check | engine | processor seconds | finds")
    own = {engine: f"{folder}/delayed-{engine}-{rows}" for engine in ENGINES}
    calls: tuple[tuple[str, str, Callable[[], Any]], ...] = (
        ("checksums of all rows, count and sum", "lmdb", lambda: sum_rows("lmdb", own["lmdb"])),
        ("checksums of all rows, count and sum", "wal", lambda: sum_rows("wal", own["wal"])),
        (
            "pages against each other (`wrong_pages`)",
            "lmdb",
            lambda: state_check.wrong_pages(Files(), f"{own['lmdb']}/data.mdb"),
        ),
        ("PRAGMA quick_check", "wal", lambda: pragma(own["wal"], "quick_check")),
        ("PRAGMA integrity_check", "wal", lambda: pragma(own["wal"], "integrity_check")),
    )
    for what, engine, call in calls:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        returned = in_child(lambda _, call=call: call())[1]  # type: ignore[misc]
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"| {what} | {engine} | {seconds:.1f} | {returned or 'nothing'} |")
    sys.stdout.flush()


def pragma(path: str, name: str) -> list[str]:
    with contextlib.closing(sqlite3.connect(f"{path}/data.sqlite")) as connection:
        return [line for (line,) in connection.execute(f"PRAGMA {name}") if line != "ok"][:3]


def sum_rows(engine: str, path: str) -> list[str]:
    """Check the rows of either engine as the product checks an environment."""
    if engine == "lmdb":
        return list(delayed_recovery.counted(path).values())
    rows = messages = 0
    with contextlib.closing(open_delayed(engine, path)) as store, store._env.begin() as txn:
        for key, value in rows_from(txn):
            rows, messages = rows + 1, messages + decode_row(key, value).block.count
        return (
            []
            if messages == store.summary.messages
            else [f"{messages} messages, {store.summary.messages} are counted"]
        )


# Flipped bits

Model = dict[str, int]  # the key of each row, with the number of its body


def small_store(engine: str, path: str, rows: int) -> tuple[Model, int, list[bytes]]:
    """Make a store with some puts and removals.

    Return its rows, the number of its commits, and all values that were ever put.
    """
    os.mkdir(path)
    store = open_delayed(engine, path, create=True)
    drawn = random.Random(3)
    model: Model = {}
    values = []
    for begin in range(0, 2 * rows, 50):
        numbers = range(begin, min(begin + 50, 2 * rows))
        blocks = [single(number) for number in numbers]
        keys = store.put([(block, BASE_NS + drawn.randrange(HOUR_NS)) for block in blocks], BASE_NS)
        values += [b"%012d" % number + bytes(88) for number in numbers]
        model |= {row_key(key).hex(): number for key, number in zip(keys, numbers, strict=True)}
        if begin >= rows:
            gone = drawn.sample(sorted(model), 50)
            store.remove([key_of(key) for key in gone])
            for key in gone:
                del model[key]
    commits = store.progress.commits
    store.close()
    return model, commits, values


def key_of(text: str) -> DelayedKey:
    data = bytes.fromhex(text)
    return DelayedKey(int.from_bytes(data[1:9], "big"), int.from_bytes(data[9:], "big"))


def as_model(rows: Iterable[DelayedRow]) -> Model:
    return {row_key(row.key).hex(): int((row.block.body.value(0) or b"0")[:12]) for row in rows}


def live(
    engine: str, path: str, model: Model, commits: int
) -> Callable[[Callable[[Any], None]], Any]:
    """Use the store as a broker would: read all rows, put some, remove some, and read all again."""

    def life(say: Callable[[Any], None]) -> Any:
        expected, aside = dict(model), set()
        try:
            store = open_delayed(engine, path)
            if store.progress.commits < commits:
                return ["an older commit, which the note of commits tells"]
            store.set_aside = lambda key, value, why: aside.add(key.hex())
            for turn in range(3):
                found = as_model(store.due(NOW_NS, 1 << 30, 1 << 30))
                found = found if not aside else as_model(store.due(NOW_NS, 1 << 30, 1 << 30))
                say(len(found))
                wrong = {key for key in found if found[key] != expected.get(key)}
                missing = expected.keys() - found.keys() - aside
                if wrong or len(missing) > len(aside):
                    counted = store.summary.messages != len(found)
                    return [
                        f"rows missing or wrong, {'the count tells' if counted else 'unnoticed'}",
                        len(wrong) + len(missing),
                    ]
                gone = sorted(found)[turn * 7 :: 13][:100]
                store.remove([key_of(key) for key in gone], known=True)
                keys = store.put(
                    [
                        (single(10**6 + number), NOW_NS - HOUR_NS + number * turn)
                        for number in range(60)
                    ],
                    BASE_NS,
                )
                expected = {key: number for key, number in found.items() if key not in set(gone)}
                expected |= {row_key(key).hex(): 10**6 + number for number, key in enumerate(keys)}
            store.close()
        except (StorageError, DiskFull, lmdb.Error, OSError) as error:
            return [f"an error ({type(error).__name__})"]
        return ["only that row" if aside else "nothing lost", len(aside)]

    return life


def salvage(engine: str, path: str, commits: int) -> int:
    """Count the rows that can be read.

    It reads as the product's rescue does: forward up to the damage, then backward down to it.
    """
    if engine == "lmdb":
        with contextlib.suppress(Exception):
            delayed_recovery.mend_head(Files(), path, commits, delayed_recovery.probe)

    def read(backward: bool) -> Callable[[Callable[[Any], None]], Any]:
        def steps(say: Callable[[Any], None]) -> None:
            with contextlib.suppress(StorageError, DiskFull, lmdb.Error):
                env: Any = (
                    SqliteEnvironment(path, engine)
                    if engine != "lmdb"
                    else lmdb.open(path, lock=False, readonly=True, create=False)
                )
                with env.begin() as txn, errors_translated(path):
                    for key, _ in (
                        delayed_recovery.backward(txn, b"", b"")
                        if backward
                        else delayed_recovery.forward(txn, b"")
                    ):
                        say(key.hex())

        return steps

    return len(set(in_child(read(False))[0]) | set(in_child(read(True))[0]))


def is_found(engine: str, path: str) -> bool:
    """Return True if a full check finds something, or if its process dies."""

    def look(_: object) -> list[str]:
        try:
            pages = (
                state_check.findings(path) if engine == "lmdb" else pragma(path, "integrity_check")
            )
            return pages + sum_rows(engine, path)
        except (sqlite3.Error, lmdb.Error, StorageError) as error:
            return [str(error)]

    _, returned, ended = in_child(look)
    return bool(ended) or returned is None or bool(returned)


def structure(data: bytes, values: list[bytes]) -> list[int]:
    """Return the positions of bytes that belong to no message.

    They belong to the engine itself, or to the heads of the rows.
    """
    covered = bytearray(len(data))
    for value in values:
        at = data.find(value)
        while at >= 0:
            covered[at : at + len(value)] = b"\1" * len(value)
            at = data.find(value, at + 1)
    return [at for at in range(len(data)) if not covered[at] and (data[at] or at % 4096 < 16)]


def flips(folder: str, rows: int, count: int) -> None:
    columns = "where | engine | outcome | times | rows lost after a rescue: mean, most"
    heading(f"One flipped bit in a store of {rows:,} rows, {count} times each", columns)
    for engine in ENGINES[:2]:
        base = f"{folder}/flips-{engine}"
        model, commits, values = small_store(engine, base, rows)
        original = Path(base, DATA_NAMES[engine]).read_bytes()
        for where, places in (
            ("anywhere", range(len(original))),
            ("structure", structure(original, values)),
        ):
            drawn = random.Random(4)
            outcomes: dict[str, list[tuple[bool, int | None]]] = {}
            for _ in range(count):
                data = bytearray(original)
                data[drawn.choice(places)] ^= 1 << drawn.randrange(8)
                outcome, found, rows_lost = flipped(
                    engine, f"{folder}/flip", bytes(data), model, commits
                )
                outcomes.setdefault(outcome, []).append((found, rows_lost))
            for outcome, all_of_it in sorted(outcomes.items(), key=lambda item: -len(item[1])):
                lost = [one for _, one in all_of_it if one is not None]
                figures = f"{statistics.mean(lost):.1f}, {max(lost)}" if lost else ""
                unseen = sum(not found for found, _ in all_of_it)
                note = (
                    f" ({unseen} of them pass a full check)"
                    if unseen and outcome != "nothing lost"
                    else ""
                )
                print(f"| {where} | {engine} | {outcome}{note} | {len(all_of_it)} | {figures} |")
            sys.stdout.flush()


def flipped(
    engine: str, path: str, data: bytes, model: Model, commits: int
) -> tuple[str, bool, int | None]:
    """Return the outcome, whether a full check finds the damage, and how many rows a rescue loses.

    The last value is None if no rescue is needed.
    """

    def renew() -> None:
        shutil.rmtree(path, ignore_errors=True)
        os.mkdir(path)
        Path(path, DATA_NAMES[engine]).write_bytes(data)

    renew()
    _, returned, ended = in_child(live(engine, path, model, commits))
    outcome = returned[0] if returned else "an error that is not translated"
    if ended:
        outcome = f"died of {signal.Signals(ended).name}"
    renew()
    found = is_found(engine, path)
    if outcome in {"nothing lost", "only that row"}:
        return outcome, found, None
    renew()
    return outcome, found, max(0, len(model) - salvage(engine, path, commits))


# Power


def power(folder: str, count: int) -> None:
    heading(
        f"Power cuts in one commit, {count} mixtures of old and new sectors each",
        "engine | as before | as after | damaged",
    )
    for engine in ENGINES[:2]:
        base, path = f"{folder}/power-{engine}", f"{folder}/power"
        small_store(engine, base, 400)

        def life(_: object, engine: str = engine, base: str = base) -> list[dict[str, str]]:
            store = open_delayed(engine, base)
            store.put([(single(number), BASE_NS + number) for number in range(30)], BASE_NS)
            files = [{one.name: one.read_bytes().hex() for one in Path(base).iterdir()}]
            store.put(
                [(single(number), BASE_NS + number * 10**9) for number in range(300)], BASE_NS
            )
            return [*files, {one.name: one.read_bytes().hex() for one in Path(base).iterdir()}]

        states = [
            {name: bytes.fromhex(data) for name, data in files.items()}
            for files in in_child(life)[1]
        ]
        outcomes = Counter(torn(engine, path, states, random.Random(seed)) for seed in range(count))
        print(f"| {engine} | {outcomes['before']} | {outcomes['after']} | {outcomes['damaged']} |")
    flipped_log(folder, count)


def torn(engine: str, path: str, states: list[dict[str, bytes]], drawn: random.Random) -> str:
    """Open files as a power cut before the last sync may leave them.

    They have any mixture of old and new sectors. LMDB's meta pages stay old, because LMDB writes
    them only after the first sync.
    """
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    for name, new in states[1].items():
        old = states[0].get(name, b"")
        mixed = bytearray(old[: len(new)].ljust(len(new), b"\0"))
        begin = 8192 if engine == "lmdb" else 0
        for at in range(begin, len(new), SECTOR):
            if drawn.random() < 0.5:
                mixed[at : at + SECTOR] = new[at : at + SECTOR]
        Path(path, name).write_bytes(mixed)

    def look(_: object) -> str:
        try:
            with contextlib.closing(open_delayed(engine, path)) as store:
                messages = len(store.due(NOW_NS, 1 << 30, 1 << 30))
                return {430: "before", 730: "after"}.get(
                    messages if messages == store.summary.messages else -1, "damaged"
                )
        except (StorageError, DiskFull, lmdb.Error) as error:
            return f"damaged: {error}"[:7]

    return str(in_child(look)[1] or "damaged")


def flipped_log(folder: str, count: int) -> None:
    """Flip one bit in a write-ahead log with 100 commits of 10 rows each.

    Print how many of the commits are lost after the next start.
    """
    base, path = f"{folder}/log", f"{folder}/log-flipped"
    os.mkdir(base)

    def life(_: object) -> dict[str, str]:
        store = open_delayed("wal", base, create=True)
        for turn in range(100):
            store.put(
                [
                    (single(turn * 10 + number), BASE_NS + turn * 10 + number)
                    for number in range(10)
                ],
                BASE_NS,
            )
        # The process then ends without closing the store.
        return {one.name: one.read_bytes().hex() for one in Path(base).iterdir()}

    files = {name: bytes.fromhex(data) for name, data in in_child(life)[1].items()}
    lost, noticed = [], 0
    for seed in range(count):
        drawn = random.Random(seed)
        shutil.rmtree(path, ignore_errors=True)
        os.mkdir(path)
        for name, data in files.items():
            changed = bytearray(data)
            if name.endswith("-wal"):
                changed[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)
            Path(path, name).write_bytes(changed)

        def look(_: object) -> int:
            try:
                with contextlib.closing(open_delayed("wal", path)) as store:
                    return store.progress.commits
            except (StorageError, lmdb.Error):
                return -1

        found = in_child(look)[1]
        noticed += found == -1
        lost.append(100 - max(found, 0))
    size = len(files["data.sqlite-wal"])
    heading(
        f"One flipped bit in a write-ahead log of 100 commits, {size:,} bytes, {count} times",
        "what | figure",
    )
    print(
        f"| SQLite said so | {noticed} times |\n| commits lost, median | "
        f"{statistics.median(lost):g} |"
    )
    print(
        f"| commits lost, most | {max(lost)} |\n| nothing lost | {lost.count(0)} times |",
        flush=True,
    )


# A full file system


def full(small: str) -> None:
    heading(
        "A full file system",
        "engine | rows before it was full | error | rows after it | goes on when there is space",
    )
    for engine in ENGINES:

        def life(_: object, engine: str = engine) -> list[Any]:
            with tempfile.TemporaryDirectory(dir=small) as folder:
                ballast = Path(folder, "ballast")
                ballast.write_bytes(bytes(1 << 20))
                os.mkdir(f"{folder}/store")
                store = open_delayed(engine, f"{folder}/store", create=True)
                try:
                    while True:
                        store.put(
                            [(single(number), BASE_NS + number) for number in range(500)], BASE_NS
                        )
                except (StorageError, DiskFull) as error:
                    before, said = (
                        store.summary.messages,
                        f"{type(error).__name__}: {str(error).replace(folder, '')[:80]}",
                    )
                after = len(store.due(NOW_NS, 1 << 30, 1 << 30))
                ballast.unlink()
                try:
                    store.put(
                        [(single(number), BASE_NS + number) for number in range(500)], BASE_NS
                    )
                    goes_on = "yes"
                except (StorageError, DiskFull) as error:
                    goes_on = f"no: {error}"
                store.close()
                return [before, said, after, goes_on]

        cells = in_child(life)[1] or ["failed"]
        print(f"| {engine} | {' | '.join(map(str, cells))} |")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare LMDB with SQLite as the engine of delayed messages and deferred rows."
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[100_000, 1_000_000], help="Rows that wait"
    )
    parser.add_argument("--rounds", type=int, default=5, help="Interleaved rounds")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="Calls a round, as a multiple of ten of each kind"
    )
    parser.add_argument(
        "--flips", type=int, default=300, help="Flipped bits a kind of place, and torn commits"
    )
    parser.add_argument(
        "--flip-rows", type=int, default=1_500, help="Rows of the store whose bits are flipped"
    )
    parser.add_argument(
        "--folder",
        default=".",
        help="Where the files lie while it runs: on the disk to be measured",
    )
    parser.add_argument(
        "--small", default="", help="A folder on a small file system, for the part full"
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        default=["rates", "checks", "flips", "power"],
        help="rates checks flips power full",
    )
    chosen = parser.parse_args()
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "?",
    )
    print(
        f"{model}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}, Python "
        f"{platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, LMDB {'.'.join(map(str, lmdb.version()))}"
    )
    with tempfile.TemporaryDirectory(prefix="sqlite-delayed-", dir=chosen.folder) as folder:
        if "rates" in chosen.parts:
            for rows in chosen.rows:
                rates(folder, rows, chosen.rounds, chosen.scale)
            if "checks" in chosen.parts:
                checks(folder, chosen.rows[-1])
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else folder
        # These parts measure no disk.
        with tempfile.TemporaryDirectory(prefix="sqlite-delayed-", dir=memory) as fast:
            if "flips" in chosen.parts:
                flips(fast, chosen.flip_rows, chosen.flips)
            if "power" in chosen.parts:
                power(fast, chosen.flips)
    if "full" in chosen.parts:
        full(chosen.small)
    return 0


if __name__ == "__main__":
    sys.exit(main())
