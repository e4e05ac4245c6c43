"""Fixtures of the HTTP application with a fake broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.http_api import Site


@pytest.fixture
def site() -> Iterator[Site]:
    one = Site()
    try:
        yield one
    finally:
        one.close()
