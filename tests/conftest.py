"""Settings for all tests: how hypothesis searches, and which files belong to a suite.

- `./scripts/test --fast` leaves out the tests with the marks `slow` and `long`.
- `./scripts/test` leaves out those with the mark `long`.
- `./scripts/test --long` runs only those.

A test has the mark of its function, its file or its folder. Each kind of long test has a small one
in the first two suites.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

# There is no deadline: a test that waits for the CPU on a busy machine is not slow. Continuous
# integration always uses the same examples, so that a failure there comes from the change under
# test. Elsewhere the examples are new each time. `--fast` tries fewer examples.
settings.register_profile(
    "zsq",
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "fast", settings.get_profile("zsq"), max_examples=10, stateful_step_count=20
)
# A test that gives the gateway's URL must use the gateway. Without this setting, clients of the
# same user would connect to the topics directly. tests/process/test_direct.py tests that.
os.environ["ZSQ_TRANSPORT"] = "tcp"
# pytest-xdist sets the width of its terminal, and `zsq` would break its lines there.
os.environ.pop("COLUMNS", None)
# A JVM of Spark lives for a minute or two in a test. In that time the optimizing compiler and the
# parallel garbage collector cost more than they gain: half of the processor time of those tests.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
)

SUITE: Final = os.environ.get("ZSQ_TEST_SUITE", "")
settings.load_profile("fast" if SUITE == "fast" else "zsq")

# A file or the conftest.py of a folder marks all its tests in this way.
MARK: Final = re.compile(r"^pytestmark = \[?pytest\.mark\.(slow|long)\b", re.MULTILINE)


@cache
def mark_of_folder(folder: Path) -> str:
    """Return the mark that the folder's conftest.py gives to all tests of the folder, or ""."""
    file = folder / "conftest.py"
    mark = MARK.search(file.read_text()) if file.exists() else None
    return mark[1] if mark else ""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Do not import a file none of whose tests belongs to the suite. Each worker imports all files
    that it collects, and the slow ones import Spark, databases and data frames.
    """
    if not SUITE or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text()
    mark = MARK.search(text)
    marks = {mark[1] if mark else "", mark_of_folder(collection_path.parent)} - {""}
    if SUITE == "fast":
        belongs = not marks or "pytest.mark.smoke" in text
    elif SUITE == "change":
        belongs = "long" not in marks
    else:
        belongs = "long" in marks or "pytest.mark.long" in text
    return None if belongs else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the mark of its folder. Start the files with long tests first: the other cores
    would wait for one of them at the end. They give their tests more time than usual. Of the other
    files, those with slow tests come first.
    """
    weights: dict[Path, tuple[float, bool]] = {}
    for item in items:
        mark = mark_of_folder(item.path.parent)
        is_smoke = item.get_closest_marker("smoke") is not None
        if mark == "long" or (mark == "slow" and not is_smoke):
            item.add_marker(mark)
        timeout = item.get_closest_marker("timeout")
        allowed = float(timeout.args[0]) if timeout else 0.0
        weight = allowed, item.get_closest_marker("slow") is not None
        weights[item.path] = max(weight, weights.get(item.path, weight))
    items.sort(key=lambda item: weights[item.path], reverse=True)


@pytest.fixture(autouse=True)
def _log_as_found() -> Iterator[None]:
    """Restore the logger of the product after each test. A simulated broker replaces its
    handlers.
    """
    log = logging.getLogger("zsq")
    found = log.level, log.propagate, log.handlers[:]
    yield
    log.setLevel(found[0])
    log.propagate, log.handlers = found[1:]


@pytest.fixture(autouse=True, scope="module")
def _io_thread_works() -> Iterator[None]:
    """Find the module whose tests stop ZeroMQ's I/O thread in this process, for example by a
    monitor that nobody reads, or by a descriptor that is closed twice. Otherwise, tests of other
    modules would fail later. (A check after each test would add 6% to the time of the fast tests.)
    """
    yield
    if "zsq.transport.wire.sockets" in sys.modules:
        from support import io_thread

        io_thread.check()
