"""Cluster reader: reads the directory of the cluster for this broker, and adds entries to it.

It is a part of the archive actor, with a thread of its own, because a store that does not answer
must not delay the uploads. It asks for the next entry every 2 s, and when the supervisor orders it.
The supervisor receives each entry in order, before the reply to an order.

While a broker drains, or `auto` is on, it also exchanges notices with the other brokers
(`storage/cluster/notices.py`), and tells the supervisor which of them live.

It begins when this broker may write to its own bucket. So a copy of a broker that another one has
replaced does not announce its addresses.

The broker's own entry is right if its bucket is that of this process, and its addresses are those
of this process, and behind them the earlier ones. A client that knows only the entry before a
takeover then still finds the broker, and so does one that knows only the entry after it when the
old address is used again. Once its entry was right, this process adds another one only if the entry
lacks an address of this process. So two processes of the same broker do not add
entries for ever, one after the other.
"""

from __future__ import annotations

import logging
import time
import uuid as uuids
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from ....storage.bucket.bucket import Bucket, BucketError
from ....storage.bucket.bucket_url import BucketUrl
from ....storage.bucket.probe import probe
from ....storage.cluster.directory import FOLDER, BrokerEntry, Entry, Unusable, decode_entry
from ....storage.cluster.directory_log import DirectoryLog, NewEntries, VoidEntry
from ....storage.cluster.notices import NOTICE_S, BrokerNotice, BrokerSeen, BrokerWatch
from ....storage.errors import Damaged, ForeignDirectory
from ....storage.files import Files
from ....transport.errors import E_BAD_ARGUMENT, E_BUCKET, E_LIMIT, Refused, UsageError
from ....transport.units import NS_PER_S
from ....transport.wire import protocol as p
from ...runtime.worker_thread import Jobs

log = logging.getLogger("zsq")

LOOK_MS: Final = 2_000
PAUSE_S: Final = 10.0  # until the store is checked again
ORDERS_MAX: Final = 1_000
# A broker that has begun to announce itself exchanges its first notices sooner.
SOON_EXCHANGES: Final = 4
SOON_S: Final = 1.5
EARLIER_MAX: Final = 4  # addresses of earlier processes in the broker's own entry
# The size of one message with entries.
MESSAGE_ENTRIES: Final = 1_000
MESSAGE_BYTES: Final = 1024 * 1024
_LOOPBACK: Final = ("tcp://127.", "tcp://localhost:", "tcp://[::1]:")


class ReadOutcome(NamedTuple):
    """The outcome of a job: the entries that it read, and its result or its error."""

    new: NewEntries
    number: int = -1
    error: BucketError | None = None
    seen: Mapping[str, BrokerSeen] | None = None

    @property
    def is_all(self) -> bool:
        """True if all entries that exist were read."""
        return self.error is None or isinstance(self.error, VoidEntry)


def check_store(bucket: Bucket, bucket_url: BucketUrl) -> None:
    """Find out whether the cluster's store is fit. Raises a `BucketError` if it is not.

    The store of the broker's `own` bucket was probed. So if it is the same, this only reads.
    """
    url = bucket.url
    if url.scheme != "file" and (url.scheme, url.bucket) == (bucket_url.scheme, bucket_url.bucket):
        next(iter(bucket.names(f"{FOLDER}/")), "")
    else:
        probe(bucket, Files())


def merged(addresses: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the addresses of the broker's entry: its own, and the first ones of those before."""
    earlier = [address for address in known if address not in addresses]
    return (*addresses, *earlier[:EARLIER_MAX])


class ClusterReader:
    """The reader of one broker. `own` is the URL of its own bucket. `send` sends a message to the
    supervisor. `disk` returns the free and all bytes of the disk of this broker.

    `check` raises a `BucketError` if the store is not fit. It runs in the thread, before the first
    read.
    """

    def __init__(
        self,
        bucket: Bucket,
        broker: str,
        addresses: tuple[str, ...],
        own: str,
        thread: Jobs,
        send: Callable[[p.Wire], object],
        check: Callable[[], object],
        disk: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.trouble = ""
        self._bucket = bucket
        self._broker = broker
        self._addresses = addresses
        self._own = own
        self._thread = thread
        self._send = send
        self._check = check
        self._disk = disk
        self._is_allowed = False
        self._retry_ns = 0
        self._is_told = False  # the supervisor knows that it has all entries
        # The thread uses these.
        self._log = DirectoryLog(bucket)
        self._is_checked = False
        self._is_announced = False
        self._entry: BrokerEntry | None = None  # one that may be in the bucket by now
        self._watch = BrokerWatch(bucket)
        self._is_watching = False
        self._watch_ns = self._exchanges = 0
        self._seen: Mapping[str, BrokerSeen] | None = None

    def allow(self, is_allowed: bool) -> None:
        """Begin when this broker may write to its bucket. Stop when it may not any more."""
        begins = is_allowed and not self._is_allowed
        self._is_allowed = is_allowed
        if begins:
            self.look()

    def look(self) -> None:
        """Ask for new entries, unless an answer is awaited."""
        if self._is_allowed and not self._thread.pending and time.monotonic_ns() >= self._retry_ns:
            self._submit(self._read, self._heard)

    # Orders

    def read(self, order: p.ReadDirectory) -> None:
        self._accept()
        self._submit(self._read, partial(self._answer, order.request))

    def append(self, order: p.AppendEntry) -> None:
        self._accept()
        try:
            entry = decode_entry(order.entry)
        except (Damaged, ForeignDirectory) as error:
            raise UsageError(E_BAD_ARGUMENT, str(error)) from error
        if isinstance(entry, Unusable):
            raise UsageError(E_BAD_ARGUMENT, f"the entry is void: {entry.why}")
        self._submit(partial(self._append, entry), partial(self._answer, order.request))

    def _accept(self) -> None:
        if not self._is_allowed:
            raise Refused(E_BUCKET, "the bucket of this broker cannot be used at the moment")
        if self._thread.pending >= ORDERS_MAX:
            raise Refused(E_LIMIT, f"{ORDERS_MAX} orders wait for the cluster's store, the limit")

    def _submit(self, job: Callable[[], int], then: Callable[[ReadOutcome], None]) -> None:
        def take(value: object) -> None:
            if isinstance(value, Exception):
                raise value
            assert isinstance(value, ReadOutcome)
            then(value)

        self._thread.submit(take, partial(self._carry_out, job))

    def _answer(self, request: int, outcome: ReadOutcome) -> None:
        self._heard(outcome)
        error = outcome.error
        if isinstance(error, VoidEntry):
            self._send(p.Failed(request, error.code, str(error)))
        elif error is not None:
            self._send(p.Failed(request, E_BUCKET, str(error)))
        else:
            data = {"number": outcome.number} if outcome.number >= 0 else {}
            self._send(p.Done(request, data))

    def _heard(self, outcome: ReadOutcome) -> None:
        if outcome.is_all:
            self._tell_trouble("")
        else:
            self._tell_trouble(str(outcome.error))
        messages = list(_messages(outcome.new, outcome.is_all))
        if outcome.new.entries or (outcome.is_all and not self._is_told):
            for message in messages:
                self._send(message)
            self._is_told = outcome.is_all
        if outcome.seen is not None:
            rows = tuple(
                (uuid, seen.quiet_s, seen.notice.free, seen.notice.total)
                for uuid, seen in outcome.seen.items()
            )
            self._send(p.BrokersSeen(rows))

    def _tell_trouble(self, text: str) -> None:
        if text == self.trouble:
            return
        if not text:
            log.warning("the directory of the cluster can be read again")
        elif not self.trouble:
            log.error("the directory of the cluster cannot be read: %s", text)
        self.trouble = text
        self._send(p.DirectoryTrouble(text))

    # In the thread

    def _carry_out(self, job: Callable[[], int]) -> ReadOutcome:
        number, failure = -1, None
        try:
            if not self._is_checked:
                self._check()
                self._is_checked = True
            number = job()
        except BucketError as error:
            failure = error
            if not self._is_checked:
                self._retry_ns = time.monotonic_ns() + int(PAUSE_S * NS_PER_S)
        seen, self._seen = self._seen, None
        return ReadOutcome(self._log.take(), number, failure, seen)

    def _read(self) -> int:
        self._log.read_on()
        self._announce_if_needed()
        self._look_at_brokers()
        return -1

    def _look_at_brokers(self) -> None:
        """Exchange notices with the other brokers while somebody plans moves."""
        directory = self._log.directory
        me = directory.broker(self._broker)
        is_needed = directory.auto.is_on or any(one.draining for one in directory.brokers)
        now_ns = time.monotonic_ns()
        if me is None or me.gone:
            return
        if is_needed and now_ns >= self._watch_ns:
            self._is_watching = True
            self._seen = self._watch.exchange(BrokerNotice(self._broker, *self._disk()), now_ns)
            # At first, news of the others comes soon.
            pause_s = NOTICE_S if self._exchanges >= SOON_EXCHANGES else SOON_S
            self._watch_ns = now_ns + int(pause_s * NS_PER_S)
            self._exchanges += 1
        elif not is_needed and self._is_watching:
            self._watch.withdraw(self._broker)
            self._is_watching, self._watch_ns, self._exchanges = False, 0, 0

    def _announce_if_needed(self) -> None:
        entry = self._log.directory.broker(self._broker)
        known = entry.addresses if entry is not None else ()
        right = merged(self._addresses, known)
        is_same = entry is not None and entry.bucket == self._own
        if self._is_announced and is_same and set(self._addresses) <= set(known):
            return
        if known != right or not is_same:
            self._announce(right)
        self._is_announced = True

    def _announce(self, addresses: tuple[str, ...]) -> None:
        if (
            all(url.startswith(_LOOPBACK) for url in addresses)
            and self._bucket.url.scheme != "file"
        ):
            log.warning(
                "other machines cannot reach this broker of a cluster at %s: set --advertise",
                ", ".join(addresses),
            )
        if self._entry is None or self._entry.addresses != addresses:
            self._entry = BrokerEntry(uuids.uuid4().hex, self._broker, addresses, self._own)
        number = self._log.append(self._entry)
        self._entry = None
        log.info("entry %d of the cluster's directory has this broker's addresses", number)

    def _append(self, entry: Entry) -> int:
        return self._log.append(entry)


def _messages(new: NewEntries, is_all: bool) -> Iterator[p.DirectoryEntries]:
    """Yield messages with these entries, at least one."""
    first, size = 0, 0
    for end, entry in enumerate(new.entries):
        if end > first and (end - first == MESSAGE_ENTRIES or size + len(entry) > MESSAGE_BYTES):
            yield p.DirectoryEntries(new.first + first, new.entries[first:end], is_all=False)
            first, size = end, 0
        size += len(entry)
    yield p.DirectoryEntries(new.first + first, new.entries[first:], is_all=is_all)
