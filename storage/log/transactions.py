"""The mark: the block without messages that ends an atomic group and carries its transaction. Pure.

    header (64 bytes, flags MARK, count 0)   length (4)   msgpack map   zeros to a multiple of 8   trailer (8)

A group counts if and only if its mark is in the log. Where the whole group was appended, the mark stands behind its
blocks; where staged files become chunks, it stands behind the blocks of the last of them, and that file's name in the log is the
commit. The mark names all that belongs to the group, so that recovery can finish what was begun.

What is remembered of transactions and of their stages: rows of the state store. Pure.

A transaction is (`app`, `version`): the versions of an app ascend, and each is committed at most once. So one row an app is enough:
what was committed last. What stands in a group's mark (log) goes into the row when the state is committed; the mark is the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from crc32c import crc32c

from ...transport.block.block import HEADER_BYTES, MARK, TRAILER_BYTES, TRAILER_MAGIC, Buffer, Header
from ...transport.wire.codec import pack_value, unpack_value
from .log_format import ALIGNMENT, encode_disk_header

JOB: Final = "job"  # a kind whose app is the uuid of one job: nobody asks for it again after the retries
JOB_KEPT_NS: Final = 7 * 86_400 * 1_000_000_000
TRANSACTIONS_MAX: Final = 100_000  # rows of about 100 bytes, all of them in memory: jobs make one each, queries one in all


class Transaction(NamedTuple):
    """`kind` is "app" (remembered for good) or "job". `user`: of the access file, who stages and commits it; "" where nobody had to say."""

    app: str
    version: int
    kind: str
    user: str = ""


def is_foreign(owner: str, user: str) -> bool:
    """Return True if what `owner` made is closed to `user`.

    What was made without a user name is open to all. A caller without one (ipc, or a broker without an access file) may use everything.
    """
    return bool(owner and user) and owner != user


class TransactionRow(NamedTuple):
    """The last committed version of an app. Without messages (an empty commit) `first_offset` is where they would be."""

    version: int
    kind: str
    first_offset: int
    messages: int
    time_ns: int
    user: str = ""
    """Return the owner of an app; rows of before there were owners have none."""


class StagedFile(NamedTuple):
    """A file of a stage: a chunk whose base is not known yet. `data_end`: where its blocks end; `seed`: of its checksums."""

    number: int
    seed: int
    blocks: int
    messages: int
    data_end: int


class StageRow(NamedTuple):
    """A stage as of its last seal; all of it is on disk. `bytes`: of its blocks; `final`: nothing comes any more."""

    app: str
    version: int
    kind: str
    partition: int
    blocks: int
    messages: int
    bytes: int
    checksum: int
    final: bool
    files: tuple[StagedFile, ...]
    used_ns: int
    user: str = ""

    @property
    def transaction(self) -> Transaction:
        return Transaction(self.app, self.version, self.kind, self.user)


def later_of(old: TransactionRow | None, new: TransactionRow) -> TransactionRow:
    """The row that counts: of the higher version. Marks are replayed in any state of the row, so this is idempotent.

    An app keeps its owner, also where a commit came from somebody who need not say who they are.
    """
    if old is None or new.version <= old.version:
        return old or new
    return new._replace(user=new.user or old.user)


def superseded(stages: Mapping[bytes, StageRow], app: str, version: int, user: str = "") -> list[bytes]:
    """Stages that can never be committed any more once this user has committed this version of the app: its own and older ones."""
    return [stage for stage, row in stages.items() if row.app == app and row.version <= version and not is_foreign(row.user, user)]


def forgettable(rows: Mapping[str, TransactionRow], now_ns: int) -> list[str]:
    """Apps whose row may go: jobs after 7 days, and the oldest jobs where there would be no room for one more.

    If TRANSACTIONS_MAX are left even so, a new app is to be refused.
    """
    jobs = sorted((row.time_ns, app) for app, row in rows.items() if row.kind == JOB)
    old = sum(time_ns < now_ns - JOB_KEPT_NS for time_ns, _ in jobs)
    too_many = len(rows) + 1 - TRANSACTIONS_MAX
    return [app for _, app in jobs[: max(old, too_many, 0)]]


_LENGTH_BYTES: Final = 4


class Adopted(NamedTuple):
    """A staged file that is a chunk of the log from here on. `data_end`: where its blocks end (a mark may follow)."""

    stage: bytes
    number: int
    seed: int
    base_offset: int
    messages: int
    data_end: int


class Mark(NamedTuple):
    """`messages`: of the whole group, of which the first `appended` were appended. `adopted`: ascending; the mark stands in the last one.

    `unsealed`: (base offset, end of its blocks, time of the last one) of the chunk before the adopted ones, if it had no footer yet; or ().
    """

    transaction: Transaction
    first_offset: int
    messages: int
    appended: int
    parts: tuple[bytes, ...]
    adopted: tuple[Adopted, ...] = ()
    unsealed: tuple[int, ...] = ()

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.messages

    def row(self, time_ns: int) -> TransactionRow:
        _, version, kind, user = self.transaction
        return TransactionRow(version, kind, self.first_offset, self.messages, time_ns, user)


def encode_mark(mark: Mark) -> bytes:
    """The columns of the mark's block."""
    app, version, kind, user = mark.transaction
    found: dict[str, Any] = {
        "app": app,
        "version": version,
        "kind": kind,
        "first": mark.first_offset,
        "messages": mark.messages,
        "appended": mark.appended,
        "parts": mark.parts,
        "adopted": mark.adopted,
        "unsealed": mark.unsealed,
    }
    data = pack_value(found | ({"user": user} if user else {}))
    padding = -(_LENGTH_BYTES + len(data)) % ALIGNMENT
    body = len(data).to_bytes(_LENGTH_BYTES, "little") + data + bytes(padding)
    length = HEADER_BYTES + len(body) + TRAILER_BYTES
    return body + length.to_bytes(4, "little") + TRAILER_MAGIC.to_bytes(4, "little")


def encode_mark_header(columns: bytes, offset: int, time_ns: int, unsynced_bytes: int, seed: int, position: int = 0) -> bytes:
    """As `encode_disk_header`. `offset` is the one behind the group, relative to the chunk like `time_ns`."""
    crc = crc32c(memoryview(columns)[:-TRAILER_BYTES])
    header = Header(0, MARK, HEADER_BYTES + len(columns), 0, 0, 0, 0, 0, crc)
    return encode_disk_header(header, offset, time_ns, unsynced_bytes, seed, position)


def decode_mark(columns: Buffer) -> Mark:
    """From columns whose checksum was checked; `ValueError` where they are no mark all the same."""
    size = int.from_bytes(columns[:_LENGTH_BYTES], "little")
    try:
        found: dict[str, Any] = unpack_value(columns[_LENGTH_BYTES : _LENGTH_BYTES + size])
        return Mark(
            Transaction(found["app"], found["version"], found["kind"], found.get("user", "")),
            found["first"],
            found["messages"],
            found["appended"],
            found["parts"],
            tuple(Adopted(*adopted) for adopted in found["adopted"]),
            found["unsealed"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not the content of a mark: {error}") from error
