"""Tests of the directories of `zsq serve`: that of its data, and one for temporary files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from support.broker import Broker
from support.zsq_command import run_text

import zsq
from zsq.actors.supervisor.topics.registry import OLD_NAME, REGISTRY_NAME
from zsq.actors.supervisor.topics.registry import TEMPORARY_NAME as REGISTERED
from zsq.apps.cli.run.serve import DATA_NAMES, TEMPORARY_NAME, choose_temporary_directory
from zsq.apps.doctor import disk
from zsq.storage.bucket.shipping.tick_format import STANDBY_NAME
from zsq.transport.errors import UsageError


def test_the_names_are_those_of_the_broker() -> None:
    assert DATA_NAMES == (REGISTRY_NAME, OLD_NAME, STANDBY_NAME)
    assert TEMPORARY_NAME == REGISTERED


def test_an_unmounted_volume_does_not_become_a_new_broker(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker:
        with zsq.Producer(broker.tcp) as producer:
            producer.publish("t", b"x")
        assert broker.stop() == 0
        broker.extra += ("--must-exist",)
        broker.start()  # its data is there
        assert broker.stop() == 0
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    (tmp_path / "data").mkdir()  # the mount point
    ended = run_text("serve", "--must-exist", "--data-dir", str(tmp_path / "data"))
    assert ended.returncode == 2
    assert "has no data of a broker, and --must-exist is given: mount its disk" in ended.stderr
    assert list((tmp_path / "data").iterdir()) == []


@pytest.fixture
def no_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nothing)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", "/nowhere")


@pytest.mark.usefixtures("no_temporary")
def test_temporary_files_go_to_the_data_directory_where_there_is_no_other(tmp_path: Path) -> None:
    choose_temporary_directory(tmp_path / "data")
    assert tempfile.tempdir == os.environ["TMPDIR"] == str(tmp_path / "data" / "tmp")
    assert os.stat(tmp_path / "data" / "tmp").st_mode & 0o777 == 0o700
    [found] = disk.temporary(tmp_path / "data")
    assert f"the broker uses {tmp_path}/data/tmp" in found.text


@pytest.mark.usefixtures("no_temporary")
def test_the_paths_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"/gone/data/tmp .*: set TMPDIR"):
        choose_temporary_directory(tmp_path / "gone" / "data")
