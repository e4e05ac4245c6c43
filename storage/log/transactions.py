"""Transactions: the mark that ends an atomic group, and the rows of transactions and stages. Pure.

The mark is a block without messages that contains the group's transaction:

    header (64 bytes, flag MARK, count 0)   length (4)   msgpack map   zeros to a multiple of 8
    trailer (8)

A group is part of the log if and only if its mark is in the log. If the whole group was appended,
the mark follows its blocks. If staged files become chunks, the mark follows the blocks of the last
of these files, and the rename of that file into the log is the commit. The mark names all files of
the group, so that recovery can finish the commit.

The rows belong to the state store. A transaction is (`app`, `version`). The versions of an app
increase, and each is committed at most once. So one row for each app is enough, with the last
commit. When the state is committed, the row is written from the group's mark. If the mark and the
row differ, the mark is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ...transport.block.block import (
    HEADER_BYTES,
    MARK,
    TRAILER_BYTES,
    TRAILER_MAGIC,
    Buffer,
    Header,
)
from ...transport.checksum import crc32c
from ...transport.wire.codec import pack_value, unpack_value
from .log_format import ALIGNMENT, encode_disk_header

# A kind of transaction. Its app is the uuid of one job, so its row is not needed after the job's
# retries.
JOB: Final = "job"
JOB_KEPT_NS: Final = 7 * 86_400 * 1_000_000_000
# Each row takes about 100 bytes, and all rows are in memory. Each job makes one row. A streaming
# query makes one row for all its runs.
TRANSACTIONS_MAX: Final = 100_000


class Transaction(NamedTuple):
    """The transaction of a group.

    `kind` is "app" (remembered permanently) or "job". `user` is the user (of the access file) who
    stages and commits, or "" if no user name was required.
    """

    app: str
    version: int
    kind: str
    user: str = ""


def is_foreign(owner: str, user: str) -> bool:
    """Return True if `user` may not use an app or a stage of `owner`.

    Without an owner, all users may use it. A caller without a user name (ipc, or a broker without
    an access file) may use everything.
    """
    return bool(owner and user) and owner != user


class TransactionRow(NamedTuple):
    """The last committed version of an app.

    After an empty commit, `first_offset` is the offset that its first message would have.
    """

    version: int
    kind: str
    first_offset: int
    messages: int
    time_ns: int
    user: str = ""
    """The owner of the app, or "" without one."""


class StagedFile(NamedTuple):
    """A file of a stage: a chunk whose base is not known yet.

    `data_end` is the end of its blocks. `seed` is the seed of its checksums.
    """

    number: int
    seed: int
    blocks: int
    messages: int
    data_end: int


class StageRow(NamedTuple):
    """A stage at its last seal. All its blocks are on disk.

    `bytes` is the size of its blocks. `final` is True if no more blocks will follow.
    """

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
    """Return the row with the higher version.

    So a mark can be replayed several times, whatever the row contains. An app keeps its owner, even
    if a caller without a user name commits.
    """
    if old is None or new.version <= old.version:
        return old or new
    return new._replace(user=new.user or old.user)


def superseded(
    stages: Mapping[bytes, StageRow], app: str, version: int, user: str = ""
) -> list[bytes]:
    """Return the stages that are not needed after this user has committed this version of the app.

    These are the stages of this version and older ones. No commit can use them any more.
    """
    return [
        stage
        for stage, row in stages.items()
        if row.app == app and row.version <= version and not is_foreign(row.user, user)
    ]


def forgettable(rows: Mapping[str, TransactionRow], now_ns: int) -> list[str]:
    """Return the apps whose row may be removed.

    These are jobs after 7 days, and the oldest jobs if there is no room for one more row. If there
    is still no room after that, the caller must refuse a new app.
    """
    jobs = sorted((row.time_ns, app) for app, row in rows.items() if row.kind == JOB)
    old = sum(time_ns < now_ns - JOB_KEPT_NS for time_ns, _ in jobs)
    too_many = len(rows) + 1 - TRANSACTIONS_MAX
    return [app for _, app in jobs[: max(old, too_many, 0)]]


_LENGTH_BYTES: Final = 4


class Adopted(NamedTuple):
    """A staged file that becomes a chunk of the log.

    `data_end` is the end of its blocks; a mark may follow.
    """

    stage: bytes
    number: int
    seed: int
    base_offset: int
    messages: int
    data_end: int


class Mark(NamedTuple):
    """The content of a mark.

    `messages` is the number of messages in the whole group. The first `appended` of them were
    appended. `adopted` is in ascending order, and the mark is in the last of these files.

    `unsealed` describes the chunk before the adopted ones, if it had no footer yet: (base offset,
    end of its blocks, time of its last block). Otherwise it is ().
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
    """Encode the columns of the mark's block."""
    app, version, kind, user = mark.transaction
    document: dict[str, Any] = {
        "app": app,
        "version": version,
        "kind": kind,
        "first": mark.first_offset,
        "messages": mark.messages,
        "appended": mark.appended,
        "parts": mark.parts,
        "adopted": mark.adopted,
        "unsealed": mark.unsealed,
        "user": user,
    }
    data = pack_value(document)
    padding = -(_LENGTH_BYTES + len(data)) % ALIGNMENT
    body = len(data).to_bytes(_LENGTH_BYTES, "little") + data + bytes(padding)
    length = HEADER_BYTES + len(body) + TRAILER_BYTES
    return body + length.to_bytes(4, "little") + TRAILER_MAGIC.to_bytes(4, "little")


def encode_mark_header(
    columns: bytes, offset: int, time_ns: int, unsynced_bytes: int, seed: int, position: int = 0
) -> bytes:
    """Encode the header of the mark's block, like `encode_disk_header`.

    `offset` is the offset after the group. `offset` and `time_ns` are relative to the chunk.
    """
    crc = crc32c(memoryview(columns)[:-TRAILER_BYTES])
    header = Header(0, MARK, HEADER_BYTES + len(columns), 0, 0, 0, 0, 0, crc)
    return encode_disk_header(header, offset, time_ns, unsynced_bytes, seed, position)


def decode_mark(columns: Buffer) -> Mark:
    """Decode a mark from columns with a good checksum. Raises `ValueError` if it is not a mark."""
    size = int.from_bytes(columns[:_LENGTH_BYTES], "little")
    try:
        document: dict[str, Any] = unpack_value(columns[_LENGTH_BYTES : _LENGTH_BYTES + size])
        return Mark(
            Transaction(document["app"], document["version"], document["kind"], document["user"]),
            document["first"],
            document["messages"],
            document["appended"],
            document["parts"],
            tuple(Adopted(*adopted) for adopted in document["adopted"]),
            document["unsealed"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the content of the mark is not valid: {error}") from error
