"""Ship log: the ticks of one broker in the bucket. Finds their end, takes over, and removes.

| found | result |
|---|---|
| the next number is free | it is created, and this process goes on |
| it has the same bytes | an earlier request of this process took effect, and its answer was lost |
| it has another tick | this process has lost: `Fenced` |

The chain is found by walking the numbers that exist, from the boundary on. At the first number that
is missing, the last `WINDOW` + 1 objects are read. If one of them is a takeover that is part of the
chain, the chain goes on behind its gap. The other objects there are late requests of the epoch
before, and do not count.

A takeover counts only if no boundary above it exists after its creation. Its request may have been
so late that another process has taken over at this number, and the object was removed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ...errors import Damaged, ForeignDirectory, NewerVersion
from ..bucket import Bucket, BucketError, BucketRefuses, ObjectExists, ObjectMissing
from .tick_format import (
    BOUNDARIES,
    HEAD_BYTES,
    INDEX_READ_BYTES,
    LOG,
    TAKEOVER,
    WINDOW,
    Boundary,
    Copy,
    DecodedIndex,
    EncodedTick,
    Index,
    Tail,
    advanced,
    after,
    boundary_object,
    decode_boundary,
    decode_head,
    decode_index,
    encode_boundary,
    encode_tick,
    log_object,
    number_of,
)

CREATES_MAX: Final = 3  # tries of a create that the store refuses although nothing is there
ATTEMPTS_MAX: Final = 8
# A successor that reads the end of the log reads at most this many indexes.
TAILS_READ_MAX: Final = 1_000
NEW_LOG: Final = Boundary(0, "", 0, 0, 0)
NOTHING: Final[Mapping[int, DecodedIndex]] = {}


class Fenced(BucketError):
    """Another copy of this broker has taken over. This one must acknowledge nothing more."""


class Chain(NamedTuple):
    """The ticks that count, from the boundary on.

    `number` is the next one to create. `last` is the newest tick that counts, or None if there is
    none.
    """

    boundary: Boundary
    numbers: tuple[int, ...]
    number: int
    last: DecodedIndex | None


class Taken(NamedTuple):
    """The state with which a process goes on after its takeover.

    `chain` is the log before it, and `digest` that of the takeover. `tails` are those of all
    topics, and `registry_number` is the tick with the newest registry (-1: none).
    """

    chain: Chain
    takeover: Index
    digest: str
    tails: dict[str, Tail]
    registry_number: int


def read_index(bucket: Bucket, number: int) -> DecodedIndex:
    """Return the index of a tick.

    Raises `ObjectMissing`, or `BucketRefuses` if it is damaged.
    """
    name = log_object(number)
    data = bucket.read(name, 0, INDEX_READ_BYTES)
    try:
        if len(data) >= HEAD_BYTES and (size := decode_head(data).body) > len(data):
            data = bucket.read(name, 0, size)
        return decode_index(data)
    except NewerVersion as error:
        raise BucketRefuses(str(error.at(f"{bucket.url}/{name}"))) from error
    except Damaged as error:
        raise BucketRefuses(f"{bucket.url}/{name}: {error}; check it with zsq fsck") from error


def newest_boundary(bucket: Bucket) -> Boundary:
    """Return the newest boundary. A log without one begins at number 0."""
    for _ in range(ATTEMPTS_MAX):
        numbers = sorted(map(number_of, bucket.names(f"{BOUNDARIES}/")))
        if not numbers or numbers[-1] < 0:
            return NEW_LOG
        name = boundary_object(numbers[-1])
        try:
            return decode_boundary(bucket.read(name))
        except ObjectMissing:
            continue  # a newer one has replaced it meanwhile
        except (Damaged, ForeignDirectory) as error:
            raise BucketRefuses(f"{bucket.url}/{name}: {error}") from error
    raise BucketError(f"{bucket.url}: the boundary was replaced {ATTEMPTS_MAX} times")


def find_chain(bucket: Bucket) -> Chain:
    """Return the ticks that count. Raises `BucketError`.

    Objects below a newer boundary may vanish while this reads, and a late takeover may land on one
    of the names that are free then. So the boundary is read again, and if it moved, all is.
    """
    boundary = newest_boundary(bucket)
    for _ in range(ATTEMPTS_MAX):
        chain: Chain | None = None
        failure: BucketError | None = None
        try:
            chain = _chain_from(bucket, boundary)
        except BucketError as error:
            failure = error
        before, boundary = boundary, newest_boundary(bucket)
        if boundary.number != before.number:
            continue
        if failure is not None:
            raise failure
        assert chain is not None
        return chain
    raise BucketError(f"{bucket.url}: the boundary moved {ATTEMPTS_MAX} times")


def _chain_from(bucket: Bucket, boundary: Boundary) -> Chain:
    listed = {
        number for name in bucket.names(f"{LOG}/") if (number := number_of(name)) >= boundary.number
    }
    numbers: list[int] = []
    number = boundary.number
    last: DecodedIndex | None = None
    while True:
        run: list[int] = []
        while number in listed:
            run.append(number)
            number += 1
        takeover = None
        for one in run[-(WINDOW + 1) :]:
            last = read_index(bucket, one)
            if last.index.kind == TAKEOVER:
                takeover = last
                break  # what follows directly does not count
        if takeover is None:
            numbers += run
            if any(one >= number + WINDOW for one in listed):
                raise BucketError(
                    f"{bucket.url}/{log_object(number)} is missing, although later ticks exist: "
                    "the log is damaged, or the list of its objects was incomplete"
                )
            if not numbers and boundary.number:
                raise BucketRefuses(
                    f"{bucket.url}/{log_object(boundary.number)} is missing, although the log "
                    "begins with it: the log is damaged"
                )
            return Chain(boundary, tuple(numbers), number, last)
        numbers += [one for one in run if one <= takeover.index.number]
        number = after(takeover.index)


def check_follows(bucket: Bucket, decoded: DecodedIndex, previous: str) -> None:
    """Raise `BucketRefuses` if this tick does not follow the one with the digest `previous`."""
    if decoded.index.previous != previous:
        raise BucketRefuses(
            f"{bucket.url}/{log_object(decoded.index.number)} does not follow the tick before it: "
            "the log is damaged; check it with zsq fsck"
        )


def replay_tails(
    bucket: Bucket, chain: Chain, recent: Mapping[int, DecodedIndex] = NOTHING
) -> tuple[dict[str, Tail], int]:
    """Return the tails of all topics at the end of the chain, and the newest registry's tick.

    `recent` are indexes that are known, by their numbers.
    """
    behind: list[DecodedIndex] = []
    for number in chain.numbers[::-1][:TAILS_READ_MAX]:
        decoded = recent.get(number) or read_index(bucket, number)
        if behind:
            check_follows(bucket, behind[-1], decoded.digest)
        behind.append(decoded)
        if decoded.index.tails is not None:
            break
    else:
        if len(behind) == TAILS_READ_MAX:
            raise BucketRefuses(
                f"{bucket.url}: none of the last {len(behind)} ticks has the tails of all topics: "
                "the log is damaged"
            )
    tails: dict[str, Tail] = {}
    registry = -1
    for decoded in behind[::-1]:
        index = decoded.index
        if index.tails is not None:
            tails = dict(index.tails)
        else:
            for piece in index.pieces:
                tails[piece.uuid] = advanced(tails.get(piece.uuid), piece, index.number)
        registry = index.registry_number
    return tails, registry


def may_continue(chain: Chain, copy: Copy | None, archive: str) -> str:
    """Return why this data directory may not continue the log, or ""."""
    if chain.last is None:
        return ""
    index = chain.last.index
    if index.is_ended:
        return (
            f"its log was ended by host {index.host}, because the cluster has forgotten this "
            "broker: its parts are at other brokers. zsq rescue shows what was not shipped. To "
            "begin again, use an empty data directory and another prefix"
        )
    who = f"copy {index.copy[:8]} on host {index.host}"
    if copy is not None and copy.archive == archive:
        if copy.copy == index.copy:
            return ""
        if copy.after == chain.number and copy.digest == chain.last.digest:
            return ""
        if copy.after >= 0:
            return (
                f"this data directory was restored when the log ended at number {copy.after}, and "
                f"{who} has continued it up to number {chain.number} since then: restore again"
            )
    return (
        f"its log was written by {who}, and not by this data directory: restore the broker with "
        "zsq restore, or use another prefix"
    )


def taken_over_by(index: Index) -> str:
    """Return who has continued a log, or ended it, as a sentence without its end."""
    if index.is_ended:
        who = "the cluster has forgotten this broker: its parts are at other brokers, and host"
        return f"{who} {index.host} has ended its shipping"
    return f"copy {index.copy[:8]} of this broker on host {index.host} has taken over"


class ShipLog:
    """Creates ticks in the bucket. Any number of threads may call `create`."""

    def __init__(
        self, bucket: Bucket, archive: str, copy: str, host: str, addresses: Sequence[str] = ()
    ) -> None:
        self._bucket = bucket
        self.archive = archive
        self.copy = copy
        self.host = host
        self.addresses = tuple(addresses)
        # Takeovers, which are never removed. All of them from `_known_from` on are here.
        self._kept: set[int] = set()
        self._known_from = 0

    def take_over(
        self,
        copy: Copy | None,
        time_ns: int,
        reserve: int,
        lease_ms: int = 0,
        recent: Mapping[int, DecodedIndex] = NOTHING,
        *,
        is_end: bool = False,
    ) -> Taken:
        """Begin an epoch. The tails reserve `reserve` offsets beyond the ends of the topics.

        `recent` are indexes of the last ticks that are known, by their numbers. With `is_end`, the
        log ends with this epoch, whoever has written it. Raises `Fenced` if the data directory may
        not continue the log, or `BucketError`.
        """
        for _ in range(ATTEMPTS_MAX):
            chain = find_chain(self._bucket)
            if not is_end and (why := may_continue(chain, copy, self.archive)):
                raise Fenced(f"{self._bucket.url}: {why}")
            tails, registry = replay_tails(self._bucket, chain, recent)
            tails = {
                uuid: tail._replace(reserved=max(tail.reserved, tail.end + reserve))
                for uuid, tail in tails.items()
            }
            last = chain.last.index if chain.last is not None else None
            index = Index(
                kind=TAKEOVER,
                number=chain.number,
                epoch=(last.epoch if last is not None else chain.boundary.epoch) + 1,
                archive=self.archive,
                copy=self.copy,
                host=self.host,
                time_ns=time_ns,
                previous=chain.last.digest if chain.last is not None else chain.boundary.digest,
                takeover=_last_takeover(last),
                registry=(),
                registry_number=registry,
                pieces=(),
                tails=tails,
                addresses=self.addresses,
                lease_ms=lease_ms,
                is_ended=is_end,
            )
            encoded = encode_tick(index, ())
            try:
                self._bucket.create(log_object(chain.number), encoded.data)
            except ObjectExists:
                decoded = read_index(self._bucket, chain.number)
                if decoded.digest != encoded.digest:
                    continue
            # This name may have been free only because its object was removed.
            if newest_boundary(self._bucket).number > chain.number:
                continue
            self._know_takeovers(index, chain.boundary.number)
            return Taken(chain, encoded.index, encoded.digest, tails, registry)
        raise BucketError(
            f"{self._bucket.url}: the next number of the log was taken {ATTEMPTS_MAX} times; does "
            "another copy of this broker run?"
        )

    def _know_takeovers(self, takeover: Index, start: int) -> None:
        """Read from each takeover the number of the one before it, down to `start`."""
        self._known_from = start
        self._kept.add(takeover.number)
        number = takeover.takeover
        while number >= start and number not in self._kept:
            self._kept.add(number)
            number = read_index(self._bucket, number).index.takeover

    def create(self, tick: EncodedTick) -> None:
        """Create a tick. It may be repeated after a failure.

        Raises `Fenced` if its number has another tick, or `BucketError`.
        """
        number = tick.index.number
        for left in reversed(range(CREATES_MAX)):
            try:
                self._bucket.create(log_object(number), tick.data)
            except ObjectExists:
                try:
                    decoded = read_index(self._bucket, number)
                except ObjectMissing:
                    # S3 says so while an earlier request for this name is under way, also if that
                    # one fails then.
                    if left:
                        continue
                    raise
            else:
                return
            if decoded.digest != tick.digest:
                text = f"{taken_over_by(decoded.index)} at number {number} of the log"
                raise Fenced(f"{self._bucket.url}: {text}")
            return

    def with_digest(self, boundary: Boundary) -> Boundary:
        """Return the boundary with the epoch of its tick, and the digest that this tick follows."""
        index = read_index(self._bucket, boundary.number).index
        return boundary._replace(digest=index.previous, epoch=index.epoch)

    def bound(self, boundary: Boundary) -> None:
        """Create a boundary, and remove older ones. It may be repeated."""
        name = boundary_object(boundary.number)
        for left in reversed(range(CREATES_MAX)):
            try:
                self._bucket.create(name, encode_boundary(boundary))
            except ObjectExists:
                # This process has created it, or an earlier one with the same digest. But a store
                # may say so although it is not there (see `create`). Without it, the log would be
                # damaged as soon as a tick is removed.
                try:
                    self._bucket.size(name)
                except ObjectMissing:
                    if not left:
                        raise
                    continue
            break
        names = [
            name
            for name in self._bucket.names(f"{BOUNDARIES}/")
            if 0 <= number_of(name) < boundary.number
        ]
        self._bucket.remove(sorted(names))

    def remove_below(self, number: int, numbers_max: int) -> int:
        """Remove at most `numbers_max` ticks below this number. Return how many were removed.

        Takeovers stay. A boundary at or above `number` must exist.
        """
        below = sorted(
            old_number
            for name in self._bucket.names(f"{LOG}/")
            if 0 <= (old_number := number_of(name)) < number and old_number not in self._kept
        )[:numbers_max]
        gone = [log_object(one) for one in below if self._is_ordinary(one)]
        self._bucket.remove(gone)
        return len(gone)

    def _is_ordinary(self, number: int) -> bool:
        if number >= self._known_from:
            return True
        # An old takeover, or the late request of a dead process for a number that was removed.
        try:
            head = decode_head(self._bucket.read(log_object(number), 0, HEAD_BYTES))
        except (ObjectMissing, Damaged, ForeignDirectory):
            return False
        if head.kind == TAKEOVER:
            self._kept.add(number)
        return head.kind != TAKEOVER

    def remove(self, names: Iterable[str]) -> None:
        self._bucket.remove(sorted(names))

    def upload(self, name: str, path: str) -> None:
        self._bucket.upload(name, path)

    def names(self, below: str) -> Sequence[str]:
        return sorted(self._bucket.names(below))


def _last_takeover(last: Index | None) -> int:
    if last is None:
        return -1
    return last.number if last.kind == TAKEOVER else last.takeover
