"""Probe: find out whether a store keeps the promises on which ZSQ builds, before it is used.

Some servers accept the header of a conditional write and ignore it. With such a store, two brokers
could both believe that they won. Only a race shows this: several writers create the same object at
once, and exactly one of them may succeed. In a measurement, `rclone serve s3` let 8 of 8 win.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from ..files import Files
from .bucket import (
    Bucket,
    BucketAway,
    BucketError,
    BucketRefuses,
    BucketUnfit,
    ObjectExists,
    ObjectMissing,
)

# The writers of a race at the start of a broker. Some stores let the losers wait for each other:
# SeaweedFS 4.48 lets each one wait for a second more, and a call at a start may take 5 s.
WRITERS: Final = 4
WRITERS_OF_DOCTOR: Final = 8
RACES: Final = 3
SAMPLES: Final = 5
# Two parts of an upload through obstore, so that uploads in parts are tried too.
LARGE_BYTES: Final = 9 * 1024 * 1024
PROBE_S: Final = 60.0
FOLDER: Final = "probe"


@dataclass(slots=True)
class ProbeReport:
    """Measurements of a probe. Times are in milliseconds, as the median of SAMPLES calls."""

    create_ms: float = 0.0
    read_ms: float = 0.0


class _Probe:
    """One run of the probe. `names` are the objects that it may have written."""

    def __init__(
        self, bucket: Bucket, files: Files, clock: Callable[[], float], writers: int
    ) -> None:
        self._bucket = bucket
        self._files = files
        self._writers = writers
        self._clock = clock
        self._ends = clock() + PROBE_S
        self.below = f"{FOLDER}/{uuid.uuid4().hex}/"
        self.names: list[str] = []

    def _name(self, name: str) -> str:
        """Note an object before it is written, and check the time."""
        if self._clock() > self._ends:
            raise BucketAway(f"{self._bucket.url}: the check took more than {PROBE_S:.0f} s")
        self.names.append(f"{self.below}{name}")
        return self.names[-1]

    def run(self, large_path: str) -> ProbeReport:
        report = self._samples()
        self._create_again(self.names[0])
        for number in range(RACES):
            self._race(self._name(f"race-{number}"))
        self._parts(self.names[0])
        self._list(sorted(self.names))
        if large_path:
            self._large(self._name("large"), large_path)
        return report

    def _samples(self) -> ProbeReport:
        creates, reads = [], []
        for number in range(SAMPLES):
            name = self._name(f"sample-{number}")
            begun = self._clock()
            self._create(name)
            creates.append(self._clock() - begun)
            begun = self._clock()
            data = self._bucket.read(name)
            reads.append(self._clock() - begun)
            if data != name.encode():
                raise BucketUnfit(
                    f"{self._bucket.url} returned {len(data)} other bytes than the {len(name)} "
                    "that were just written; ZSQ needs a store whose reads see every earlier write"
                )
        return ProbeReport(sorted(creates)[SAMPLES // 2] * 1e3, sorted(reads)[SAMPLES // 2] * 1e3)

    def _create(self, name: str) -> None:
        try:
            self._bucket.create(name, name.encode())
        except ObjectExists:
            # After a lost reply, a repeated request finds the probe's own object.
            if self._bucket.read(name) != name.encode():
                raise

    def _create_again(self, name: str) -> None:
        try:
            self._bucket.create(name, b"again")
        except ObjectExists:
            pass
        else:
            raise BucketUnfit(
                f"{self._bucket.url} created an object that existed already: it does not support "
                "conditional writes (If-None-Match)"
            )
        if self._bucket.read(name) != name.encode():
            raise BucketUnfit(
                f"{self._bucket.url} refused a write, and changed the object all the same"
            )

    def _race(self, name: str) -> None:
        """Let all writers create one object at once."""

        def attempt(number: int) -> bool:
            try:
                self._bucket.create(name, b"%d" % number)
            except ObjectExists:
                return False
            return True

        with ThreadPoolExecutor(self._writers, "probe") as pool:
            won = list(pool.map(attempt, range(self._writers)))
        winners = [number for number in range(self._writers) if won[number]]
        try:
            data = self._bucket.read(name)
        except ObjectMissing:
            raise BucketUnfit(
                f"{self._bucket.url} let none of {self._writers} writers create an object whose "
                "name was free"
            ) from None
        if len(winners) > 1:
            raise BucketUnfit(
                f"{self._bucket.url} let {len(winners)} of {self._writers} writers create the same "
                "object: it claims conditional writes and does not have them"
            )
        # No winner is possible: a reply was lost, and the repeated request found the own object.
        if winners and data != b"%d" % winners[0]:
            raise BucketUnfit(f"{self._bucket.url} kept the object of a writer that was refused")

    def _parts(self, name: str) -> None:
        content = name.encode()
        if (
            self._bucket.read(name, 2, 5) != content[2:7]
            or self._bucket.read(name, 3) != content[3:]
            or self._bucket.size(name) != len(content)
        ):
            raise BucketUnfit(f"{self._bucket.url} returns wrong parts of an object")

    def _list(self, wanted: list[str]) -> None:
        names = sorted(self._bucket.names(self.below))
        if names != wanted:
            raise BucketUnfit(
                f"{self._bucket.url} listed {len(names)} of {len(wanted)} objects that were just "
                "written; ZSQ needs a store whose lists see every earlier write"
            )

    def _large(self, name: str, path: str) -> None:
        content = self._files.read_file(path, LARGE_BYTES)
        self._bucket.upload(name, path)
        if self._bucket.size(name) != len(content) or self._bucket.read(name) != content:
            raise BucketUnfit(f"{self._bucket.url} does not return what was uploaded in parts")

    def clean(self) -> None:
        self._bucket.remove(self.names)
        self._bucket.remove_folder(self.below)
        self._bucket.remove_folder(f"{FOLDER}/")

    def removed(self) -> None:
        if names := list(self._bucket.names(self.below)):
            raise BucketUnfit(
                f"{self._bucket.url} lists {len(names)} objects that were just removed"
            )
        try:
            self._bucket.read(self.names[0])
        except ObjectMissing:
            return
        raise BucketUnfit(f"{self._bucket.url} returned an object that was just removed")


def probe(
    bucket: Bucket,
    files: Files,
    large_path: str = "",
    clock: Callable[[], float] = time.monotonic,
    writers: int = WRITERS,
) -> ProbeReport:
    """Try each promise with small objects below `probe/`, and remove them, also after a failure.

    `large_path` is a file of at most LARGE_BYTES to upload in parts. Without it, that is not tried.
    `writers` is the number of writers of each race. Raises `BucketUnfit` if a promise is broken, or
    another `BucketError` if a call fails. A race that nobody won twice is evidence and no proof.
    """
    run = _Probe(bucket, files, clock, writers)
    try:
        report = run.run(large_path)
    except BaseException as error:
        # If the first object could not be written, there is nothing to remove.
        if len(run.names) > 1 or not isinstance(error, (BucketAway, BucketRefuses)):
            with contextlib.suppress(BucketError):  # the first failure counts
                run.clean()
        raise
    run.clean()
    run.removed()
    return report
