"""A client process of the torture (see `run.py`): `python -m support.torture.client JSON`. It may
be killed at any moment.
"""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.torture import ledger as l
from support.torture.consuming import Consuming
from support.torture.ledger import Ledger, Shape
from support.torture.producing import Publishing, stage

from zsq.actors.runtime.process import die_with_parent, set_title


def guarded(ledger: Ledger, name: str, work: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            work()
        except BaseException:
            if not ledger.words[l.STOP]:
                ledger.complain(f"{name} ended by {traceback.format_exc()}")

    return run


def main(settings: dict[str, Any]) -> None:
    die_with_parent(settings["parent"])
    set_title(f"torture {settings['name']}")
    ledger = Ledger(Path(settings["ledger"]), Shape.from_json(settings["shape"]))
    seed = settings["seed"]
    jobs: list[tuple[str, Callable[[], None]]] = []
    for lane, url in settings["lanes"]:
        jobs.append((f"producer {lane}", Publishing(ledger, lane, url, seed + lane).run))
    for lane, urls in settings["stages"]:
        jobs.append(
            (
                f"stage writer {lane}",
                lambda lane=lane, urls=urls: stage(ledger, lane, urls, seed + lane),  # type: ignore[misc]
            )
        )
    for channel, number, url in settings["consumers"]:
        jobs.append(
            (
                f"consumer {number} of {channel}",
                Consuming(ledger, channel, number, url, seed + 100 + channel).run,
            )
        )
    threads = [
        threading.Thread(target=guarded(ledger, name, work), daemon=True) for name, work in jobs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
