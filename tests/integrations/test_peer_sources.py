"""Tests of how the source of another project is fetched, where no package index can be reached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import peer_sources
from support.peer_sources import source_of


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offline = {
        "XDG_CACHE_HOME": str(tmp_path),
        "PIP_CACHE_DIR": str(tmp_path / "pip"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:1/simple",
        "PIP_RETRIES": "0",
    }
    for name, value in offline.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)


def test_a_failed_download_skips_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"the source of pytest-.* not be downloaded"):
        source_of("pytest")


def test_a_failed_download_is_a_failure_in_continuous_integration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"the source of pytest-.* not be downloaded"):
        source_of("pytest")


def test_a_source_that_was_downloaded_is_used_again() -> None:
    folder = peer_sources.cache() / "sources" / f"pytest-{pytest.__version__}"
    folder.mkdir(parents=True)
    assert source_of("pytest") == folder
