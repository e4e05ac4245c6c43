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
from dataclasses import dataclass, field
from typing import Final

from ..files import Files
from .bucket import Bucket, BucketAway, BucketError, ObjectExists, ObjectMissing

WRITERS: Final = 8
RACES: Final = 3
# Two parts of an upload through obstore, so that uploads in parts are tried too.
LARGE_BYTES: Final = 9 * 1024 * 1024
FOLDER: Final = "probe"


class BucketUnfit(BucketError):
    """The store does not keep a promise that ZSQ needs."""


@dataclass(slots=True)
class ProbeReport:
    """Measurements of a probe. Times are in milliseconds, as the median of its calls."""

    create_ms: float = 0.0
    read_ms: float = 0.0
    requests: int = 0
    _creates: list[float] = field(default_factory=list)
    _reads: list[float] = field(default_factory=list)


def probe(
    bucket: Bucket,
    files: Files,
    large_path: str = "",
    clock: Callable[[], float] = time.monotonic,
) -> ProbeReport:
    """Try each promise with small objects below `probe/`, and remove them.

    `large_path` is a file of at most LARGE_BYTES to upload in parts. Without it, that is not tried.
    Raises `BucketUnfit` if a promise is broken, or another `BucketError` if a call fails.
    """
    report = ProbeReport()
    token = uuid.uuid4().hex
    names = [f"{FOLDER}/{token}/{name}" for name in ("one", *map(str, range(RACES)), "large")]
    try:
        _create_once(bucket, names[0], report, clock)
        for name in names[1 : 1 + RACES]:
            _race(bucket, name)
            report.requests += WRITERS + 1
        _parts(bucket, names[0])
        _list(bucket, f"{FOLDER}/{token}/", sorted(names[: 1 + RACES]))
        report.requests += 3
        if large_path:
            _large(bucket, names[-1], files, large_path)
            report.requests += 4
    except BucketError:
        with contextlib.suppress(BucketError):  # the first failure counts
            bucket.remove(names)
        raise
    bucket.remove(names)
    _removed(bucket, names[0])
    report.requests += 2
    report.create_ms = _median(report._creates)
    report.read_ms = _median(report._reads)
    return report


def _median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2] * 1e3 if times else 0.0


def _create_once(
    bucket: Bucket, name: str, report: ProbeReport, clock: Callable[[], float]
) -> None:
    content = name.encode()
    begun = clock()
    bucket.create(name, content)
    report._creates.append(clock() - begun)
    begun = clock()
    found = bucket.read(name)
    report._reads.append(clock() - begun)
    report.requests += 2
    if found != content:
        raise BucketUnfit(
            f"{bucket.url} returned {len(found)} other bytes than the {len(content)} that were "
            "just written; ZSQ needs a store whose reads see every earlier write"
        )
    try:
        bucket.create(name, b"again")
    except ObjectExists:
        pass
    else:
        raise BucketUnfit(
            f"{bucket.url} created an object that existed already: it does not support "
            "conditional writes (If-None-Match); use another store or a newer version"
        )
    if bucket.read(name) != content:
        raise BucketUnfit(f"{bucket.url} refused a write, and changed the object all the same")
    report.requests += 2


def _parts(bucket: Bucket, name: str) -> None:
    content = name.encode()
    try:
        right = bucket.read(name, 2, 5) == content[2:7] and bucket.size(name) == len(content)
    except BucketAway as error:  # the library refuses an answer with other bytes than it asked for
        raise BucketUnfit(f"{bucket.url} returns wrong parts of an object: {error}") from None
    if not right:
        raise BucketUnfit(f"{bucket.url} returns wrong parts of an object")


def _race(bucket: Bucket, name: str) -> None:
    """Let WRITERS writers create one object at once."""

    def attempt(number: int) -> bool:
        try:
            bucket.create(name, b"%d" % number)
        except ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(WRITERS, "probe") as pool:
        winners = [number for number, won in enumerate(pool.map(attempt, range(WRITERS))) if won]
    found = bucket.read(name)
    if len(winners) > 1:
        raise BucketUnfit(
            f"{bucket.url} let {len(winners)} of {WRITERS} writers create the same object: it "
            "claims conditional writes and does not have them; use another store or a newer version"
        )
    # No winner is possible: a reply was lost, and the repeated request found the own object.
    if winners and found != b"%d" % winners[0]:
        raise BucketUnfit(f"{bucket.url} kept the object of a writer that was refused")


def _list(bucket: Bucket, below: str, wanted: list[str]) -> None:
    found = sorted(bucket.names(below))
    if found != wanted:
        raise BucketUnfit(
            f"{bucket.url} listed {len(found)} of {len(wanted)} objects that were just written; "
            "ZSQ needs a store whose lists see every earlier write"
        )


def _large(bucket: Bucket, name: str, files: Files, path: str) -> None:
    content = files.read_file(path, LARGE_BYTES)
    bucket.upload(name, path)
    end = len(content) - 64
    if bucket.size(name) != len(content) or bucket.read(name, end, 64) != content[end:]:
        raise BucketUnfit(f"{bucket.url} does not return what was uploaded in parts")


def _removed(bucket: Bucket, name: str) -> None:
    try:
        bucket.read(name)
    except ObjectMissing:
        return
    raise BucketUnfit(f"{bucket.url} returned an object that was just removed")
