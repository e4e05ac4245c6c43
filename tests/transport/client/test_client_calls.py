"""Tests of the generated calls of Admin: both clients have each call, and the files are current."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import zsq
from zsq.transport.client.core import administration

ROOT = Path(__file__).resolve().parents[3]
CALLS = [
    (name, call)
    for name, call in inspect.getmembers(administration, inspect.isfunction)
    if not name.startswith("_") and call.__module__ == administration.__name__
]


def test_the_generated_files_are_current() -> None:
    command = [sys.executable, "scripts/clients.py", "--check"]
    check = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert check.returncode == 0, check.stdout + check.stderr


@pytest.mark.parametrize(("name", "call"), CALLS, ids=[name for name, _ in CALLS])
def test_both_clients_have_each_call_with_its_parameters_and_its_docstring(
    name: str, call: object
) -> None:
    for client in (zsq.Admin, zsq.aio.Admin):
        method = getattr(client, name)
        assert inspect.getdoc(method) == inspect.getdoc(call)
        expected = list(inspect.signature(call).parameters.values())  # type: ignore[arg-type]
        assert list(inspect.signature(method).parameters.values())[1:] == expected
    assert inspect.iscoroutinefunction(getattr(zsq.aio.Admin, name))
