"""Tests of the generated calls of Admin: both clients have each call, and the files are current."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zsq
from zsq.transport.client.core import administration
from zsq.transport.client.core.asking import Asking

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


NONE: Any = None  # a program may pass it for an argument that it leaves out


@pytest.mark.parametrize(
    ("with_none", "without"),
    [
        (administration.alarm_ack(NONE), administration.alarm_ack()),
        (administration.alarm_unack(NONE), administration.alarm_unack()),
        (administration.create_topic("t", brokers=NONE), administration.create_topic("t")),
        (administration.add_parts("t", 2, brokers=NONE), administration.add_parts("t", 2)),
    ],
)
def test_none_stands_for_an_argument_that_is_left_out(
    with_none: Asking[object], without: Asking[object]
) -> None:
    assert next(with_none).make(1) == next(without).make(1)
