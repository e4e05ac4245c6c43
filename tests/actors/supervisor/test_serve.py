"""Test of how a data directory is served: by one broker at a time, and as long as that
broker runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from zsq.actors.runtime import logs
from zsq.actors.settings.options import ServeOptions
from zsq.actors.supervisor import serve as module
from zsq.actors.supervisor.serve import serve
from zsq.storage.errors import Locked
from zsq.storage.files import Files


def test_a_data_directory_is_served_by_one_broker_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second broker reports which process uses the directory, and changes nothing. Two brokers
    would give the same offsets to different messages.
    """
    ran: list[str] = []

    class Supervisor:
        state = SimpleNamespace(options=ServeOptions(tmp_path))
        slept: Mapping[str, Any] = MappingProxyType({})

        def __init__(self, *_: Any) -> None: ...

        def run(self) -> int:
            with pytest.raises(Locked):
                Files().lock(str(data_dir / "lock"))
            ran.append("first")
            assert serve(ServeOptions(data_dir)) == 1
            return 0

    monkeypatch.setattr(module, "Supervisor", Supervisor)
    monkeypatch.setattr(module, "set_title", lambda title: None)
    monkeypatch.setattr(logs, "set_up", lambda *_: None)
    data_dir = tmp_path / "data"
    for _ in range(2):
        ran.clear()
        assert serve(ServeOptions(data_dir)) == 0
        assert ran == ["first"]
        assert (
            f"{data_dir} is in use by another `zsq serve` (pid {os.getpid()})"
            in capsys.readouterr().err
        )
