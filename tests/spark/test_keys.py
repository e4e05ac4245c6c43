"""Tests of the keys of a Spark job: they are read on the driver, passed to the executors, and shown
nowhere.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import zmq

from zsq import UsageError
from zsq.apps.spark.data_source import ZsqDataSource
from zsq.transport.wire.address import parse
from zsq.transport.wire.credentials import load

PUBLIC, SECRET = (key.decode() for key in zmq.curve_keypair())
OPTIONS = {"topic": "clicks", "url": "tcp://127.0.0.1:1"}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "spark.key"
    file.write_text(f'public = "{PUBLIC}"\nsecret = "{SECRET}"\nserver = "{PUBLIC}"\n')
    file.chmod(0o600)
    return file


@pytest.mark.parametrize("way", ["option", "environment"])
def test_executors_get_what_the_driver_read(
    key_file: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "environment":
        monkeypatch.setenv("ZSQ_KEY_FILE", str(key_file))
    source = ZsqDataSource(OPTIONS | ({"keyfile": str(key_file)} if way == "option" else {}))
    expected = load(str(key_file))
    for options in (
        source._source(False),
        source._source(True),
        source._sink(False),
        source._sink(True),
    ):
        carried = pickle.loads(pickle.dumps(options))
        monkeypatch.setenv("ZSQ_KEY_FILE", "/on/the/executor")
        assert parse(carried.url, carried.keys).credentials == expected
        monkeypatch.setenv("ZSQ_KEY_FILE", str(key_file))
        assert SECRET not in repr(options)


def test_without_keys_an_executor_looks_for_none_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    carried = pickle.loads(pickle.dumps(ZsqDataSource(OPTIONS)._source(False)))
    monkeypatch.setenv("ZSQ_KEY_FILE", "/on/the/executor")
    assert parse(carried.url, carried.keys).credentials is None


def test_a_key_file_that_is_none_is_told_on_the_driver(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        ZsqDataSource(OPTIONS | {"keyFile": str(tmp_path / "missing")})._sink(False)
