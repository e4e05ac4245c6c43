"""Tests of the archiver: which chunks it uploads, when their rows are committed, when their files
may leave the disk, and what it asks again after a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.archive_harness import SEGMENT_BYTES, ArchiveHarness, fill
from support.storage_harness import IDENTITY

from zsq.actors.bucket.topic import archiving
from zsq.actors.bucket.topic.archive_link import ArchiveLink
from zsq.actors.bucket.topic.archiving import Archiver
from zsq.actors.storage.commits import StateCommits
from zsq.storage.bucket.archive import archive_format, chunk_cache, chunk_objects
from zsq.storage.errors import NotHere, OutOfReach
from zsq.storage.log.chunk import ArchivedChunk
from zsq.storage.state.state import StateBatch
from zsq.transport.wire import protocol as p

PLACE = 7


class Commits:
    """State commits that happen when the test says so."""

    def __init__(self, harness: ArchiveHarness) -> None:
        self._harness = harness
        self.batch = StateBatch()
        self._then: list[Callable[[], object]] = []

    def then(self, action: Callable[[], object]) -> None:
        self._then.append(action)

    def commit(self) -> None:
        batch, self.batch, then, self._then = self.batch, StateBatch(), self._then, []
        batch.applied_offset = self._harness.log.synced_end
        self._harness.opened.state.commit(batch)
        for action in then:
            action()


class Link:
    """The connection to an archive actor that answers when the test says so."""

    def __init__(self) -> None:
        self.routes: dict[type[Any], Callable[..., None]] = {}
        self.sent: list[Any] = []

    def route(self, kind: type[Any], handler: Callable[..., None]) -> None:
        self.routes[kind] = handler

    def send(self, envelope: object, message: Any) -> None:
        self.sent.append(message)

    def take(self, kind: type[Any]) -> list[Any]:
        found = [one for one in self.sent if isinstance(one, kind)]
        self.sent = [one for one in self.sent if not isinstance(one, kind)]
        return found

    def answer(self, message: p.Done | p.Failed) -> None:
        self.routes[type(message)](cast("Any", None), cast("Any", None), message)


class Place:
    """An archiver with a real store, and everything around it."""

    def __init__(self, harness: ArchiveHarness) -> None:
        self.harness = harness
        # What waits until it is shipped, or None if the topic is not shipped.
        self.unshipped: list[Callable[[], object]] | None = None
        self.state = Commits(harness)
        self.link = Link()
        self.arrivals = 0
        self.archive_link = ArchiveLink(cast("Any", lambda: self.link))
        self.archiver = Archiver(
            harness.opened, IDENTITY.name, IDENTITY.uuid, "topic clicks",
            cast("StateCommits", self.state), self.archive_link, self._arrived, self._when_shipped, is_on=True,
        )  # fmt: skip

    def begin(self, *, writes: bool = True) -> None:
        """Let the archiver learn its archive and write its first manifest."""
        self.archiver.tick()
        (asked,) = self.link.take(p.OpenArchive)
        self.link.answer(p.Done(asked.request, {"place": PLACE, "writes": writes}))
        self.list_all()

    def list_all(self) -> list[Any]:
        """Answer the manifests that the archiver writes. Return them."""
        found = self.link.take(p.WriteManifest)
        for manifest in found:
            self.link.answer(p.Done(manifest.request, {"number": 1}))
        return found

    def gone(self) -> None:
        """Let the archive actor die."""
        self.archive_link.gone()
        self.archiver.gone()

    def _when_shipped(self, action: Callable[[], object]) -> None:
        if self.unshipped is None:
            action()
        else:
            self.unshipped.append(action)

    def _arrived(self) -> None:
        self.arrivals += 1

    def upload(self, message: p.UploadChunk) -> ArchivedChunk:
        return self.harness.objects.upload(
            message.folder, bytes.fromhex(message.uuid), message.base_offset,
            message.index_every_bytes,
        )  # fmt: skip

    def archive_all(self) -> None:
        """Let the archiver work until nothing is left to upload."""
        self.begin()
        while asked := self.link.take(p.UploadChunk):
            for one in asked:
                self.link.answer(p.Done(one.request, {"chunk": tuple(self.upload(one))}))
            self.state.commit()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    for module in (archive_format, chunk_cache, chunk_objects):
        monkeypatch.setattr(module, "SEGMENT_BYTES", SEGMENT_BYTES)
    monkeypatch.setattr(archiving, "MANIFEST_S", 0.0)
    harness = ArchiveHarness(tmp_path)
    harness.objects.place = PLACE
    harness.open()
    fill(harness)
    yield Place(harness)
    harness.abandon()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    now = [10**15]
    monkeypatch.setattr("zsq.actors.bucket.topic.archiving.time.monotonic_ns", lambda: now[0])
    return now


def test_sealed_chunks_are_uploaded_in_order_a_few_at_a_time(place: Place) -> None:
    place.begin()
    asked = place.link.take(p.UploadChunk)
    chunks = place.harness.log.chunks
    assert [one.base_offset for one in asked] == list(chunks[: archiving.UPLOADS_MAX])
    place.archiver.tick()
    assert not place.link.take(p.UploadChunk), "they are under way already"
    place.link.answer(p.Done(asked[0].request, {"chunk": tuple(place.upload(asked[0]))}))
    assert not place.harness.opened.archived, "its row is not committed yet"
    place.state.commit()
    assert list(place.harness.opened.archived) == [0]
    (third,) = place.link.take(p.UploadChunk)
    assert third.base_offset == chunks[2]


def test_the_rows_are_in_the_state_and_the_manifest_lists_them(place: Place) -> None:
    place.archive_all()
    archived = place.harness.opened.archived
    assert list(archived) == list(place.harness.log.chunks[:-1])
    assert place.harness.opened.state.load().archived == archived
    place.archiver.tick()
    (manifest,) = place.link.take(p.WriteManifest)
    assert manifest.chunks == tuple(tuple(row) for row in archived.values())
    assert (manifest.start, manifest.end) == (0, place.harness.log.synced_end)
    assert not place.archiver.is_idle()
    place.link.answer(p.Done(manifest.request, {"number": 1}))
    assert place.archiver.is_idle()
    assert place.archiver.statistics()["archived_chunks"] == len(archived)


def test_a_topic_that_is_not_archived_uploads_nothing(place: Place) -> None:
    place.archiver.is_on = False
    place.begin()
    assert not place.link.take(p.UploadChunk)
    assert place.archiver.statistics()["unarchived_bytes"] == 0


def test_a_failure_is_an_alarm_and_tried_again_after_growing_pauses(
    place: Place, clock: list[int]
) -> None:
    place.begin()
    place.archiver.tick()
    for pause_s in (2, 4, 8, 16, 32, 60, 60):
        place.archiver.tick()
        for asked in place.link.take(p.UploadChunk)[:1]:
            place.link.answer(p.Failed(asked.request, "E_BUCKET", "it is away"))
        assert place.archiver.alarms() == ["chunks cannot be archived: it is away"]
        clock[0] += pause_s * 10**9 - 1
        place.archiver.tick()
        assert not place.link.take(p.UploadChunk)
        clock[0] += 1
    place.archiver.tick()
    for asked in place.link.take(p.UploadChunk):
        place.link.answer(p.Done(asked.request, {"chunk": tuple(place.upload(asked))}))
    place.state.commit()
    assert place.archiver.alarms() == []
    assert list(place.harness.opened.archived)


def test_a_chunk_whose_end_is_wrong_is_named_and_kept_on_the_disk(place: Place) -> None:
    place.begin()
    (first, _) = place.link.take(p.UploadChunk)
    row = place.upload(first)
    place.link.answer(
        p.Done(first.request, {"chunk": tuple(row._replace(next_offset=row.next_offset - 1))})
    )
    place.state.commit()
    assert not place.harness.opened.archived
    (alarm,) = place.archiver.alarms()
    assert "is damaged and is not archived" in alarm
    assert place.archiver.leavable(place.harness.log.chunks[:-1], 1 << 60) == 0
    place.archiver.tick()
    assert first.base_offset not in [one.base_offset for one in place.link.take(p.UploadChunk)]


def test_what_a_dead_archive_actor_did_not_answer_is_asked_again(place: Place) -> None:
    place.begin()
    before = place.link.take(p.UploadChunk)
    place.gone()
    place.begin()
    again = place.link.take(p.UploadChunk)
    assert [one.base_offset for one in again] == [one.base_offset for one in before]
    late = p.Done(before[0].request, {"chunk": tuple(place.upload(before[0]))})
    place.link.answer(late)
    place.state.commit()
    assert not place.harness.opened.archived, "only the answer to the last request counts"


def list_all(place: Place) -> None:
    """Let the archiver write its manifest."""
    place.archiver.tick()
    place.list_all()


def test_a_file_may_leave_only_when_its_row_is_in_a_snapshot_listed_and_covered(
    place: Place, clock: list[int]
) -> None:
    bases = place.harness.log.chunks[:-1]
    archiver = place.archiver
    assert archiver.leavable(bases, 1 << 60) == 0
    place.begin()
    asked = place.link.take(p.UploadChunk)
    for one in asked:
        place.link.answer(p.Done(one.request, {"chunk": tuple(place.upload(one))}))
    assert archiver.leavable(bases, 1 << 60) == 0, "the rows are not committed"
    place.state.commit()
    assert archiver.leavable(bases, 1 << 60) == 0, "the manifest does not list them"
    list_all(place)
    assert archiver.leavable(bases, 1 << 60) == 2
    assert archiver.leavable(bases, bases[1] + 1) == 1, "a start replays the second one"
    assert archiver.leavable(bases, bases[1]) == 0, "a start also reads the block before"
    archiver.leave(bases[:1])
    assert archiver.leavable(bases, 0) == 1, "it has left already"


def test_rows_that_no_snapshot_has_are_not_safe(
    place: Place, monkeypatch: pytest.MonkeyPatch, clock: list[int]
) -> None:
    keeper = place.harness.opened.keeper
    place.begin()
    (first, _) = place.link.take(p.UploadChunk)
    place.link.answer(p.Done(first.request, {"chunk": tuple(place.upload(first))}))
    with monkeypatch.context() as patch:
        patch.setattr(keeper, "write", lambda: setattr(keeper, "problem", "a full disk"))
        place.state.commit()
    bases = place.harness.log.chunks[:-1]
    assert place.archiver.leavable(bases, 1 << 60) == 0
    list_all(place)
    assert place.archiver.leavable(bases, 1 << 60) == 0
    keeper.write()
    place.archiver.tick()
    assert place.archiver.leavable(bases, 1 << 60) == 1


def test_rows_of_expired_chunks_are_removed_and_then_listed(place: Place, clock: list[int]) -> None:
    place.archive_all()
    place.archiver.tick()
    (manifest,) = place.link.take(p.WriteManifest)
    place.link.answer(p.Done(manifest.request, {"number": 1}))
    start = place.harness.log.chunks[2]
    place.harness.log.forget(start)
    place.archiver.tick()
    assert 0 in place.harness.opened.archived, "the removal is not committed yet"
    assert place.archiver.leavable(list(place.harness.opened.archived), 1 << 60) == 0
    place.state.commit()
    assert min(place.harness.opened.archived) == start
    assert min(place.harness.opened.state.load().archived) == start
    clock[0] += int(archiving.MANIFEST_S * 1e9)
    place.archiver.tick()
    (manifest,) = place.link.take(p.WriteManifest)
    assert manifest.start == manifest.chunks[0][0] == manifest.removable == start


def test_objects_of_expired_chunks_stay_until_the_expiry_is_shipped(
    place: Place, clock: list[int]
) -> None:
    """A broker that is restored before that needs them."""
    place.archive_all()
    place.unshipped = []
    first, second, start = place.harness.log.chunks[:3]
    place.harness.log.forget(start)
    place.archiver.tick()
    place.state.commit()
    place.gone()  # the next archive actor must not remove them either
    place.link.sent.clear()
    place.archiver.tick()
    (asked,) = place.link.take(p.OpenArchive)
    place.link.answer(p.Done(asked.request, {"place": PLACE, "writes": True}))
    (manifest,) = place.list_all()
    assert (manifest.start, manifest.removable, manifest.gone) == (start, 0, ())
    (action,) = place.unshipped
    action()
    clock[0] += int(archiving.MANIFEST_S * 1e9)
    place.archiver.tick()
    (manifest,) = place.list_all()
    assert (manifest.start, manifest.removable) == (start, start)
    assert [row[0] for row in manifest.gone] == [first, second]


def test_a_chunk_that_expires_during_its_upload_leaves_no_row(place: Place) -> None:
    place.begin()
    (first, second) = place.link.take(p.UploadChunk)
    rows = [place.upload(one) for one in (first, second)]
    place.link.answer(p.Done(first.request, {"chunk": tuple(rows[0])}))
    place.harness.log.forget(place.harness.log.chunks[2])
    place.link.answer(p.Done(second.request, {"chunk": tuple(rows[1])}))
    place.state.commit()  # the row of the first one was in the batch already
    place.archiver.tick()
    place.state.commit()
    assert not place.harness.opened.archived
    assert not place.harness.opened.state.load().archived


def test_reads_fetch_what_is_missing_and_are_told_when_it_arrives(place: Place) -> None:
    place.archive_all()
    bases = place.harness.log.chunks[:-1]
    place.archiver.leave(bases)
    with pytest.raises(NotHere):
        place.harness.log.read(0, 100, 10**9)
    place.archiver.fetch()
    asked = place.link.take(p.FetchSegment)
    assert asked
    place.archiver.fetch()
    assert not place.link.take(p.FetchSegment)
    for one in asked:
        row = ArchivedChunk(*one.chunk)
        size = place.harness.objects.fetch(one.uuid, row, one.number, one.path)
        place.link.answer(p.Done(one.request, {"bytes": size}))
    assert place.arrivals == len(asked)
    assert place.harness.log.read(0, 100, 10**9)


def test_fetches_are_asked_again_when_the_archive_actor_died(place: Place) -> None:
    place.archive_all()
    place.archiver.leave(place.harness.log.chunks[:-1])
    with pytest.raises(NotHere):
        place.harness.log.read(0, 100, 10**9)
    place.archiver.fetch()
    before = place.link.take(p.FetchSegment)
    place.gone()
    place.begin()
    assert sorted(one.path for one in place.link.take(p.FetchSegment)) == sorted(
        one.path for one in before
    )


def of_another_archive(place: Place) -> None:
    """Make the rows those of a bucket that the broker used before."""
    archived = place.harness.opened.archived
    for base, row in archived.items():
        archived[base] = row._replace(place=PLACE + 1)


def test_an_answer_of_another_archive_makes_the_archiver_ask_again(place: Place) -> None:
    place.begin()
    (first, _) = place.link.take(p.UploadChunk)
    row = place.upload(first)._replace(place=PLACE + 1)
    place.link.answer(p.Done(first.request, {"chunk": tuple(row)}))
    place.state.commit()
    assert not place.harness.opened.archived
    place.archiver.tick()
    assert place.link.take(p.OpenArchive)


def test_a_topic_whose_files_another_bucket_has_keeps_them_and_uploads_them_again(
    place: Place,
) -> None:
    place.archive_all()
    place.list_all()
    of_another_archive(place)
    bases = place.harness.log.chunks[:-1]
    assert place.archiver.leavable(bases, 1 << 60) == 0, "these rows are of another archive"
    place.archiver.tick()
    while asked := place.link.take(p.UploadChunk):
        for one in asked:
            place.link.answer(p.Done(one.request, {"chunk": tuple(place.upload(one))}))
        place.state.commit()
    place.list_all()
    list_all(place)
    assert {row.place for row in place.harness.opened.archived.values()} == {PLACE}
    assert place.archiver.leavable(bases, 1 << 60) == len(bases)


def test_messages_that_only_another_bucket_has_are_named(place: Place) -> None:
    place.archive_all()
    of_another_archive(place)
    place.harness.log.reader.leave(list(place.harness.opened.archived.values()))
    (alarm,) = place.archiver.alarms()
    assert "are only in another bucket" in alarm
    with pytest.raises(NotHere):
        place.harness.log.read(0, 100, 10**9)
    place.archiver.fetch()
    assert not place.link.take(p.FetchSegment)
    with pytest.raises(OutOfReach, match="another bucket"):
        place.harness.log.read(0, 100, 10**9)


def test_a_copy_of_another_brokers_data_only_reads(place: Place) -> None:
    place.begin(writes=False)
    assert not place.link.sent
    assert place.archiver.is_idle()
    (alarm,) = place.archiver.alarms()
    assert "it reads from the bucket, and archives nothing" in alarm


def test_a_fenced_archive_ends_and_nothing_leaves_the_disk(place: Place) -> None:
    place.archive_all()
    place.archiver.tick()
    (manifest,) = place.link.take(p.WriteManifest)
    place.link.answer(p.Failed(manifest.request, "E_FENCED", "another broker writes here"))
    bases = place.harness.log.chunks[:-1]
    assert place.archiver.leavable(bases, 1 << 60) == 0
    for _ in range(3):
        place.archiver.tick()
    assert not place.link.sent
    assert place.archiver.alarms() == ["nothing more is archived: another broker writes here"]


def test_a_damaged_file_is_named_and_the_others_are_archived(place: Place) -> None:
    place.begin()
    (first, second) = place.link.take(p.UploadChunk)
    place.link.answer(p.Failed(first.request, "E_CHECKSUM", "it has no valid footer"))
    place.link.answer(p.Done(second.request, {"chunk": tuple(place.upload(second))}))
    place.state.commit()
    assert list(place.harness.opened.archived) == [second.base_offset]
    (alarm,) = place.archiver.alarms()
    assert "is not archived: it has no valid footer" in alarm
    place.archiver.tick()
    asked = [one.base_offset for one in place.link.take(p.UploadChunk)]
    assert asked
    assert first.base_offset not in asked


def test_a_topic_that_is_not_archived_may_sleep(place: Place) -> None:
    place.archiver.is_on = False
    place.archiver.tick()
    assert place.archiver.is_idle()
