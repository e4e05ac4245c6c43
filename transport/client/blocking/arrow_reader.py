"""Arrow reader: a range of offsets as a stream of record batches. pyarrow is imported when used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from ...errors import E_BAD_ARGUMENT, E_UNSUPPORTED, UsageError
from ...names import part_of
from .range_reader import RangeReader

if TYPE_CHECKING:
    import pyarrow

    from ...arrow.batches import BatchMaker

ARROW_BYTES: Final = 1 << 20  # the size of one reply; two replies are in memory
# `timestampType`, `topic` and `partition` are the same in most rows, so they are optional.
ARROW_COLUMNS: Final = ("offset", "timestamp", "key", "tag", "value", "headers")


def record_batches(
    blocks: RangeReader, columns: Sequence[str] | None = None
) -> pyarrow.RecordBatchReader:
    """Return the messages of the range as a stream of batches. It closes `blocks` at its end.

    Raises `UsageError` (E_UNSUPPORTED) if pyarrow is not installed.
    """
    if find_spec("pyarrow") is None:
        text = "Reader.arrow needs the package pyarrow: pip install 'zsq[arrow]'"
        raise UsageError(E_UNSUPPORTED, text)
    from pyarrow import RecordBatchReader

    from ...arrow.batches import BatchMaker

    if isinstance(columns, str):
        text = f"columns must be a list of names, such as [{columns!r:.40}], not a single name"
        raise UsageError(E_BAD_ARGUMENT, text)
    topic, part = part_of(blocks.topic) or (blocks.topic, 0)
    maker = BatchMaker(topic, ARROW_COLUMNS if columns is None else tuple(columns), part)
    return RecordBatchReader.from_batches(maker.schema, _batches(blocks, maker))


def _batches(blocks: RangeReader, maker: BatchMaker) -> Iterator[pyarrow.RecordBatch]:
    from ...arrow.batches import aligned

    with blocks:
        yield from maker.batches(map(aligned, blocks), blocks.start, blocks.end)
