"""Settings for all tests: how hypothesis searches, and which tests `./scripts/test --fast` leaves
out.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator
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
# A JVM of Spark lives for a minute or two in a test. In that time the optimizing compiler and the
# parallel garbage collector cost more than they gain: half of the processor time of those tests.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
)

settings.load_profile("fast" if "ZSQ_TEST_FAST" in os.environ else "zsq")

# The tests in these folders start brokers, Spark or hundreds of recoveries. They are slow, except
# for those that are marked `smoke`.
SLOW_FOLDERS: Final = frozenset(
    {
        "attacks",
        "compat",
        "edges",
        "integrations",
        "process",
        "spark",
        "spark_cluster",
        "spark_versions",
    }
)
SLOW_FILES: Final = re.compile(
    r"crash|damage|faults|flips|merging|moves|reads|bad_files|fsck|disk_queue_model|cli_"
    r"|zsqd|bench|test_calls|fuzz|simulation|test_runner|standby_model|parts_model|set_aside"
    r"|test_rescue|restore_bucket|test_follower|shipping_model|decoders|rot_goes_on"
)
# How a file says that all of its tests are slow.
SLOW_FILE_MARK: Final = re.compile(r"^pytestmark = \[?pytest\.mark\.slow", re.MULTILINE)
# Files with tests that take a minute or more. They are started first. Otherwise the other cores
# would wait for one of them at the end.
LONG_FILES: Final = re.compile(
    r"test_(driver_killed|torture(_bucket|_standby)?|soak|damage_many|two_hosts|broker_lost|tasks"
    r"|standby(_model)?|parts_model|set_aside"
    r"|slow_topic|versions|group_crash|fuzzed|alarms|simulation|bench_nsq|celery_suite"
    r"|batch|tutorial|pages)$"
)
ROOT: Final = Path(__file__).parent


def is_slow(path: Path) -> bool:
    """Return True if all tests of this file are slow, except for those that are marked `smoke`."""
    folder = path.relative_to(ROOT).parts[0] if path.is_relative_to(ROOT) else ""
    return folder in SLOW_FOLDERS or SLOW_FILES.search(path.stem) is not None


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Let `--fast` not even import a file whose tests are all slow: each worker imports all files
    that it collects, and the slow ones import Spark, databases and data frames.
    """
    if "ZSQ_TEST_FAST" not in os.environ or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    if SLOW_FILE_MARK.search(text) or (
        is_slow(collection_path) and "pytest.mark.smoke" not in text
    ):
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONG_FILES.search(item.path.stem) is None)
    for item in items:
        if is_slow(item.path) and item.get_closest_marker("smoke") is None:
            item.add_marker(pytest.mark.slow)


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
