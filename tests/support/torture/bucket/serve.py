"""`zsq serve` for the bucket torture: `python serve.py HOST serve ...`.

It differs from the real one in two ways. A broker finds a copy of itself on the same machine by its
uuid, and refuses to start. Here it looks only at brokers with the same HOST, as if the others ran
on other machines. And the log of ticks is made shorter much earlier, so that this happens often.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

LOG_TICKS: Final = 120
COLLECT_EVERY_NS: Final = 2_000_000_000


def shorten_log() -> None:
    """Change the limits of the archive actor, in the process from which it is forked."""
    from zsq.actors.bucket.archive import archive_actor

    limits = archive_actor.LIMITS
    limits.log_ticks, limits.collect_every_ns = LOG_TICKS, COLLECT_EVERY_NS


def main(host: str, arguments: list[str]) -> None:
    from zsq.actors.supervisor import run_directory
    from zsq.apps.cli import main as zsq

    shorten_log()
    claim = run_directory.claim
    run_directory.claim = lambda uuid, *more: claim(f"{uuid}-{host}", *more)
    sys.argv = ["zsq", *arguments]
    zsq()


if __name__ == "__main__":
    # In place of this folder, which has modules with common names.
    sys.path[0] = str(Path(__file__).parents[3])
    main(sys.argv[1], sys.argv[2:])
