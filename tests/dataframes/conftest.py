"""Fixtures of the tests of Arrow and Parquet: a broker for each module, and a topic for each test.

The extra `test-data` installs the libraries. Without it, the other tests still run. Continuous
integration leaves out only what --fast leaves out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from support.broker import Broker
from support.topic import Topic

NEEDED = ("pyarrow", "polars", "duckdb", "pandas", "pyiceberg")
if ("CI" not in os.environ or os.environ.get("ZSQ_TEST_SUITE") == "fast") and not all(
    map(find_spec, NEEDED)
):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("zsq") / "data") as broker:
        yield broker


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> Topic:
    """Return a topic that does not exist yet."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower()).strip("-")
    return Topic(broker, name[-60:].strip("-"))
