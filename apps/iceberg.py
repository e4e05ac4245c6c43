"""Append of a topic to a table of Apache Iceberg, through pyiceberg.

Each append is one commit of the table. It adds the rows, writes their offsets into the properties
of the snapshot, and moves the table's own property `zsq.TOPIC.next-offset`. All of this happens in
one commit, so a repeated run continues behind it, and appends nothing twice. The table's property
stays when old snapshots are expired.

pyiceberg repeats a failed commit on top of the commits of others. If two runs append at the same
time, the second one would then add the same rows again. So this turns the repetition off, and looks
at the property itself before it tries again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from ..transport.client.blocking.client import Reader
from ..transport.client.core.reading import OnDataLoss
from ..transport.errors import (
    E_DATA_LOSS,
    E_IN_USE,
    E_UNSUPPORTED,
    DataLoss,
    Refused,
    UsageError,
)
from ..transport.names import part_of
from .export import COLUMNS, logs_of

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Appended", "append", "schema"]

APPEND_BYTES: Final = 256 * 1024 * 1024  # of Arrow buffers in one commit; this much is in memory
ATTEMPTS: Final = 5  # of one commit, while other writers commit
_RETRIES: Final = "commit.retry.num-retries"


@dataclass
class Appended:
    """Result of one call: the rows, the commits, and the next offset of each log."""

    rows: int = 0
    commits: int = 0
    ends: dict[str, int] = field(default_factory=dict)


def schema(columns: Sequence[str] = COLUMNS) -> pyarrow.Schema:
    """Return the Arrow schema of these columns, to create a table with `catalog.create_table`."""
    _check_installed("pyarrow")
    from ..transport.arrow.batches import arrow_schema

    return arrow_schema(columns)


def append(
    table: Any,
    topic: str,
    *,
    url: str | None = None,
    max_bytes: int = APPEND_BYTES,
    skip_lost: bool = False,
    timeout: float = 30.0,
) -> Appended:
    """Append the messages that the table does not have yet, up to the end of the topic now.

    `table` is a `pyiceberg.table.Table`. Its columns choose those of the messages, see
    docs/dataframes.md. Without `url`, the broker is that of the environment variable `ZSQ_URL`, or
    the local one. A commit has at most about `max_bytes` bytes. A topic with parts is appended
    part by part.

    Raises `DataLoss` if messages that should be appended no longer exist, unless `skip_lost`, or if
    the topic was deleted and created again. Raises `Refused` (E_IN_USE) if other writers commit all
    the time. After any error, call it again: the table says where to continue.
    """
    _check_installed("pyiceberg")
    report = Appended()
    columns = [field.name for field in table.schema().fields]
    for name in logs_of(topic, url, timeout):
        with Reader(name, url=url, timeout=timeout, patient=True) as reader:
            _append_log(table, reader, columns, max_bytes, skip_lost, report)
    return report


def _check_installed(package: str) -> None:
    if find_spec(package) is None:
        text = f"the append to Iceberg needs the package {package}: pip install 'zsq[iceberg]'"
        raise UsageError(E_UNSUPPORTED, text)


def _append_log(
    table: Any,
    reader: Reader,
    columns: Sequence[str],
    max_bytes: int,
    skip_lost: bool,
    report: Appended,
) -> None:
    uuid = reader.uuid()
    oldest, head = reader.bounds()
    table.refresh()
    while (start := _next_offset(table, reader.topic, uuid, oldest)) < head:
        for data, stop in _chunks(reader, start, head, columns, max_bytes, skip_lost):
            if not _commit(table, reader.topic, uuid, data, start, stop):
                break  # another run has appended them: continue behind it
            report.rows += data.num_rows
            report.commits += 1
            start = stop
    report.ends[reader.topic] = start


def _chunks(
    reader: Reader,
    start: int,
    head: int,
    columns: Sequence[str],
    max_bytes: int,
    skip_lost: bool,
) -> Iterator[tuple[pyarrow.Table, int]]:
    """Yield the rows of each commit, and the offset at which to continue."""
    import pyarrow as pa

    wanted = list(dict.fromkeys([*columns, "offset"]))
    batches: list[Any] = []
    size = 0
    on_data_loss: OnDataLoss = "warn" if skip_lost else "fail"
    for batch in reader.arrow(start, head, columns=wanted, on_data_loss=on_data_loss):
        batches.append(batch)
        size += batch.nbytes
        if size >= max_bytes:
            stop = batch.column("offset")[-1].as_py() + 1
            yield pa.Table.from_batches(batches).select(columns), stop
            batches, size = [], 0
    # Offsets at the end that do not exist count as appended.
    rows = pa.Table.from_batches(batches, schema(wanted))
    yield rows.select(columns), head


def _property(log: str, fact: str) -> str:
    topic, part = part_of(log) or (log, None)
    return f"zsq.{topic}.{fact}" if part is None else f"zsq.{topic}.part-{part}.{fact}"


def _next_offset(table: Any, log: str, uuid: str, oldest: int) -> int:
    """Return the offset behind what the table has. Raises `DataLoss` if it has another topic."""
    known = table.properties.get(_property(log, "uuid"), uuid)
    if known != uuid:
        text = (
            f"the table has messages of topic {log} with uuid {known}, and the topic was deleted "
            f"and created again (uuid {uuid}), or is at another broker: use another table"
        )
        raise DataLoss(E_DATA_LOSS, text)
    return int(table.properties.get(_property(log, "next-offset"), oldest))


def _commit(table: Any, log: str, uuid: str, data: pyarrow.Table, start: int, stop: int) -> bool:
    """Append rows in one commit. Return False if the table has them already."""
    from pyiceberg.exceptions import CommitFailedException

    known = table.properties.get(_property(log, "next-offset"))
    for _ in range(ATTEMPTS):
        # Only this copy in memory is changed: a commit sends nothing but its own updates.
        table.metadata.properties[_RETRIES] = "0"
        moved = {_property(log, "next-offset"): str(stop), _property(log, "uuid"): uuid}
        properties = {
            "zsq.topic": log,
            "zsq.uuid": uuid,
            "zsq.start": str(start),
            "zsq.end": str(stop),
        }
        try:
            with table.transaction() as transaction:
                transaction.append(data, snapshot_properties=properties)
                transaction.set_properties(moved)
        except CommitFailedException:
            table.refresh()
            if table.properties.get(_property(log, "next-offset")) != known:
                return False
        else:
            return True
    text = f"{ATTEMPTS} commits failed, because other writers commit to the table; try again later"
    raise Refused(E_IN_USE, text)
