"""Atomic group: the plan of a commit that appends some staged parts and makes chunks of others.

To append a part, its bytes are written a second time. To make a chunk of it takes a header, a sync
and a rename: about half a millisecond, whatever its size. So parts of ADOPT_BYTES or more become
chunks. The appended parts of one group have limits, because other publishers wait for them: 8 MiB
take about 50 ms, the read of 256 files takes 15 ms, and 2048 blocks that need new headers take 20
ms. If a limit is exceeded, `merging.py` first merges all small parts. The result becomes chunks, or
is appended from one file. If too many files would become chunks, parts below MERGE_BELOW_BYTES are
merged too.

First the appended parts get offsets, then the adopted parts, both in the order of the commit. So
the messages of a part stay together.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ...transport.block.block import HEADER_BYTES, Block, Header
from ..errors import Damaged
from ..files import Files
from .chunk import WALK_BYTES, columns_agree
from .log_format import CHUNK_HEADER_BYTES, decode_disk_header, part_name
from .transactions import Adopted, Mark, StagedFile, Transaction

ADOPT_BYTES: Final = 4 * 1024 * 1024
GROUP_APPEND_BYTES_MAX: Final = 8 * 1024 * 1024
GROUP_APPEND_FILES_MAX: Final = 256
GROUP_APPEND_BLOCKS_MAX: Final = 2048
ADOPTED_FILES_FEW: Final = 64
MERGE_BELOW_BYTES: Final = 32 * 1024 * 1024


class StagedPart(NamedTuple):
    """A stage with a final seal. Its files in `folder` are synced and have footers."""

    stage: bytes
    folder: str
    files: tuple[StagedFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.data_end - CHUNK_HEADER_BYTES for file in self.files)

    @property
    def blocks(self) -> int:
        return sum(file.blocks for file in self.files)

    @property
    def messages(self) -> int:
        return sum(file.messages for file in self.files)

    def path(self, file: StagedFile) -> str:
        return f"{self.folder}/{part_name(self.stage, file.number)}"


class Merged(NamedTuple):
    """The result of a merge (see `merging.py`).

    `part` contains the blocks of the parts in `replaced`, in the order of the commit.
    """

    part: StagedPart
    replaced: frozenset[bytes]


class CommittedGroup(NamedTuple):
    """The result of a commit.

    The group has `messages` messages from `first_offset` on. All have the same time.
    """

    first_offset: int
    messages: int
    time_ns: int


class GroupPlan(NamedTuple):
    """The parts that have messages, in the order of the commit."""

    appended: list[StagedPart]
    adopted: list[StagedPart]

    @property
    def messages(self) -> int:
        return sum(part.messages for part in (*self.appended, *self.adopted))


def plan_merge(
    parts: Sequence[StagedPart], adopt_bytes: int, append_bytes_max: int
) -> list[StagedPart]:
    """Return the parts to merge before the commit, in the order of the commit."""
    single = [part for part in parts if len(part.files) == 1]
    small = [part for part in single if part.size_bytes < adopt_bytes]
    large = [part for part in single if adopt_bytes <= part.size_bytes < MERGE_BELOW_BYTES]
    size, blocks = sum(part.size_bytes for part in small), sum(part.blocks for part in small)
    merge_small = (
        size > append_bytes_max
        or blocks > GROUP_APPEND_BLOCKS_MAX
        or len(small) > GROUP_APPEND_FILES_MAX
    )
    merge_large = (
        sum(len(part.files) for part in parts) - len(small) > ADOPTED_FILES_FEW and len(large) > 1
    )
    chosen = {
        part.stage for part in (*(small if merge_small else ()), *(large if merge_large else ()))
    }
    return [part for part in parts if part.stage in chosen]


def placed(parts: Sequence[StagedPart], merged: Merged | None) -> Sequence[StagedPart]:
    """Return the parts of the commit. The merged part replaces the parts that it contains.

    The merged part is the first one, because the small parts would be stored first too. The other
    parts keep their order.
    """
    return (
        parts
        if merged is None
        else [merged.part, *(part for part in parts if part.stage not in merged.replaced)]
    )


def plan_group(parts: Sequence[StagedPart], adopt_bytes: int, append_bytes_max: int) -> GroupPlan:
    """Decide which parts are appended and which are adopted."""
    parts = [part for part in parts if part.files]
    adopted = {
        i for i, part in enumerate(parts) if len(part.files) > 1 or part.size_bytes >= adopt_bytes
    }
    rest = sorted(
        (i for i in range(len(parts)) if i not in adopted), key=lambda i: parts[i].size_bytes
    )
    size = blocks = 0
    for n, i in enumerate(rest):
        size += parts[i].size_bytes
        blocks += parts[i].blocks
        if size > append_bytes_max or blocks > GROUP_APPEND_BLOCKS_MAX:
            adopted.update(rest[n:])
            break
    return GroupPlan(
        [part for i, part in enumerate(parts) if i not in adopted],
        [parts[i] for i in sorted(adopted)],
    )


def make_mark(
    transaction: Transaction, parts: Sequence[StagedPart], plan: GroupPlan, first_offset: int
) -> Mark:
    appended = sum(part.messages for part in plan.appended)
    base_offset = first_offset + appended
    adopted = []
    for part in plan.adopted:
        for file in part.files:
            adopted.append(
                Adopted(
                    part.stage, file.number, file.seed, base_offset, file.messages, file.data_end
                )
            )
            base_offset += file.messages
    return Mark(
        transaction,
        first_offset,
        base_offset - first_offset,
        appended,
        tuple(part.stage for part in parts),
        tuple(adopted),
    )


def read_blocks(files: Files, parts: Sequence[StagedPart]) -> list[Block]:
    """Return all blocks of these parts, checked as in `walk_staged`."""
    return [
        Block(header, columns, columns)
        for part in parts
        for header, columns in walk_staged(files, part)
    ]


def walk_staged(files: Files, part: StagedPart) -> Iterator[tuple[Header, memoryview]]:
    """Yield the blocks of a part after a check.

    Raises `Damaged` if a file is missing, unreadable (EIO), or was changed after it was sealed.
    Raises other `OSError`s unchanged.
    """
    for file in part.files:
        path = part.path(file)
        try:
            fd = files.open_read(path)
            try:
                yield from _walk_file(files, fd, file, path)
            finally:
                files.close(fd)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.EIO}:
                raise Damaged(f"{path} cannot be read: {error}") from error
            raise


def _walk_file(
    files: Files, fd: int, file: StagedFile, path: str
) -> Iterator[tuple[Header, memoryview]]:
    blocks = messages = 0
    position = window_at = CHUNK_HEADER_BYTES
    window = memoryview(b"")

    def read(size: int) -> memoryview:
        return memoryview(files.pread(fd, min(size, file.data_end - position), position))

    while position < file.data_end:
        start = position - window_at
        if start + HEADER_BYTES > len(window):
            window, window_at, start = read(WALK_BYTES), position, 0
        header = decode_disk_header(window[start : start + HEADER_BYTES], file.seed, position)
        if header is None or header.first_offset != messages:
            break
        if start + header.length > len(window):
            window, window_at, start = read(header.length), position, 0
        columns = window[start + HEADER_BYTES : start + header.length]
        if not columns_agree(header, columns):
            break
        yield header, columns
        blocks += 1
        messages += header.count
        position += header.length
    if (blocks, messages, position) != (file.blocks, file.messages, file.data_end):
        raise Damaged(
            f"{path} is damaged at position {position}: only {blocks} of {file.blocks} blocks "
            "are intact"
        )
