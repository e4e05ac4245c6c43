"""Tests of `zsq keys`, and of the errors of `zsq serve` when keys and access files do not match."""

from __future__ import annotations

import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from zsq.actors.security.access import Access
from zsq.apps.cli.app import app
from zsq.apps.cli.options import with_broker
from zsq.apps.cli.run.broker_options import given_security
from zsq.apps.cli.run.option_table import GivenOptions
from zsq.transport.errors import UsageError
from zsq.transport.wire.credentials import load, resolve

pytestmark = pytest.mark.slow


def zsq(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.fixture
def server(tmp_path: Path) -> Path:
    file = tmp_path / "broker.key"
    assert zsq("keys", "server", file).exit_code == 0
    return file


def secrets_in(*files: Path) -> list[str]:
    return [tomllib.loads(file.read_text())["secret"] for file in files]


def test_secrets_go_into_files_that_only_their_owner_reads_and_nowhere_else(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        server, client = tmp_path / "broker.key", tmp_path / "etl.key"
        said = [
            zsq("keys", "server", server),
            zsq("keys", "client", client, "--server", f"{server}.pub"),
            zsq("keys", "show", client),
        ]
        said += [
            zsq("keys", "show", server, "--json"),
            zsq("keys", "client", tmp_path / "b.key", "--server", f"{server}.pub", "--json"),
        ]
    finally:
        os.umask(before)
    assert [one.exit_code for one in said] == [0] * 5
    assert (server.stat().st_mode & 0o777, client.stat().st_mode & 0o777) == (0o600, 0o600)
    for secret in secrets_in(server, client, tmp_path / "b.key"):
        assert not any(secret in one.output for one in said)
    assert "secret" not in tomllib.loads((tmp_path / "broker.key.pub").read_text())


def test_printed_lines_for_the_access_file_can_be_pasted_unchanged(
    server: Path, tmp_path: Path
) -> None:
    client = zsq(
        "keys", "client", tmp_path / "etl.key", "--server", f"{server}.pub"
    ).output.splitlines()[-1]
    assert zsq("keys", "show", tmp_path / "etl.key").output.splitlines()[-1] == client
    assert "curve" not in zsq("keys", "show", server).output
    token = CliRunner().invoke(app, ["keys", "token"])
    access = Access.parse(f"[users.etl]\n{client}\n{token.stderr.splitlines()[-1]}\n")
    found = access.by_curve(load(str(tmp_path / "etl.key")).public)
    assert found is not None
    assert access.by_token(token.stdout.strip()) is found
    answer = json.loads(zsq("keys", "token", "--json").stdout)
    assert (
        Access.parse(f'[users.etl]\ntokens = ["{answer["hash"]}"]').by_token(answer["token"])
        is not None
    )


def test_the_brokers_key_may_be_given_as_it_is(server: Path, tmp_path: Path) -> None:
    key = json.loads(zsq("keys", "show", server, "--json").stdout)["public"]
    assert zsq("keys", "client", tmp_path / "etl.key", "--server", key).exit_code == 0
    assert load(str(tmp_path / "etl.key")).server == key


def test_no_key_is_written_over_anything(server: Path, tmp_path: Path) -> None:
    before = server.read_bytes()
    for arguments in (("server", server), ("client", server, "--server", f"{server}.pub")):
        found = zsq("keys", *arguments)
        assert found.exit_code == 2
        assert "exists" in found.output
    (tmp_path / "other.pub").symlink_to(tmp_path / "nowhere")
    assert zsq("keys", "server", tmp_path / "other").exit_code == 2
    assert not (tmp_path / "other").exists()
    assert server.read_bytes() == before


def test_a_key_file_of_the_command_line_holds_for_one_command(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ZSQ_KEY_FILE", raising=False)
    mine = tmp_path / "etl.key"
    zsq("keys", "client", mine, "--server", f"{server}.pub")

    @click.command()
    @with_broker
    def look(url: str, timeout: float) -> None:
        found = resolve(None)
        click.echo(found.source if found else "none")

    @click.group()
    @click.option("--key-file")
    def root(key_file: str | None) -> None: ...

    root.add_command(look)
    run = CliRunner().invoke
    assert run(look, ["--key-file", str(mine)]).output.strip() == str(mine)
    assert run(root, ["--key-file", str(mine), "look"]).output.strip() == str(mine)
    assert run(root, ["look"]).output.strip() == "none"
    assert "ZSQ_KEY_FILE" not in os.environ
    monkeypatch.setenv("ZSQ_KEY_FILE", "/other")
    assert run(look, ["--key-file", str(mine)]).output.strip() == str(mine)
    assert os.environ["ZSQ_KEY_FILE"] == "/other"


@pytest.mark.parametrize(
    ("access", "key", "no_listen", "said"),
    [
        ("", True, False, "a key pair alone admits every client"),
        ("", True, True, "a key pair alone admits every client"),
        ("[users.a]", False, False, "no client could connect"),
        ("[users.a]\nx = 1", False, True, "x is unknown"),
        ("[users.a]", True, False, None),
        ("[users.a]", False, True, None),
        ("[anonymous]", False, False, None),
        ("", False, False, None),
    ],
)
def test_keys_and_rules_that_do_not_go_together_are_refused_at_the_start(
    server: Path, tmp_path: Path, access: str, key: bool, no_listen: bool, said: str | None
) -> None:
    file = tmp_path / "access.toml"
    file.write_text(access)
    given = GivenOptions(
        access=file if access else None, curve_key=server if key else None, no_listen=no_listen
    )
    if said is None:
        found = given_security(given)
        assert (found.access_file, found.curve_key_file) == (
            str(file) if access else "",
            str(server) if key else "",
        )
        return
    with pytest.raises(click.UsageError, match=said):
        given_security(given)


def test_a_clients_file_is_no_key_pair_of_a_broker_that_is_open_to_all(
    server: Path, tmp_path: Path
) -> None:
    (tmp_path / "access.toml").write_text("[anonymous]")
    given = GivenOptions(access=tmp_path / "access.toml", curve_key=Path(f"{server}.pub"))
    with pytest.raises(UsageError, match="no `secret`"):
        given_security(given)
    server.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        given_security(replace(given, curve_key=server))


def test_a_key_is_on_disk_when_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the power fails, the public half may be in an access file already. Then the secret half
    must be on disk too, because it cannot be created again.
    """
    synced: list[tuple[str, int]] = []

    def fsync(fd: int) -> None:
        synced.append((os.path.realpath(f"/proc/self/fd/{fd}"), os.fstat(fd).st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    assert zsq("keys", "server", tmp_path / "broker.key").exit_code == 0
    assert sorted(synced) == sorted((str(file), file.stat().st_size) for file in tmp_path.iterdir())
