"""Tests of files that other users may change or read: they are refused as PostgreSQL does, with the
path, the mode and the chmod command.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zmq

from zsq.actors.security.access import AccessError
from zsq.actors.security.curve import load_rules
from zsq.transport.errors import UsageError
from zsq.transport.nsq.tls import server_context
from zsq.transport.wire.credentials import open_to_others, read_key_file

OWN, ROOT, OTHER = 1_000, 0, 1_001
MOUNTED = "for a mounted secret: defaultMode: 0440 and fsGroup in Kubernetes, mode: 0440 in Docker"
FILE, FOLDER = stat.S_IFREG, stat.S_IFDIR


@pytest.mark.parametrize(
    ("owner", "mode", "secret", "said"),
    [
        (OWN, FILE | 0o644, False, ""),
        (
            OWN,
            FILE | 0o664,
            False,
            "/a b has mode 0664, so that other users may change it: chmod go-w '/a b'",
        ),
        (
            OWN,
            FILE | 0o646,
            False,
            "/a b has mode 0646, so that other users may change it: chmod go-w '/a b'",
        ),
        (ROOT, FILE | 0o644, False, ""),
        (
            OTHER,
            FILE | 0o600,
            False,
            "/a b belongs to user 1001, not to this user (1000) or root: chown 1000 '/a b'",
        ),
        (OWN, FOLDER | 0o755, False, ""),
        (
            OWN,
            FOLDER | 0o775,
            False,
            "/a b has mode 0775, so that other users may change it: chmod 700 '/a b'",
        ),
        (
            OWN,
            FOLDER | 0o1777,
            False,
            "/a b has mode 1777, so that other users may change it: chmod 700 '/a b'",
        ),
        (OWN, FILE | 0o600, True, ""),
        (
            OWN,
            FILE | 0o640,
            True,
            "/a b has mode 0640, so that other users may read it: chmod 600 '/a b'",
        ),
        (
            OWN,
            FILE | 0o604,
            True,
            "/a b has mode 0604, so that other users may read it: chmod 600 '/a b'",
        ),
        (ROOT, FILE | 0o640, True, ""),
        (
            ROOT,
            FILE | 0o644,
            True,
            f"/a b has mode 0644, so that other users may read it: chmod 640 '/a b' ({MOUNTED})",
        ),
        (
            ROOT,
            FILE | 0o660,
            True,
            f"/a b has mode 0660, so that other users may change it: chmod 640 '/a b' ({MOUNTED})",
        ),
        (
            OTHER,
            FILE | 0o600,
            True,
            "/a b belongs to user 1001, not to this user (1000) or root: chown 1000 '/a b'",
        ),
    ],
)
def test_a_file_that_other_users_may_change_or_read_is_refused(
    owner: int, mode: int, secret: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: OWN)
    found = cast("Any", SimpleNamespace(st_uid=owner, st_mode=mode))
    assert open_to_others("/a b", found, secret=secret) == said


@pytest.mark.parametrize("mode", [0o400, 0o440, 0o640])
def test_a_mounted_secret_may_be_read_by_its_group_also_when_root_runs_the_broker(
    monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = cast("Any", SimpleNamespace(st_uid=0, st_mode=FILE | mode))
    assert open_to_others("/k", found, secret=True) == ""


def test_a_secret_volume_of_kubernetes_is_read_through_its_links(tmp_path: Path) -> None:
    folder = tmp_path / "..2026_11_29"
    folder.mkdir()
    public, secret = (half.decode() for half in zmq.curve_keypair())
    (folder / "broker.key").write_text(f'public = "{public}"\nsecret = "{secret}"\n')
    (folder / "broker.key").chmod(0o400)
    (tmp_path / "..data").symlink_to(folder.name)
    (tmp_path / "broker.key").symlink_to("..data/broker.key")
    found = read_key_file(str(tmp_path / "broker.key"), ("public", "secret"))
    assert found == {"public": public, "secret": secret}


def test_an_access_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    path.write_text('[anonymous]\nview = ["*"]\n')
    path.chmod(0o664)
    with pytest.raises(
        AccessError,
        match=r"the access file .*access.toml has mode 0664, "
        r"so that other users may change it: chmod go-w",
    ):
        load_rules(str(path))
    path.chmod(0o644)
    load_rules(str(path))


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    key.write_text("key")
    cert.write_text("cert")
    key.chmod(0o644)
    with pytest.raises(
        UsageError,
        match=r"tls-key .*key.pem has mode 0644, so that other users may read it: chmod 6[04]0",
    ):
        server_context(cert=str(cert), key=str(key))
    key.chmod(0o600)
    with pytest.raises(UsageError, match="must be a certificate and its key"):
        server_context(cert=str(cert), key=str(key))


def test_a_curve_key_that_the_group_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.key"
    z85 = "a" * 40
    path.write_text(f'public = "{z85}"\nsecret = "{z85}"\n')
    path.chmod(0o644)
    with pytest.raises(
        UsageError,
        match=r"the key file .*x.key has mode 0644, so that other users may read it: chmod 6[04]0",
    ):
        read_key_file(str(path), ("public", "secret"))
