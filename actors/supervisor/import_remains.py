"""Remains of imports from nsqd that were killed: the next start or import removes them.

The registry's record of the import says what to remove. An import builds its topics in a separate
folder and renames them into `topics/` before it commits. Before the commit no process uses them, so
they only take space. Their numbers are recorded first, so no other topic gets those numbers.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from ...storage.files import Files
from ...transport.errors import Refused
from .topics.registry import Registry

log = logging.getLogger("zsq")

ASIDE: Final = "import.tmp"
BEGUN: Final = "begun"
DONE: Final = "done"


def clear_imports(files: Files, data_dir: Path, registry: Registry) -> list[str]:
    """Remove what unfinished imports left, and return the removed paths. The caller holds the lock.

    Raises `OSError` or `Refused` if the disk does not allow it. The next call tries again.
    """
    known = {row.number for row in registry.topics.values()}
    begun = {
        digest: record for digest, record in registry.imports.items() if record["state"] == BEGUN
    }
    numbers = {number for record in begun.values() for number in record.get("numbers", ())} - known
    paths = [
        str(data_dir / ASIDE),
        *(str(data_dir / "topics" / f"{number:06d}") for number in sorted(numbers)),
    ]
    remains = [path for path in paths if files.exists(path)]
    for path in remains:
        files.remove_tree(path)
    if begun:
        files.sync_folder(str(data_dir / "topics"))
        for digest in begun:
            del registry.imports[digest]
        registry.save()
    return remains


def clear_imports_at_start(files: Files, data_dir: Path, registry: Registry) -> None:
    """Call `clear_imports`, but log its failure, so that the broker starts nevertheless."""
    try:
        cleared = clear_imports(files, data_dir, registry)
    except (OSError, Refused) as error:
        log.error(
            (
                "cannot remove the files of an unfinished import from nsqd in %s: %s; the next "
                "start tries again"
            ),
            data_dir,
            error,
        )
        return
    if cleared:
        log.warning(
            (
                "an import from nsqd was interrupted; its files were removed (%s): run `zsq "
                "import-nsqd` again"
            ),
            ", ".join(cleared),
        )
