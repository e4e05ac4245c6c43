"""A topic whose chunks are archived in a folder bucket, for tests of storage without actors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from support.storage_harness import IDENTITY, SMALL, StorageHarness

from zsq.storage.bucket.archive.chunk_cache import ChunkCache, open_cache
from zsq.storage.bucket.archive.chunk_objects import ChunkObjects
from zsq.storage.bucket.bucket_url import parse_bucket_url
from zsq.storage.bucket.folder_bucket import FolderBucket
from zsq.storage.directory.store import Store
from zsq.storage.errors import NotHere
from zsq.storage.files import Files
from zsq.storage.log.chunk import ArchivedChunk
from zsq.storage.log.index import INDEX_EVERY_BYTES
from zsq.storage.log.removal import remove_below
from zsq.storage.state.state import StateBatch
from zsq.transport.block.block import Block

SEGMENT_BYTES = 512
CACHED = replace(SMALL, open_remote=open_cache(1))


class ArchiveHarness(StorageHarness):
    """A topic, its bucket, and what the storage actor does between the two."""

    def __init__(self, root: Path) -> None:
        (root / "bucket").mkdir()
        (root / "data").mkdir()
        super().__init__(root / "data", CACHED)
        self.bucket = FolderBucket(Files(), parse_bucket_url(f"file://{root}/bucket"))
        self.objects = ChunkObjects(self.files, self.bucket)
        self.uuid = IDENTITY.uuid
        self.fetched = 0

    @property
    def opened(self) -> Store:
        assert self.store is not None
        return self.store

    def upload(self, base: int) -> ArchivedChunk:
        return self.objects.upload(self.directory, IDENTITY.uuid_bytes, base, INDEX_EVERY_BYTES)

    def archive(self, keep: int = 1) -> list[ArchivedChunk]:
        """Archive all sealed chunks, commit their rows, and remove the files of all chunks except
        the last `keep`.
        """
        bases = self.log.chunks[:-1]
        rows = [self.upload(base) for base in bases if base not in self.opened.archived]
        self.opened.state.commit(StateBatch(archived=rows, applied_offset=self.log.synced_end))
        self.opened.archived.update((row.base_offset, row) for row in rows)
        kept = self.log.chunks[-keep]
        gone = [row for base, row in sorted(self.opened.archived.items()) if base < kept]
        self.log.reader.leave(gone)
        remove_below(self.files, self.directory, kept)
        return rows

    @property
    def cache(self) -> ChunkCache:
        cache = self.opened.remote
        assert isinstance(cache, ChunkCache)
        return cache

    def fetch(self) -> int:
        """Fetch what the cache wants. Return the number of segments."""
        cache = self.cache
        wanted = cache.take_wanted()
        for segment in wanted:
            row = self.opened.archived[segment.base_offset]
            size = self.objects.fetch(self.uuid, row, segment.number, cache.path(segment))
            cache.arrived(segment, size)
        self.fetched += len(wanted)
        return len(wanted)

    def waiting(self, call: Callable[[], object]) -> object:
        """Return the result of `call`, and fetch what it needs."""
        for _ in range(1000):
            try:
                return call()
            except NotHere:
                assert self.fetch(), "nothing is fetched for a read that waits"
        raise AssertionError("a read waits for ever")

    def read_all(self) -> list[Block]:
        found: list[Block] = []
        offset = self.log.start
        while offset < self.log.synced_end:
            blocks = self.waiting(partial(self.log.read, offset, 4096, self.log.synced_end))
            assert isinstance(blocks, list)
            assert blocks, f"nothing at {offset}"
            found += blocks
            offset = blocks[-1].next_offset
        return found


def fill(archive: ArchiveHarness, chunks: int = 6) -> None:
    """Publish until the log has this number of chunks, and sync."""
    while len(archive.log.chunks) < chunks:
        archive.publish(blocks=2)
    archive.sync()
