"""Restore of a broker from its bucket: a new data directory from the log of ticks and the archive.

The directory is made under a temporary name, synced, and renamed. So a directory with the final
name is complete. `storage/bucket/shipping/restore.py` does what each topic needs. This module does
the rest: the registry, the identity with which the copy may continue the log, and the check.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..actors.supervisor.topics.registry import REGISTRY_NAME
from ..actors.supervisor.topics.registry_format import GIVEN, Content, TopicRow, decode, encode
from ..storage.bucket.archive.archive_format import BROKER_NAME, Claim, decode_claim
from ..storage.bucket.bucket import Bucket, BucketError, ObjectMissing
from ..storage.bucket.bucket_url import parse_bucket_url
from ..storage.bucket.counted_bucket import CountedBucket
from ..storage.bucket.object_store import open_bucket
from ..storage.bucket.shipping.restore import RestoredTopic, Target, restore_topics
from ..storage.bucket.shipping.tick_format import COPY_NAME, Copy, encode_copy, log_object
from ..storage.bucket.shipping.tick_reader import LogMoved, TickReader, WrongTime
from ..storage.directory.store import TopicIdentity
from ..storage.errors import DiskFull, NewerVersion, StorageError
from ..storage.files import Files
from ..transport.errors import (
    E_BAD_ARGUMENT,
    E_BUCKET,
    E_CHECKSUM,
    E_DISK_FULL,
    E_UNSUPPORTED,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from .backup import new_data_dir

ATTEMPTS_MAX: Final = 3
NOT_SHIPPED: Final = "the bucket has nothing of it"
PROBLEMS_SHOWN: Final = 5


@dataclass(slots=True)
class RestorePlan:
    """Settings of a restore. `without` has topics to leave out. `at_ns` None means the newest."""

    url: str
    at_ns: int | None = None
    eager: bool = False
    without: Sequence[str] = ()
    advance: Callable[[int], object] = field(default=lambda count: None)


@dataclass(slots=True)
class RestoredBroker:
    """Result of a restore. `time_ns` is that of the newest tick, which has the number `number`.

    `left_out` has the reasons, by the names of the topics. `may_continue` is True if the directory
    can go on with the log of ticks of its bucket. `received_bytes` came from the bucket in
    `requests` requests.
    """

    url: str
    number: int
    time_ns: int
    may_continue: bool
    received_bytes: int = 0
    requests: int = 0
    topics: list[RestoredTopic] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def damaged(self) -> int:
        return len(self.problems) + sum(bool(topic.problems) for topic in self.topics)


def restore(files: Files, plan: RestorePlan, data_dir: Path) -> RestoredBroker:
    """Restore the broker to a new data directory.

    The directory is complete when this returns. On failure it does not exist. Raises `ZsqError` or
    `OSError`.
    """
    with new_data_dir(files, data_dir) as partial:
        restored = _attempt(files, plan, partial, check=False)
        bad = [topic for topic in restored.topics if topic.problems]
        if bad:
            problems = [f"topic {topic.name}: {'; '.join(topic.problems)}" for topic in bad]
            more = (
                f"; and {len(problems) - PROBLEMS_SHOWN} more" if problems[PROBLEMS_SHOWN:] else ""
            )
            raise ZsqError(
                E_CHECKSUM,
                f"{plan.url} is damaged: {'; '.join(problems[:PROBLEMS_SHOWN])}{more}. To restore "
                "the rest, leave these topics out with --without TOPIC",
            )
    return restored


def check(files: Files, plan: RestorePlan) -> RestoredBroker:
    """Restore the broker to a temporary directory, check everything, and remove it.

    Raises `ZsqError` or `OSError` if nothing can be restored.
    """
    with tempfile.TemporaryDirectory(prefix="zsq-check-") as folder:
        partial = f"{folder}/data"
        files.make_folder(partial)
        return _attempt(files, plan, partial, check=True)


def _attempt(files: Files, plan: RestorePlan, partial: str, *, check: bool) -> RestoredBroker:
    """Restore. Begin again if the broker removes old ticks meanwhile."""
    with _refusing():
        bucket = CountedBucket(files, open_bucket(parse_bucket_url(plan.url)))
        for attempt in range(ATTEMPTS_MAX):
            try:
                restored = _Restore(files, bucket, plan, partial, check).run()
                counts = bucket.counts
                restored.received_bytes = counts.received_bytes
                restored.requests = counts.read_requests
                return restored
            except LogMoved:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise
            for name in files.list(partial):
                if files.is_folder(f"{partial}/{name}"):
                    files.remove_tree(f"{partial}/{name}")
                else:
                    files.remove(f"{partial}/{name}")
    raise AssertionError


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Convert errors of the storage layer."""
    try:
        yield
    except WrongTime as error:
        raise UsageError(E_BAD_ARGUMENT, str(error)) from error
    except DiskFull as error:
        raise Refused(E_DISK_FULL, str(error)) from error
    except BucketError as error:
        raise Refused(E_BUCKET, str(error)) from error
    except NewerVersion as error:
        raise ZsqError(E_UNSUPPORTED, str(error)) from error
    except StorageError as error:
        raise ZsqError(E_CHECKSUM, str(error)) from error


class _Restore:
    """One attempt to restore a broker into the folder `partial`."""

    def __init__(
        self, files: Files, bucket: Bucket, plan: RestorePlan, partial: str, check: bool
    ) -> None:
        self._files = files
        self._bucket = bucket
        self._plan = plan
        self._partial = partial
        self._check = check

    def run(self) -> RestoredBroker:
        reader = TickReader(self._bucket, self._plan.advance)
        try:
            reader.read(self._plan.at_ns)
            return self._restore(reader)
        finally:
            reader.close()

    def _restore(self, reader: TickReader) -> RestoredBroker:
        index = reader.last.index
        restored = RestoredBroker(str(self._bucket.url), index.number, index.time_ns, reader.is_end)
        self._check_claim(index.archive, restored)
        name = f"{self._bucket.url}/{log_object(index.registry_number)}"
        content = decode(reader.registry(), name)
        self._choose(content, reader, restored)
        content.bucket = index.archive
        if not restored.may_continue:
            content.uuid = uuid.uuid4().hex  # it reads the archive, and writes nothing there
        self._files.make_folder(f"{self._partial}/topics")
        targets = {
            row.uuid: Target(
                TopicIdentity(name, row.uuid, row.base_offset),
                f"{self._partial}/topics/{row.number:06d}",
            )
            for name, row in sorted(content.topics.items())
        }
        restored.topics = restore_topics(
            self._files, self._bucket, reader, targets, eager=self._plan.eager, check=self._check,
            advance=self._plan.advance,
        )  # fmt: skip
        copy = Copy(index.archive, uuid.uuid4().hex, reader.chain.number, reader.last.digest)
        self._files.write_file(f"{self._partial}/{COPY_NAME}", encode_copy(copy))
        self._files.write_file(f"{self._partial}/{REGISTRY_NAME}", encode(content))
        self._files.sync_folder(f"{self._partial}/topics")
        self._files.sync_folder(self._partial)
        return restored

    def _check_claim(self, archive: str, restored: RestoredBroker) -> None:
        """Note it if the prefix does not say to whom it belongs. The restore needs only the log."""
        name = f"{self._bucket.url}/{BROKER_NAME}"
        claim: Claim | None = None
        with contextlib.suppress(ObjectMissing):
            claim = self._read_claim(name)
        if claim is None:
            restored.problems.append(f"{name} is missing: a broker cannot archive to this prefix")
        elif claim.archive != archive:
            restored.problems.append(
                f"{name} names archive {claim.archive}, but the log belongs to {archive}"
            )

    def _read_claim(self, name: str) -> Claim:
        try:
            return decode_claim(self._bucket.read(BROKER_NAME))
        except NewerVersion as error:
            raise error.at(name) from error

    def _choose(self, content: Content, reader: TickReader, restored: RestoredBroker) -> None:
        """Keep the topics that can be restored."""
        for name in self._plan.without:
            if name not in content.topics:
                raise NotFound(
                    E_BAD_ARGUMENT,
                    f"topic {name!r} is not in {self._plan.url}, so it cannot be left out; check "
                    "--without",
                )
        kept: dict[str, TopicRow] = {}
        for name, row in content.topics.items():
            shipped = reader.topics.get(row.uuid)
            if name in self._plan.without:
                restored.left_out[name] = "left out by --without"
            elif row.retention.get("archive") == "off":
                restored.left_out[name] = "it is kept only on the disk (--archive off)"
            elif row.state == "deleting":
                restored.left_out[name] = "it was being deleted"
            elif shipped is None or shipped.begins < 0:
                restored.left_out[name] = NOT_SHIPPED
            else:
                row.state = GIVEN if row.state == GIVEN else "live"
                kept[name] = row
        content.topics = kept
