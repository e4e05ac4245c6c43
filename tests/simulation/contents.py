"""The content of a data directory at rest, and the comparison with what a restore gives.

All of this runs outside of the simulated time, on a copy of the directory.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from zsq.actors.supervisor.topics.registry_format import Content, TopicRow, decode
from zsq.apps import restore as restoring
from zsq.storage.bucket.archive.archive_format import chunk_object
from zsq.storage.bucket.bucket import ObjectExists, ObjectMissing
from zsq.storage.bucket.bucket_url import BucketUrl
from zsq.storage.bucket.shipping.ship_check import check_log
from zsq.storage.delayed.delayed import rows_from
from zsq.storage.delayed.delayed_format import decode_row
from zsq.storage.directory.store import Store, StoreOptions, TopicIdentity, open_store
from zsq.storage.errors import Damaged
from zsq.storage.files import Files
from zsq.storage.log.log_format import STATE_NAME, chunk_name
from zsq.storage.state.state import StateStore, Table
from zsq.storage.state.state_rows import HoleRow
from zsq.transport.block.block import Block

from . import world as worlds

REGISTRY: Final = "registry.json"
BYTES_MAX: Final = 64 * 1024 * 1024
OPTIONS: Final = StoreOptions(reserve_bytes=0, ring_bytes=0)


class InlineThreads:
    """Replaces `ThreadPoolExecutor` in the restore: a job runs when it is submitted."""

    def __init__(self, workers: int, thread_name_prefix: str = "") -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, call: Callable[..., Any], *given: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*given))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, call: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [call(item) for item in items]

    def shutdown(self, *, wait: bool = True, cancel_futures: bool = False) -> None:
        pass


class MemoryBucket:
    """A copy of the simulated store's objects, which always answers."""

    def __init__(self, url: BucketUrl, objects: Mapping[str, bytes]) -> None:
        self.url = url
        self.objects = dict(objects)

    def create(self, name: str, data: Any) -> None:
        if name in self.objects:
            raise ObjectExists(name)
        self.objects[name] = bytes(data)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        if name not in self.objects:
            raise ObjectMissing(name)
        content = self.objects[name]
        return content[start : len(content) if length is None else start + length]

    def size(self, name: str) -> int:
        return len(self.read(name))

    def names(self, below: str) -> Iterator[str]:
        yield from [name for name in self.objects if name.startswith(below)]


@dataclass
class TopicContent:
    """What a topic has. `delayed` are the bodies of the messages that are not due."""

    row: TopicRow
    start: int
    end: int
    messages: dict[int, bytes]
    delayed: list[bytes]
    table: Table
    deferred: dict[str, list[HoleRow]] = field(default_factory=dict)


@contextlib.contextmanager
def outside() -> Iterator[None]:
    """Leave the simulated world for a while: the clock and the files are the real ones.

    The names of temporary folders must not take random numbers from the world.
    """
    world, numbers = worlds.world_now(), random.getstate()
    worlds.enter(None)
    try:
        yield
    finally:
        random.setstate(numbers)
        worlds.enter(world)


def contents(data_dir: str, objects: Mapping[str, bytes]) -> dict[str, TopicContent]:
    """Return the content of each topic, by name. No process may use the directory."""
    with outside(), tempfile.TemporaryDirectory(dir=Path(data_dir).parent.parent) as folder:
        copy = f"{folder}/data"
        shutil.copytree(data_dir, copy)
        content = _registry(copy)
        return {
            name: _topic(f"{copy}/topics/{row.number:06d}", name, row, objects)
            for name, row in content.topics.items()
            if row.number and row.state == "live"
        }


def _registry(data_dir: str) -> Content:
    path = f"{data_dir}/{REGISTRY}"
    return decode(Files().read_file(path, BYTES_MAX), path)


def _topic(folder: str, name: str, row: TopicRow, objects: Mapping[str, bytes]) -> TopicContent:
    files = Files()
    state = StateStore(f"{folder}/{STATE_NAME}")
    archived = state.load().archived
    state.close()
    for base, chunk in archived.items():
        path = f"{folder}/{chunk_name(base)}"
        found = objects.get(chunk_object(row.uuid, base, chunk.crc))
        if not files.exists(path) and found is not None:
            Path(path).write_bytes(found)
    store = open_store(files, folder, OPTIONS, TopicIdentity(name, row.uuid, row.base_offset))
    try:
        messages: dict[int, bytes] = {}
        offset, end = store.log.start, store.log.end
        while blocks := _read(store, offset, end):
            for block in blocks:
                first = block.header.first_offset
                for index, body in enumerate(block.body.values()):
                    messages[first + index] = bytes(body or b"")
                offset = first + block.count
        delayed = []
        if store.delayed is not None:
            with store.delayed.reading() as txn:
                rows = [decode_row(bytes(key), bytes(value)) for key, value in rows_from(txn)]
            delayed = [bytes(body or b"") for one in rows for body in one.block.body.values()]
        table = store.state.load()
        deferred = {one: list(store.state.deferred_rows(one)) for one in table.channels}
        found_topic = TopicContent(row, store.log.start, end, messages, delayed, table, deferred)
    finally:
        store.close()
    return found_topic


def _read(store: Store, offset: int, end: int) -> list[Block]:
    """Return the next blocks, none behind the damage of a power cut in a topic that is not
    synced.
    """
    try:
        return store.log.reader.read(offset, 1 << 22, end)
    except Damaged:
        return []


def differences(data_dir: str, url: BucketUrl, objects: Mapping[str, bytes]) -> list[str]:
    """Return how a restore of these objects differs from the directory, and what it says is
    wrong.
    """
    wanted = contents(data_dir, objects)
    bucket = MemoryBucket(url, objects)
    with outside(), tempfile.TemporaryDirectory(dir=Path(data_dir).parent.parent) as folder:
        plan = restoring.RestorePlan(str(url))
        module: Any = restoring
        plain = module.open_bucket
        module.open_bucket = lambda given: bucket
        try:
            checked = restoring.check(Files(), plan)
            told = list(checked.problems)
            told += [text for topic in checked.topics for text in topic.problems]
            Path(f"{folder}/parent").mkdir()
            target = Path(f"{folder}/parent/data")
            if not told:
                restoring.restore(Files(), plan, target)
        finally:
            module.open_bucket = plain
        report = check_log(bucket)  # type: ignore[arg-type]
        told += [f"{one.name}: {one.text}" for one in report.findings if one.level == "damage"]
        if told:
            return [f"the check of the bucket: {text}" for text in told]
        found = contents(str(target), objects)
    # Topics that are never synced are not shipped.
    wanted = {name: topic for name, topic in wanted.items() if topic.row.sync != "never"}
    told = []
    if found.keys() != wanted.keys():
        told.append(f"restored are the topics {sorted(found)} instead of {sorted(wanted)}")
    for name in sorted(found.keys() & wanted.keys()):
        told += [f"{name}: {text}" for text in _compare(wanted[name], found[name])]
    return told


def restore_problems(url: BucketUrl, objects: Mapping[str, bytes]) -> list[str]:
    """Return what is wrong if the broker is restored from these objects."""
    bucket = MemoryBucket(url, objects)
    module: Any = restoring
    with outside():
        plain, module.open_bucket = module.open_bucket, lambda given: bucket
        try:
            checked = restoring.check(Files(), restoring.RestorePlan(str(url)))
        finally:
            module.open_bucket = plain
    return checked.problems + [text for topic in checked.topics for text in topic.problems]


def _compare(wanted: TopicContent, found: TopicContent) -> Iterator[str]:
    first, second = wanted.row, found.row
    if (first.uuid, first.sync, first.retention) != (second.uuid, second.sync, second.retention):
        yield f"its row in the registry is {second} instead of {first}"
    if found.messages != wanted.messages:
        less = sorted(wanted.messages.items() - found.messages.items())[:3]
        more = sorted(found.messages.items() - wanted.messages.items())[:3]
        yield f"the restored log lacks {less} and has {more}"
    if sorted(found.delayed) != sorted(wanted.delayed):
        yield f"{len(found.delayed)} delayed messages instead of {len(wanted.delayed)}"
    one, other = wanted.table, found.table
    for what in ("channels", "holes", "producers", "transactions", "paused_end", "archived"):
        if getattr(one, what) != getattr(other, what):
            yield f"its {what} are {getattr(other, what)} instead of {getattr(one, what)}"
    if wanted.deferred != found.deferred:
        yield f"its deferred messages are {found.deferred} instead of {wanted.deferred}"
