"""What an import from nsqd left that was killed: cleared at the next start of the broker, or by the next import, by the registry's record.

An import builds its topics aside and renames them into `topics/` before it commits. Until that commit nobody knows them, and for ever
if nobody runs it again: they only take space. Their numbers were noted before, and nobody else gets those.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from ..storage.files import Files
from ..transport.errors import Refused
from .registry import Registry

log = logging.getLogger("zsq")

ASIDE: Final = "import.tmp"
BEGUN: Final = "begun"
DONE: Final = "done"


def clear_imports(files: Files, data_dir: Path, registry: Registry) -> list[str]:
    """Under the data directory's lock. What was removed; `OSError`, `Refused` where the disk does not let it: the next time, then."""
    known = {row.number for row in registry.topics.values()}
    begun = {digest: record for digest, record in registry.imports.items() if record["state"] == BEGUN}
    numbers = {number for record in begun.values() for number in record["numbers"]} - known
    paths = [str(data_dir / ASIDE), *(str(data_dir / "topics" / f"{number:06d}") for number in sorted(numbers))]
    found = [path for path in paths if files.exists(path)]
    for path in found:
        files.remove_tree(path)
    if begun:
        files.sync_folder(str(data_dir / "topics"))
        for digest in begun:
            del registry.imports[digest]
        registry.save()
    return found


def clear_imports_at_start(files: Files, data_dir: Path, registry: Registry) -> None:
    """The same for a broker, which does not stay away because of it."""
    try:
        found = clear_imports(files, data_dir, registry)
    except (OSError, Refused) as error:
        log.error("what an unfinished import from nsqd left in %s cannot be removed: %s", data_dir, error)
        return
    if found:
        log.warning("an import from nsqd did not come to its end; what it left is removed (%s); run it again", ", ".join(found))
