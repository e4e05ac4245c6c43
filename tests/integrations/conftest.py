"""Fixtures for the tests with real task queues: a broker, and a check for the frameworks."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.broker import Broker
from support.topic_names import topic_name_of

if TYPE_CHECKING:
    from support.celery_workers import Workers

EXTRA = "install the extra test-integrations, as ./scripts/test does"
FRAMEWORKS = {
    "test_kombu": "kombu",
    "test_kombu_patterns": "kombu",
    "test_kombu_suite": "kombu",
    "test_celery": "celery",
    "test_celery_batches": "celery_batches",
    "test_celery_endings": "celery",
    "test_celery_revokes": "celery",
    "test_celery_suite": "celery",
    "test_flower": "flower",
    "test_dramatiq": "dramatiq",
    "test_dramatiq_suite": "dramatiq",
    "test_dramatiq_worker": "dramatiq",
    "test_task_backoff": "taskiq",
    "test_taskiq": "taskiq",
    "test_taskiq_results": "taskiq",
    "test_django": "django",
}
# celery-batches 0.11 says that it needs Celery before 5.7, and the other tests run with 5.7. So the
# extra does not have it. `pip install --no-deps celery-batches` installs it for its test.
OPTIONAL = frozenset({"celery_batches"})
pytestmark = pytest.mark.slow


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks of Kombu's own tests. They mean nothing here."""
    for mark in ("env(name): the server that the test needs", "flaky(reruns): how often to repeat"):
        config.addinivalue_line("markers", mark)


def pytest_ignore_collect(collection_path: os.PathLike[str]) -> bool | None:
    """Do not import a test whose framework is not installed. In continuous integration it fails."""
    name = os.path.basename(collection_path).removesuffix(".py")
    framework = FRAMEWORKS.get(name)
    missing = framework is not None and importlib.util.find_spec(framework) is None
    if missing and "CI" in os.environ and framework not in OPTIONAL:
        raise pytest.UsageError(f"{framework} is not installed; {EXTRA}")
    return True if missing else None


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("tasks") / "data") as broker:
        yield broker


@pytest.fixture
def workers(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> Iterator[Workers]:
    """Return workers of Celery on a queue of this test. None of them runs yet."""
    from support.celery_workers import Workers

    found = Workers(tmp_path, broker, topic_name_of(request.node.name)[:30])
    try:
        yield found
    finally:
        found.close()
