"""The process of a test broker: `zsq serve` with a clock that the test can move.

    python -m zsq.apps.testing.serve serve --data-dir DIR ...

The process ends when its standard input is closed. So the broker ends with the test process,
however that process ends.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Final, NoReturn

from . import clock

LOOK_NS: Final = 50_000_000
"""The time after which a topic with delayed messages notices that the clock was moved.

The broker's own value is 10 s.
"""


def _end_with_parent() -> None:
    # Not sys.stdin: at its end, the interpreter would wait a second for the lock of that object.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> NoReturn:
    clock.install(Path(os.environ[clock.OFFSET_FILE]))
    from ...actors.runtime import forkserver
    from ...actors.settings import options

    options.__dict__["DELAYED_LOOK_NS"] = LOOK_NS
    # `zsq serve` begins the forkserver after it has read its options. Here they have no secrets, so
    # its imports can begin at once, on another core. All processes have the clock from this one.
    forkserver.begin()
    threading.Thread(target=_end_with_parent, name="zsq test", daemon=True).start()
    from ..cli import main as zsq

    zsq()


if __name__ == "__main__":
    main()
