"""A file, or the folder of an environment, as records."""

from __future__ import annotations

import os.path
from collections.abc import Iterator

from ...storage.files import Files
from ...transport.errors import E_BAD_ARGUMENT, UsageError
from . import recognise as kinds
from .logs import dump_bad, dump_chunk, dump_index
from .nsqd_files import dump_data, dump_list, dump_meta
from .record import Record
from .rows import dump_bad_row, dump_environment, dump_snapshot
from .texts import dump_identity, dump_json, dump_registry


def kind_of_path(path: str) -> str:
    """`UsageError` where it is nothing that is known here. A folder may be an environment's."""
    if os.path.isdir(path):
        if os.path.isfile(f"{path}/data.mdb"):
            return kinds.ENVIRONMENT
        raise UsageError(E_BAD_ARGUMENT, f"{path} is a folder without data.mdb; name a file, or the folder of a state store")
    found = kinds.kind_of(Files().read_file(path, kinds.HEAD_BYTES), os.path.basename(path))
    if not found:
        raise UsageError(E_BAD_ARGUMENT, f"{path} is no file of zsq or nsqd that is known here")
    return found


def dump(path: str, kind: str, *, bodies: bool = False) -> Iterator[Record]:
    """`OSError` as it comes; damage comes as records."""
    files = Files()
    if kind == kinds.ENVIRONMENT:
        return dump_environment(path, folder=os.path.isdir(path), bodies=bodies)
    if kind == kinds.CHUNK:
        return dump_chunk(files, path, bodies=bodies)
    if kind == kinds.NSQD_DATA:
        return dump_data(files, path, bodies=bodies)
    plain = {
        kinds.INDEX: dump_index,
        kinds.BAD: dump_bad,
        kinds.BAD_ROW: dump_bad_row,
        kinds.SNAPSHOT: dump_snapshot,
        kinds.IDENTITY: dump_identity,
        kinds.REGISTRY: dump_registry,
        kinds.NSQD_META: dump_meta,
        kinds.NSQD_LIST: dump_list,
        kinds.JSON: dump_json,
    }
    return plain[kind](files, path)
