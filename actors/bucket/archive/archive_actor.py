"""Archive actor: uploads sealed chunks, fetches segments, and writes manifests.

There is one for the broker. Only this process imports the library of the object store. It owns no
files: storage actors name the sealed chunk to upload, and the path to which a segment is fetched.
Every request may be repeated, because its outcome is the same. So nothing is lost when this process
is killed: storage sends again what was not answered.

Calls to a bucket block, so threads make them: uploads, fetches, and one thread for everything else.

| state | event | next | action |
|---|---|---|---|
| CHECKING | the store is fit, and the prefix is this broker's | READY | serve |
| CHECKING, first start | the store is not fit, refuses, or belongs to another broker | | the broker ends |
| CHECKING | the same, later; or no answer | CHECKING | refuse requests, check again after a pause |
| READY | a call fails | READY | answer with the reason; storage tries again |
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from ....storage.bucket.archive.archive_format import Manifest
from ....storage.bucket.archive.chunk_objects import ChunkObjects
from ....storage.bucket.archive.claim import Claimed, claim
from ....storage.bucket.archive.manifests import Manifests, Superseded
from ....storage.bucket.bucket import Bucket, BucketAway, BucketRefuses, BucketUnfit
from ....storage.bucket.bucket_url import parse_bucket_url
from ....storage.bucket.counted_bucket import CountedBucket
from ....storage.bucket.object_store import CALL_S, open_bucket
from ....storage.bucket.probe import probe
from ....storage.bucket.shipping.log_end import StillWrites, end_log, find_part
from ....storage.bucket.shipping.offset_gap import skip_offsets
from ....storage.bucket.shipping.part_taking import CopiesAhead, Wanted, take_part
from ....storage.bucket.shipping.tick_format import state_folder
from ....storage.directory.store import TopicIdentity
from ....storage.errors import Damaged, StorageError
from ....storage.files import Files
from ....storage.log.chunk import ArchivedChunk
from ....transport.errors import (
    E_BUCKET,
    E_CHECKSUM,
    E_FENCED,
    E_NOT_EMPTY,
    E_UNSUPPORTED,
    Refused,
    UsageError,
)
from ....transport.memory import return_large_memory
from ....transport.units import NS_PER_S
from ....transport.wire import protocol as p
from ...runtime.actor import Actor, StartFailed
from ...runtime.port import Envelope, Mail, Port
from ...runtime.worker_thread import WorkerThread
from ...settings.options import SHIP_RESERVE
from ...settings.starts import ArchiveStart
from ..lease_cell import LeaseCell
from .cluster_reader import LOOK_MS, ClusterReader, check_store
from .primacy import Primacy
from .shipper import POLL_MS, Shipper, ShipperLimits, ShipperState

log = logging.getLogger("zsq")

LIMITS: Final = ShipperLimits()
UPLOAD_THREADS: Final = 2
FETCH_THREADS: Final = 4
# At the first start, a call may take this long. The broker starts without a bucket that is slower.
FIRST_CALL_S: Final = 5.0
CHECK_PAUSE_S: Final = 10.0
HELD_MAX: Final = 1_000  # requests that wait for the check
# A tick is sent again if the store does not answer for this time.
SHIP_CALL_S: Final = 15.0
CLUSTER_CALL_S: Final = 10.0
RELEASE_S: Final = 5.0  # a handover that takes longer is given up
DirectoryOrder = TypeVar("DirectoryOrder", p.ReadDirectory, p.AppendEntry)
_Shape = Callable[[Any], dict[str, Any]]


class ArchiveActor(Actor[ArchiveStart]):
    """The process that talks to the bucket of this broker."""

    def on_start(self) -> dict[str, Any]:
        start = self.given
        return_large_memory()
        self._files = Files()
        self._trouble = ""
        self._failing = ""  # the last failure of a call, "" after one that succeeded
        self._check_ns = 0
        self._checking = False
        # Requests that came while the bucket is checked.
        self._held: list[tuple[Envelope, int, Callable[[], None]]] = []
        # Lists that wait until it is known whether this broker may go on in the bucket.
        self._early: list[tuple[Port, Mail, p.WriteManifest]] = []
        self._claimed: Claimed | None = None
        self._forgotten: set[str] = set()
        self._forget_ns = 0
        self._polls = False
        self._beat_ms = 0.0
        self._is_lost = False
        self._release_ns = 0
        self._cluster_threads: list[WorkerThread] = []
        self._taker: list[WorkerThread] = []
        self._copier: list[WorkerThread] = []
        self._ender: list[WorkerThread] = []
        self._bucket = self._open(FIRST_CALL_S if start.first else CALL_S)
        if start.first:
            self._check_first()
        counts = self._bucket.counts
        self._bucket = self._open(CALL_S)
        self._bucket.counts = counts  # the check at the start costs requests too
        place = self._claimed.claim.place if self._claimed is not None else 0
        self._objects = ChunkObjects(self._files, self._bucket, place)
        self._ahead = CopiesAhead(self._files, self._bucket, start.run_dir, self._forgotten)
        self._manifests = Manifests(self._bucket)
        self._uploads = self._threads("upload", UPLOAD_THREADS)
        self._fetches = self._threads("fetch", FETCH_THREADS)
        (self._control,) = self._threads("control", 1)
        self.front = self.open_router(start.front)
        self._shipper = self._make_shipper()
        self._cluster = self._make_cluster()
        self.front.route(p.OpenArchive, self.tell_archive)
        self.front.route(p.UploadChunk, self.upload)
        self.front.route(p.FetchSegment, self.fetch)
        self.front.route(p.WriteManifest, self.write_manifest)
        self.front.route(p.OpenShipping, self._ships(Shipper.open_topic))
        self.front.route(p.Ship, self._ships(Shipper.ship))
        self.front.route(p.ShipBase, self._ships(Shipper.upload_base))
        self.supervisor.route(p.ForgetArchive, self.forget)
        self.supervisor.route(p.ShipNow, self._ship_now)
        self.obey(p.ReadDirectory, self._of_cluster(ClusterReader.read))
        self.obey(p.AppendEntry, self._of_cluster(ClusterReader.append))
        self.obey(p.WaitForShipping, self._wait_for_shipping)
        self.obey(p.CopyArchive, self._copy_archive)
        self.obey(p.TakePart, self._take_part)
        self.obey(p.EndLog, self._end_log)
        self.obey(p.FindPart, self._find_part)
        self.obey_reload(p.ReloadShipping, self._take_bound)
        self.every(1_000, self._tick)
        self._tick()
        return {"bucket": start.url}

    def _make_shipper(self) -> Shipper | None:
        start = self.given
        if not start.ship_lag_s:
            return None
        try:
            cell = LeaseCell(start.run_dir, make=True)
        except OSError as error:
            raise StartFailed(f"{start.run_dir}: the lease cannot be written: {error}") from error
        bucket = self._open(SHIP_CALL_S)
        bucket.counts_of(self._bucket)
        return Shipper(
            self._files,
            bucket,
            start.data_dir,
            int(start.ship_lag_s * NS_PER_S),
            self._control,
            self._uploads,
            self._threads,
            self.front.send,
            lambda uuid: self.supervisor.send((), p.WakeTopic(uuid)),
            Primacy(cell, start.addresses),
            self._forgotten.add,
            LIMITS,
        )

    def _make_cluster(self) -> ClusterReader | None:
        """Return the reader of the cluster's directory, if this broker belongs to a cluster.

        Raises `StartFailed` at the first start if the store refuses or is not fit.
        """
        start = self.given
        if not start.cluster:
            return None
        url = parse_bucket_url(start.url)
        is_fit = start.is_probed
        if start.first and not is_fit:
            try:
                check_store(self._open(FIRST_CALL_S, start.cluster), url)
                is_fit = True
            except BucketAway as error:
                log.error("the directory of the cluster cannot be read: %s", error)
            except StorageError as error:
                raise StartFailed(f"the store of the cluster cannot be used: {error}") from error
        bucket = self._open(CLUSTER_CALL_S, start.cluster)
        bucket.counts_of(self._bucket)
        self._cluster_threads = self._threads("cluster", 1)
        check = (lambda: None) if is_fit else partial(check_store, bucket, url)
        reader = ClusterReader(
            bucket,
            start.broker,
            start.addresses,
            str(url),
            self._cluster_threads[0],
            partial(self.supervisor.send, ()),
            check,
            partial(_disk_of, start.data_dir),
        )
        self.every(LOOK_MS, reader.look)
        return reader

    def _of_cluster(
        self, handle: Callable[[ClusterReader, DirectoryOrder], None]
    ) -> Callable[[DirectoryOrder], None]:
        """Return a handler of an order about the cluster's directory."""

        def carry_out(order: DirectoryOrder) -> None:
            if self._cluster is None:
                raise UsageError(E_UNSUPPORTED, "this broker belongs to no cluster")
            handle(self._cluster, order)

        return carry_out

    # Parts that move between brokers

    def _wait_for_shipping(self, order: p.WaitForShipping) -> None:
        if self._shipper is None:
            raise UsageError(E_UNSUPPORTED, "this broker ships nothing to a bucket")

        def shipped(tick: int) -> None:
            self.supervisor.send((), p.Done(order.request, {"tick": tick}))

        self._shipper.wait_for(order.uuid, order.end, shipped)

    def _take_part(self, order: p.TakePart) -> None:
        if not self._may_write() or self._claimed is None:
            raise Refused(E_BUCKET, "the bucket of this broker cannot be used at the moment")
        thread = self._taking_thread()
        if not order.url:
            thread.submit(partial(self._took_part, order.request), partial(self._skip, order))
            return
        place = self._claimed.claim.place
        wanted = Wanted(order.name, order.log, order.tick, order.directory, place, order.reserve)
        if order.log in self._forgotten and self._control.pending:
            raise Refused(E_BUCKET, "what the part left here earlier is being removed")
        # What it left here when it was moved away is not needed any more: it comes back.
        left = order.log if order.log in self._forgotten else ""
        self._forgotten.discard(order.log)
        thread.submit(
            partial(self._took_part, order.request),
            partial(self._take, order.url, wanted, left),
        )

    def _taking_thread(self) -> WorkerThread:
        """Return the thread that reads the buckets of other brokers. It may take long."""
        self._taker = self._taker or self._threads("take", 1)
        return self._taker[0]

    def _copy_archive(self, order: p.CopyArchive) -> None:
        """Copy the archive of a part ahead. It may take hours, so it has a thread of its own."""
        if not self._may_write():
            raise Refused(E_BUCKET, "the bucket of this broker cannot be used at the moment")
        self._copier = self._copier or self._threads("copy", 1)

        def copy() -> dict[str, Any]:
            return {"log": self._ahead.copy(self._open_other(order.url), order.name)}

        self._copier[0].submit(partial(self._took_part, order.request), copy)

    def _end_log(self, order: p.EndLog) -> None:
        if not self._may_write():
            raise Refused(E_BUCKET, "the bucket of this broker cannot be used at the moment")
        self._ender = self._ender or self._threads("end", 1)

        def end() -> dict[str, Any]:
            wait = partial(time.sleep, order.quiet_s)
            other = self._open_other(order.url)
            tick = end_log(other, socket.gethostname(), time.time_ns(), SHIP_RESERVE, wait)
            return {"tick": tick}

        self._ender[0].submit(partial(self._took_part, order.request), end)

    def _find_part(self, order: p.FindPart) -> None:
        def find() -> dict[str, Any]:
            other = self._open_other(order.url)
            found = find_part(other, order.name, order.of_topic, order.hold, order.given)
            return found._asdict()

        self._taking_thread().submit(partial(self._took_part, order.request), find)

    def _open_other(self, url: str) -> Bucket:
        """Return the bucket of another broker. Its requests count as those of this broker."""
        bucket = self._open(SHIP_CALL_S, url)
        bucket.counts_of(self._bucket)
        return bucket

    def _take(self, url: str, wanted: Wanted, left: str) -> dict[str, Any]:
        """Take a part over, in a thread."""
        if left:
            self._remove_all(left)
            self._ahead.take(wanted.log)
        # If this fails, the next attempt copies everything. So it does not depend on this process.
        copied = self._ahead.take(wanted.log)
        source = self._open_other(url)
        row, part = take_part(self._files, source, self._bucket, wanted, copied)
        return {
            "row": dict(row),
            "start": part.start,
            "end": part.end,
            "archived": part.archived_messages,
        }

    def _skip(self, order: p.TakePart) -> dict[str, Any]:
        """Leave a gap in a part that is here, in a thread."""
        identity = TopicIdentity(order.name, order.log, order.base_offset)
        return skip_offsets(self._files, order.directory, identity, order.reserve)._asdict()

    def _took_part(self, request: int, value: object) -> None:
        if isinstance(value, dict):
            self.supervisor.send((), p.Done(request, value))
        else:
            assert isinstance(value, Exception)
            self.supervisor.send((), _failure(request, value))

    def _may_write(self) -> bool:
        """Return True while the prefix is this broker's, and no other copy has taken over."""
        if self._claimed is None or not self._claimed.writes:
            return False
        return self._shipper is None or self._shipper.state is ShipperState.OPEN

    def _take_bound(self, order: p.ReloadShipping) -> None:
        if self._shipper is not None:
            self._shipper.set_bound(order.bucket_lag_s)

    def _ship_now(self, port: Port, mail: Mail, message: p.ShipNow) -> None:
        if self._shipper is None:
            return
        self._shipper.ship_now()
        if message.is_last:
            self._shipper.release()
            self._release_ns = time.monotonic_ns() + int(RELEASE_S * NS_PER_S)

    def on_stop(self) -> bool:
        """Return True when a handover is in the bucket, or does not get there in time."""
        shipper = self._shipper
        releases = shipper is not None and shipper.is_releasing
        return not releases or time.monotonic_ns() > self._release_ns

    def _open(self, call_s: float, url: str = "") -> CountedBucket:
        try:
            bucket = open_bucket(parse_bucket_url(url or self.given.url), call_s=call_s)
        except StorageError as error:
            raise StartFailed(str(error)) from error
        return CountedBucket(self._files, bucket)

    def _check_first(self) -> None:
        """Check the store. Raises `StartFailed` if it is not fit, so that the broker ends."""
        try:
            self._claimed = self._check()
        except BucketAway as error:
            self._in_trouble(error)
        except StorageError as error:
            raise StartFailed(str(error)) from error

    def _check(self) -> Claimed:
        """Raise a `BucketError` if the store is not fit, or the prefix is another broker's."""
        start = self.given
        if not start.is_probed:
            probe(self._bucket, self._files)
        return claim(self._bucket, start.broker, start.known, start.fresh)

    def _threads(self, name: str, count: int) -> list[WorkerThread]:
        threads = [WorkerThread(f"{name}-{number}") for number in range(count)]
        for thread in threads:
            self.listen_raw(thread, partial(self._results, thread))
        return threads

    # Requests

    def _known_claim(self) -> Claimed:
        """Return the claim. Raises `Refused` while the bucket is checked or cannot be used."""
        if self._claimed is None:
            raise Refused(E_BUCKET, self._trouble or "the bucket is being checked")
        return self._claimed

    def _waits(self, envelope: Envelope, request: int, again: Callable[[], None]) -> bool:
        """Return True if a request waits for the end of the check, which then calls `again`."""
        waits = self._claimed is None and self._checking and len(self._held) < HELD_MAX
        if waits:
            self._held.append((envelope, request, again))
        return waits

    def tell_archive(self, port: Port, mail: Mail, message: p.OpenArchive) -> None:
        again = partial(self.tell_archive, port, mail, message)
        if self._waits(mail.envelope, message.request, again):
            return
        claimed = self._known_claim()
        data = {"place": claimed.claim.place, "writes": claimed.writes}
        port.send(mail.envelope, p.Done(message.request, data))

    def upload(self, port: Port, mail: Mail, message: p.UploadChunk) -> None:
        job = partial(
            self._objects.upload,
            message.folder,
            bytes.fromhex(message.uuid),
            message.base_offset,
            message.index_every_bytes,
        )
        # Ticks must be in time, and log files need not be. So one file at a time goes beside them.
        threads = self._uploads if self._shipper is None else self._uploads[:1]
        self._submit(threads, mail.envelope, message.request, job, _as_chunk)

    def fetch(self, port: Port, mail: Mail, message: p.FetchSegment) -> None:
        row = ArchivedChunk(*message.chunk)
        job = partial(self._objects.fetch, message.uuid, row, message.number, message.path)
        self._submit(self._fetches, mail.envelope, message.request, job, _as_bytes)

    def write_manifest(self, port: Port, mail: Mail, message: p.WriteManifest) -> None:
        """Write a list, once this broker has taken over its log of ticks.

        A restored copy that is refused must not write one: the broker that goes on would find it,
        and would end its archive.
        """
        if self._is_early():
            if len(self._early) >= HELD_MAX:
                raise Refused(E_BUCKET, "the broker is taking over its log of ticks")
            self._early.append((port, mail, message))
            return
        epoch = 0
        if self._shipper is not None and (self._claimed is None or self._claimed.writes):
            self._shipper.check()
            epoch = self._shipper.epoch
        manifest = Manifest(
            topic=message.topic,
            uuid=message.uuid,
            broker=self.given.broker,
            writer=self.given.writer,
            time_ns=time.time_ns(),
            start=message.start,
            end=message.end,
            chunks=tuple(ArchivedChunk(*row) for row in message.chunks),
            epoch=epoch,
        )
        gone = [ArchivedChunk(*row) for row in message.gone]
        job = partial(self._manifests.write, manifest, gone, message.removable)
        self._submit([self._control], mail.envelope, message.request, job, _as_number)

    def _ships(
        self, handle: Callable[[Shipper, Envelope, Any], None]
    ) -> Callable[[Port, Mail, Any], None]:
        """Return a handler of a request to the shipper."""

        def carry_out(port: Port, mail: Mail, message: Any) -> None:
            shipper, claimed = self._shipper, self._known_claim()
            if shipper is None or not claimed.writes:
                port.send(mail.envelope, p.Done(message.request, {"writes": False}))
                return
            handle(shipper, mail.envelope, message)

        return carry_out

    def _is_early(self) -> bool:
        writes = self._claimed is None or self._claimed.writes
        return self._shipper is not None and writes and self._shipper.is_opening

    def _write_early(self) -> None:
        early, self._early = self._early, []
        for port, mail, message in early:
            try:
                self.write_manifest(port, mail, message)
            except Refused as error:
                self.front.send(mail.envelope, p.Failed(message.request, error.code, error.text))

    def on_turn(self) -> None:
        if self._cluster is not None:
            self._cluster.allow(self._may_write())
        shipper = self._shipper
        if shipper is None:
            return
        if self._early and not self._is_early():
            self._write_early()
        shipper.poll()
        if shipper.is_busy != self._polls:
            self._polls = shipper.is_busy
            if self._polls:
                self.every(POLL_MS, self._poll)
            else:
                self.cease(self._poll)
        if shipper.beat_ms != self._beat_ms:
            self.cease(shipper.beat)
            self._beat_ms = shipper.beat_ms
            if self._beat_ms:
                self.every(self._beat_ms, shipper.beat)
        if shipper.state is ShipperState.LOST and not self._is_lost:
            self._is_lost = True
            self.pulse()  # the supervisor stops the broker

    def _poll(self) -> None:
        """Wake the loop, so that a tick that is due is sent."""

    def _submit(
        self,
        threads: Sequence[WorkerThread],
        envelope: Envelope,
        request: int,
        job: Callable[[], Any],
        shape: _Shape,
    ) -> None:
        if self._waits(
            envelope, request, partial(self._submit, threads, envelope, request, job, shape)
        ):
            return
        self._known_claim()
        thread = min(threads, key=lambda candidate: candidate.pending)
        thread.submit(partial(self._answer, envelope, request, shape), job)

    def _results(self, thread: WorkerThread) -> None:
        for then, value in thread.results():
            then(value)

    def _answer(self, envelope: Envelope, request: int, shape: _Shape, value: Any) -> None:
        away = isinstance(value, (BucketAway, BucketRefuses, BucketUnfit))
        if away or not isinstance(value, Exception):
            self._failing = str(value) if away else ""
        if not isinstance(value, Exception):
            self.front.send(envelope, p.Done(request, shape(value)))
        else:
            self.front.send(envelope, _failure(request, value))

    # Topics that were deleted

    def forget(self, port: Port, mail: Mail, message: p.ForgetArchive) -> None:
        """Remove all objects of a deleted topic. A failure is repeated until this process ends."""
        self._forgotten.add(message.uuid)
        self._ahead.take(message.uuid)
        if self._shipper is not None:
            self._shipper.forget(message.uuid)
        self._forget_next()

    def _forget_next(self) -> None:
        writes = self._claimed is not None and self._claimed.writes
        due = time.monotonic_ns() >= self._forget_ns
        if not writes or not due or self._control.pending:
            return
        shipper = self._shipper
        known = [topic for topic in self._forgotten if shipper is None or shipper.may_remove(topic)]
        if known:
            uuid = min(known)
            self._control.submit(partial(self._forgot, uuid), partial(self._remove_all, uuid))

    def _remove_all(self, uuid: str) -> None:
        """Remove all objects of a topic, in a thread. The manifests go last."""
        self._bucket.remove(sorted(self._bucket.names(state_folder(uuid))))
        self._bucket.remove_folder(state_folder(uuid))
        self._manifests.forget(uuid)

    def _forgot(self, uuid: str, value: object) -> None:
        if not isinstance(value, Exception):
            self._forgotten.discard(uuid)
            self._forget_next()
        elif isinstance(value, StorageError):
            self._forget_ns = time.monotonic_ns() + int(CHECK_PAUSE_S * NS_PER_S)
            log.warning("the objects of a deleted topic cannot be removed: %s", value)
        else:
            raise value

    # The check

    def _tick(self) -> None:
        self._forget_next()
        if self._shipper is not None and self._claimed is not None and self._claimed.writes:
            self._shipper.open(self._claimed.claim.archive)
            self._shipper.tick()
        away = self._claimed is None and not self._checking
        if away and time.monotonic_ns() >= self._check_ns:
            self._checking = True
            self._control.submit(self._checked, self._check)

    def _checked(self, value: object) -> None:
        self._checking = False
        self._take_claim(value)
        held, self._held = self._held, []
        for envelope, number, again in held:
            try:
                again()
            except Refused as error:
                self.front.send(envelope, p.Failed(number, error.code, error.text))

    def _take_claim(self, value: object) -> None:
        if isinstance(value, Claimed):
            self._claimed = value
            self._objects.place = value.claim.place
            if self._trouble:
                log.warning("the bucket %s can be used", self.given.url)
            self._trouble = ""
        elif isinstance(value, StorageError):
            self._in_trouble(value)
        else:
            assert isinstance(value, Exception)
            raise value

    def _in_trouble(self, error: StorageError) -> None:
        if not self._trouble:
            log.error("the bucket cannot be used, and is tried again every 10 s: %s", error)
        self._trouble = str(error)
        self._check_ns = time.monotonic_ns() + int(CHECK_PAUSE_S * NS_PER_S)

    # The end

    def _idle(self) -> bool:
        return not any(thread.pending for thread in self._all_threads())

    def _all_threads(self) -> list[WorkerThread]:
        shipping = self._shipper.threads() if self._shipper is not None else ()
        return [
            *self._uploads, *self._fetches, self._control, *self._cluster_threads, *self._taker,
            *shipping,
        ]  # fmt: skip

    def on_end(self) -> None:
        if not self._idle():
            # A thread waits for the store. Its request may be repeated, so the process ends now.
            logging.shutdown()
            os._exit(0)
        for thread in self._all_threads():
            thread.close()

    def _all_trouble(self) -> str:
        """Return why the bucket cannot be used, or "". Another broker's takeover comes first."""
        if self._shipper is None:
            return self._trouble or self._failing
        if self._shipper.state is ShipperState.LOST:
            return self._shipper.trouble
        return self._trouble or self._failing or self._shipper.trouble

    def statistics(self) -> dict[str, object]:
        counts = self._bucket.counts
        counted = ("shipped_bytes", "shipped_ticks", "epoch", "standbys")
        shipping = {
            "shipping": "off",
            "lag_s": 0.0,
            "standby_addresses": "",
            **dict.fromkeys(counted, 0),
        }
        if self._shipper is not None:
            shipping = self._shipper.statistics()
        requests = counts.write_requests, counts.read_requests
        return {
            **shipping,
            "cost": sum(
                count * cost / 1000 for count, cost in zip(requests, self.given.costs, strict=True)
            ),
            "url": self.given.url,
            "addresses": ",".join(self.given.addresses),
            "cluster": self.given.cluster,
            "archive": self._claimed.claim.archive if self._claimed is not None else "",
            "trouble": self._all_trouble(),
            "write_requests": counts.write_requests,
            "read_requests": counts.read_requests,
            "remove_requests": counts.remove_requests,
            "sent_bytes": counts.sent_bytes,
            "received_bytes": counts.received_bytes,
        }


def _disk_of(data_dir: str) -> tuple[int, int]:
    """Return the free and all bytes of a disk, or 0 if they are not known."""
    try:
        disk = os.statvfs(data_dir)
    except OSError:
        return 0, 0
    return disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize


def _failure(request: int, error: Exception) -> p.Failed:
    """Return the answer to a request that failed. Raises the error if it is a defect."""
    if not isinstance(error, (StorageError, OSError, StartFailed)):
        raise error
    is_superseded = isinstance(error, Superseded)
    code = E_CHECKSUM if isinstance(error, Damaged) else E_FENCED if is_superseded else E_BUCKET
    code = E_NOT_EMPTY if isinstance(error, StillWrites) else code
    return p.Failed(request, code, str(error))


def _as_chunk(row: ArchivedChunk) -> dict[str, Any]:
    return {"chunk": tuple(row)}


def _as_bytes(size: int) -> dict[str, Any]:
    return {"bytes": size}


def _as_number(number: int) -> dict[str, Any]:
    return {"number": number}
