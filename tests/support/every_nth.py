"""Plugin of pytest that runs every nth test, so that several processes share the tests of a file.

$EVERY_NTH has the number of this process and the number of processes, as `0/4`.
"""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    first, step = map(int, os.environ["EVERY_NTH"].split("/"))
    chosen = items[first::step]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen
