"""Fixture for tests of commands: `zsq`, which runs a command with a broker of the module."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from support.zsq_command import Zsq, run_text

from local_setup.broker import temporary_broker


@pytest.fixture(scope="module")
def zsq() -> Iterator[Zsq]:
    with temporary_broker("--no-listen", prefix="zsq-test-") as broker:

        def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
            return run_text(*arguments, stdin=stdin, ZSQ_URL=broker.url)

        yield run
