"""Claim: a prefix of a bucket is the archive of one broker, the first one that used it.

| broker.json | this broker | result |
|---|---|---|
| missing | never had an archive | it is created, with a new identity |
| missing | has an archive | refused: the store may not be mounted, or the URL is wrong |
| names this broker | | it reads and writes |
| names another one | its data is a copy of that broker's | it reads only |
| names another one | otherwise | refused |
"""

from __future__ import annotations

from typing import NamedTuple

from ...errors import Damaged, NewerVersion
from ..bucket import Bucket, BucketRefuses, ObjectExists, ObjectMissing
from .archive_format import BROKER_NAME, Claim, decode_claim, encode_claim


class Claimed(NamedTuple):
    """The claim of the prefix. `writes` is False if this broker may only read."""

    claim: Claim
    writes: bool


def claim(bucket: Bucket, broker: str, known: str, fresh: str) -> Claimed:
    """Make this prefix the archive of the broker with this uuid, or find out that it is.

    `known` is the identity of the archive that the broker used last, or "". `fresh` is the identity
    of a new one. Raises `BucketRefuses`, or another `BucketError`.
    """
    try:
        stored = decode_claim(bucket.read(BROKER_NAME))
    except ObjectMissing:
        if known:
            raise BucketRefuses(
                f"{bucket.url} has no {BROKER_NAME}, but this broker has archived messages in "
                "another place: if the store is not mounted, mount it; if the URL is wrong, "
                "correct it; to begin a new archive, see docs/bucket.md (Another bucket)"
            ) from None
        try:
            bucket.create(BROKER_NAME, encode_claim(Claim(broker, fresh)))
        except ObjectExists:
            stored = decode_claim(bucket.read(BROKER_NAME))
        else:
            return Claimed(Claim(broker, fresh), True)
    except (Damaged, NewerVersion) as error:
        raise BucketRefuses(f"{bucket.url}/{BROKER_NAME}: {error}") from error
    if stored.broker == broker:
        return Claimed(stored, True)
    if stored.archive == known:
        return Claimed(stored, False)
    raise BucketRefuses(
        f"{bucket.url} belongs to another broker, with uuid {stored.broker}; this broker has uuid "
        f"{broker}: give each broker a prefix of its own, such as {bucket.url}/{broker[:8]}"
    )
