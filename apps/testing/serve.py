"""The process of a test broker: `zsq serve` with a clock that the test can move.

    python -m zsq.apps.testing.serve serve --data-dir DIR ...

The process ends when its standard input is closed. So the broker ends with the test process,
however that process ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from . import clock


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> NoReturn:
    clock.install(Path(os.environ[clock.OFFSET_FILE]))
    threading.Thread(target=_end_with_parent, name="zsq test", daemon=True).start()
    from ...actors.runtime import forkserver
    from ..cli import main as zsq

    forkserver.PRELOADED.insert(0, f"{__package__}.preload")
    zsq()


if __name__ == "__main__":
    main()
