"""Tests of the permissions that `zsq forward` needs, and of two key files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.broker import Broker
from support.forwarding import forward
from support.keys import Keyring

import zsq

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

SOURCE = """
[users.owner]
curve = ["KEY owner"]
publish = ["*"]
subscribe = ["*"]
admin = ["*"]

[users.mirror]
curve = ["KEY mirror"]
subscribe = ["clicks"]
admin = ["clicks"]

[users.reader]
curve = ["KEY reader"]
subscribe = ["clicks"]
"""
TARGET = """
[users.owner]
curve = ["KEY owner"]
subscribe = ["*"]

[users.writer]
curve = ["KEY writer"]
publish = ["clicks"]
"""


def test_a_mirror_needs_few_permissions(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    at_a = Keyring(tmp_path / "a", ["owner", "mirror", "reader"])
    at_b = Keyring(tmp_path / "b", ["owner", "writer"])
    at_a.allow(SOURCE)
    at_b.allow(TARGET)
    with (
        Broker(tmp_path / "source", *at_a.options()) as source,
        Broker(tmp_path / "target", *at_b.options()) as target,
    ):
        with zsq.Producer(source.tcp, key_file=str(at_a.file("owner"))) as producer:
            producer.publish_many("clicks", [b"0", b"1"])
        line = ("clicks/m", f"{target.tcp}/clicks", source.tcp)
        keys = ("--to-key-file", str(at_b.file("writer")), "--key-file")
        said = forward(*line, *keys, str(at_a.file("reader")), code=1)
        assert "E_FORBIDDEN" in said
        assert "admin" in said
        assert "2 messages forwarded" in forward(*line, *keys, str(at_a.file("mirror")))
        other = ("clicks/m", f"{target.tcp}/other", source.tcp)
        assert "E_FORBIDDEN" in forward(*other, *keys, str(at_a.file("mirror")), code=1)
        with zsq.Reader("clicks", url=target.tcp, key_file=str(at_b.file("owner"))) as reader:
            assert reader.bounds() == (0, 2)
        # Files need no more than a consumer does.
        folder = f"file:{tmp_path}/out"
        reads = ("--key-file", str(at_a.file("reader")))
        assert "2 messages" in forward("clicks/f", folder, source.tcp, "--start", "0", *reads)
