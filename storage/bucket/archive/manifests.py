"""Manifests: lists of the chunks of a topic in the bucket, and the removal of expired chunks.

Each change is a new object with the next number, created only if its name is free. The newest
number counts. An older manifest exists only while the expired objects that it names may still
exist. So removal is: create the new manifest, remove the objects of those chunks of the old one
that are below the topic's start, remove the old manifest. A process that is killed between two of
these steps leaves an old manifest, and the next one repeats the steps. A process that begins with a
topic also removes objects below the start that no manifest names.

A broker that is restored from the bucket may know only an earlier start, and then needs the objects
behind that. So the caller says what is `removable`, and the rest is removed after a later write.

Chunks at or above the start are never removed, whatever the new manifest says. If the state store
was rebuilt from an older snapshot, it may not know a chunk that the bucket has.

| state | found | next |
|---|---|---|
| unknown | the names in the folder | known, with the newest number |
| known | the next number is free | it is created; then older ones are cleared |
| known, nothing written yet | the next number is taken, by an earlier process | unknown |
| known, written | the next number is taken, by this run (a reply was lost) | known, with it |
| known, written | the next number is taken, in an earlier epoch | known, with it |
| known, written | the next number is taken, by another run | lost: another broker writes here |
| unknown | the newest manifest conflicts with the data directory | lost: it is an older copy |
| unknown | the newest manifest is of a later epoch | lost: a standby has taken over |

A former primary may write a manifest before it knows that it has lost. So the epoch decides who
goes on. Without a log of ticks there is no epoch, and no standby.

A process that lost writes no more and removes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ...errors import Damaged, NewerVersion
from ...log.chunk import ArchivedChunk
from ..bucket import Bucket, BucketError, BucketRefuses, ObjectExists, ObjectMissing
from .archive_format import (
    CHUNKS,
    Manifest,
    chunk_offset,
    conflict,
    decode_manifest,
    encode_manifest,
    manifest_folder,
    manifest_number,
    manifest_object,
    objects_of,
)

ATTEMPTS_MAX: Final = 5


def newest_manifest(bucket: Bucket, uuid: str) -> Manifest | None:
    """Return the newest manifest of a topic, or None if there is none.

    Raises `BucketRefuses` if it is damaged, or `BucketError`.
    """
    for _ in range(ATTEMPTS_MAX):
        numbers = _numbers(bucket, uuid)
        if not numbers:
            return None
        with contextlib.suppress(ObjectMissing):  # a newer one has replaced it meanwhile
            return _read(bucket, uuid, numbers[-1])
    raise BucketError(
        f"{bucket.url}: the newest manifest of {uuid} was replaced {ATTEMPTS_MAX} times"
    )


def _numbers(bucket: Bucket, uuid: str) -> list[int]:
    return sorted(
        number
        for name in bucket.names(manifest_folder(uuid))
        if (number := manifest_number(name)) >= 0
    )


def _read(bucket: Bucket, uuid: str, number: int) -> Manifest:
    """Return a manifest. Raises `BucketRefuses` if it is damaged."""
    name = manifest_object(uuid, number)
    try:
        return decode_manifest(bucket.read(name))
    except NewerVersion as error:
        raise BucketRefuses(str(error.at(f"{bucket.url}/{name}"))) from error
    except Damaged as error:
        raise BucketRefuses(
            f"{bucket.url}/{name}: {error}; check the bucket with zsq fsck, and remove "
            "this object to continue without it"
        ) from error


class Superseded(BucketError):
    """The bucket has the archive of another copy of this topic. This one must not write there."""


@dataclass(slots=True)
class _Known:
    """The known manifests of one topic.

    `number` is the newest one. `older` exist still, and are cleared after the next write.
    """

    number: int
    older: list[int] = field(default_factory=list)
    written: bool = False
    swept: bool = False
    lost: str = ""


class Manifests:
    """Writes the manifests of one broker's topics. One thread at a time uses it."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._topics: dict[str, _Known] = {}

    def newest(self, uuid: str) -> Manifest | None:
        """Return the newest manifest of a topic, or None if there is none."""
        return newest_manifest(self._bucket, uuid)

    def _read(self, uuid: str, number: int) -> Manifest:
        return _read(self._bucket, uuid, number)

    def _look(self, uuid: str) -> _Known:
        numbers = _numbers(self._bucket, uuid)
        return _Known(numbers[-1] if numbers else 0, numbers)

    def write(
        self, manifest: Manifest, gone: Sequence[ArchivedChunk] = (), removable: int | None = None
    ) -> int:
        """Write the next manifest, then remove what expired. Return its number.

        `gone` are chunks that expired before a manifest named them. Only chunks below `removable`
        are removed, by default all that are below the start.

        Raises `Superseded` if another broker writes here, or `BucketError`. If it fails after the
        new manifest was created, the next call goes on.
        """
        number = self._create(manifest)
        if gone:
            self._bucket.remove(sorted(objects_of(manifest.uuid, gone)))
        below = manifest.start if removable is None else min(removable, manifest.start)
        if below == manifest.start:
            self._sweep(manifest)
        self._clear(manifest, below)
        return number

    def _create(self, manifest: Manifest) -> int:
        data = encode_manifest(manifest)
        for _ in range(ATTEMPTS_MAX):
            known = self._topics.get(manifest.uuid)
            if known is None:
                known = self._known(manifest)
            if known.lost:
                raise Superseded(known.lost)
            try:
                self._bucket.create(manifest_object(manifest.uuid, known.number + 1), data)
            except ObjectExists:
                self._taken(known, manifest)
                continue
            known.number += 1
            known.older.append(known.number)
            known.written = True
            return known.number
        raise BucketError(
            f"{self._bucket.url}: the next manifest of topic {manifest.topic} was taken "
            f"{ATTEMPTS_MAX} times"
        )

    def _known(self, manifest: Manifest) -> _Known:
        known = self._look(manifest.uuid)
        if known.number:
            newest = self._read(manifest.uuid, known.number)
            if newest.epoch > manifest.epoch > 0:
                known.lost = (
                    f"{self._bucket.url}: another copy of broker {newest.broker} has taken over, "
                    f"and writes the manifests of topic {manifest.topic}"
                )
            elif why := conflict(newest, manifest):
                known.lost = (
                    f"{why}: the data directory is an older copy, or another broker with a copy "
                    "uses this prefix (see docs/bucket.md, Copies of a data directory)"
                )
        self._topics[manifest.uuid] = known
        return known

    def _sweep(self, manifest: Manifest) -> None:
        """Remove objects below the start that no manifest named before their process was killed.

        This is done once. All chunks below the start are removable.
        """
        known = self._topics[manifest.uuid]
        if known.swept:
            return
        kept = objects_of(manifest.uuid, manifest.chunks)
        left = [
            name
            for name in self._bucket.names(f"{CHUNKS}/{manifest.uuid}/")
            if name not in kept and 0 <= chunk_offset(name) < manifest.start
        ]
        if left:
            self._bucket.remove(sorted(left))
        known.swept = True

    def _taken(self, known: _Known, manifest: Manifest) -> None:
        name = manifest_object(manifest.uuid, known.number + 1)
        if not known.written:
            del self._topics[manifest.uuid]  # look again
            return
        other = self._read(manifest.uuid, known.number + 1)
        if other.writer != manifest.writer and not 0 < other.epoch < manifest.epoch:
            known.lost = (
                f"{self._bucket.url}/{name} was written by another run of broker {other.broker}; "
                "two brokers with the same data use this prefix: stop one of them (see "
                "docs/bucket.md, Copies of a data directory)"
            )
            raise Superseded(known.lost)
        known.number += 1
        known.older.append(known.number)

    def _clear(self, manifest: Manifest, below: int) -> None:
        """Remove the expired objects that older manifests name, then these manifests.

        A manifest stays while it names an object that expired and is not removable yet.
        """
        known = self._topics[manifest.uuid]
        for number in [one for one in known.older if one != known.number]:
            name = manifest_object(manifest.uuid, number)
            try:
                old = decode_manifest(self._bucket.read(name))
            except (ObjectMissing, Damaged, NewerVersion):
                old = None  # the next process removes what it named (`_sweep`)
            expired = (
                [one for one in old.chunks if one.next_offset <= manifest.start] if old else []
            )
            removable = [one for one in expired if one.next_offset <= below]
            if removable:
                self._bucket.remove(sorted(objects_of(manifest.uuid, removable)))
            if len(removable) == len(expired):
                self._bucket.remove([name])
                known.older.remove(number)

    def forget(self, uuid: str) -> None:
        """Remove all objects of a topic that was deleted. It may be repeated."""
        self._topics.pop(uuid, None)
        # The manifests go last: a later process finds by them what is left.
        for below in (f"{CHUNKS}/{uuid}/", manifest_folder(uuid)):
            self._bucket.remove(sorted(self._bucket.names(below)))
            self._bucket.remove_folder(below)
