"""Tests of what a standby removes from a data directory, and what it does not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from zsq.actors.bucket.standby import role
from zsq.actors.bucket.standby.role import StandbyTerm, remove_old
from zsq.actors.bucket.standby.takeover import UNFINISHED_NAME, Standing, mark_unfinished
from zsq.actors.settings.options import ServeOptions
from zsq.actors.supervisor.topics.registry import OLD_NAME, REGISTRY_NAME
from zsq.storage.bucket.bucket import BucketAway
from zsq.storage.bucket.shipping.tick_format import STANDBY_NAME
from zsq.storage.errors import ForeignDirectory
from zsq.storage.files import Files


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    (tmp_path / "topics" / "000001").mkdir(parents=True)
    (tmp_path / "topics" / "000001" / "0.chunk").write_bytes(b"messages")
    (tmp_path / "rescue").mkdir()
    (tmp_path / "lock").touch()
    return tmp_path


@pytest.mark.parametrize("names", [(), (OLD_NAME,)])
def test_the_topics_of_a_broker_without_a_registry_are_not_removed(
    data_dir: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        (data_dir / name).touch()
    with pytest.raises(ForeignDirectory, match="has topics, but no"):
        remove_old(Files(), data_dir)
    assert (data_dir / "topics" / "000001" / "0.chunk").exists()


def test_what_an_unfinished_takeover_left_is_removed(data_dir: Path) -> None:
    mark_unfinished(Files(), data_dir)
    remove_old(Files(), data_dir)
    assert sorted(path.name for path in data_dir.iterdir()) == ["lock", "rescue"]


def test_a_removal_that_was_interrupted_goes_on(data_dir: Path) -> None:
    """The registry goes first, and without it nothing would tell that the rest may go too."""
    (data_dir / REGISTRY_NAME).touch()

    class Interrupted(Files):
        def remove_tree(self, path: str) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remove_old(Interrupted(), data_dir)
    assert not (data_dir / REGISTRY_NAME).exists()
    assert (data_dir / UNFINISHED_NAME).exists()
    remove_old(Files(), data_dir)
    assert sorted(path.name for path in data_dir.iterdir()) == ["lock", "rescue"]


def test_a_former_primary_waits_for_a_bucket_that_fails(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It must not end: what it has not shipped is set aside when the bucket answers."""
    tries: list[str] = []

    def set_aside(*_: object) -> object:
        tries.append("try")
        if len(tries) < 3:
            raise BucketAway("no answer")
        return SimpleNamespace(sentence="set aside 7 messages")

    monkeypatch.setattr(role, "PAUSE_S", 0.0)
    monkeypatch.setattr(role, "set_aside_broker", set_aside)
    term = StandbyTerm(ServeOptions(data_dir), is_first=False)
    assert term.set_aside(cast("Any", None), Standing(False, False, "copy 1"))
    assert len(tries) == 3
    assert "set aside 7 messages" in capfd.readouterr().err

    tries.clear()
    term.ends.set()
    assert not term.set_aside(cast("Any", None), Standing(False, False, "copy 1"))
    assert len(tries) == 1, "a signal ends it"


def test_a_standby_that_finds_an_empty_bucket_does_not_begin_a_new_broker(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The store may not be mounted. With an empty directory, it begins one."""
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    url = f"file://{bucket}"
    for name, has_followed in (("new", False), ("old", True)):
        data_dir = tmp_path / name
        data_dir.mkdir(mode=0o700)
        if has_followed:
            (data_dir / STANDBY_NAME).touch()
        code = StandbyTerm(ServeOptions(data_dir, bucket=url), is_first=True).run()
        assert code == (1 if has_followed else None)
    said = capfd.readouterr().err
    assert said.count("this broker is the primary of a new one") == 1
    assert f"{tmp_path}/old is the directory of a standby: if the store is not mounted" in said
