"""zsq keys: create key pairs and tokens for a broker with authentication.

Secrets go into files that only their owner can read. A public key need not be secret. The broker
keeps only a hash of a token, so the token is shown only once, here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from ..output import json_option, tell

TOKEN_BYTES: Final = 32
TOKEN_PREFIX: Final = "zsq_"  # lets a reader of a log recognise a token
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group()
def keys() -> None:
    """Create key pairs and tokens for a broker with authentication; see docs/security.md.

    Once for the broker: `zsq keys server broker.key`, then start it with --curve-key broker.key
    --access access.toml. For each client: `zsq keys client etl.key --server broker.key.pub`. Put
    its public key into the access file, and start the client with --key-file etl.key, ZSQ_KEY_FILE
    or key_file=.
    """


@keys.command("server")
@click.argument("file", type=_FILE)
@json_option
def keys_server(file: Path, as_json: bool) -> None:
    """Create the broker's key pair: FILE, its secret key, for --curve-key, and FILE.pub, from which
    client keys are made.
    """
    public, secret = _pair()
    beside = file.with_name(file.name + ".pub")
    for path in (file, beside):
        _check_new(path)
    _write(
        file,
        "The key pair of a ZSQ broker, for zsq serve --curve-key. Keep it secret.",
        {"public": public, "secret": secret},
    )
    _write(
        beside,
        "The public key of a ZSQ broker, for zsq keys client --server.",
        {"public": public},
        0o644,
    )
    if as_json:
        tell({"file": str(file), "public_file": str(beside), "public": public})
    else:
        click.echo(
            f"{file}: for zsq serve --curve-key {file}; keep it secret\n{beside}: for zsq keys "
            f"client --server {beside}"
        )


@keys.command("client")
@click.argument("file", type=_FILE)
@click.option(
    "--server",
    required=True,
    metavar="FILE|KEY",
    help="The broker's public key: its .pub file, or the 40 characters of the key.",
)
@json_option
def keys_client(file: Path, server: str, as_json: bool) -> None:
    """Create FILE for a client: its key pair, and the broker's public key, by which it identifies
    the broker.

    Run it on the client's machine. Only the public key, which is printed, must go to the
    administrator of the access file.
    """
    from ....transport.wire.credentials import is_key, read_key_file

    known = server if is_key(server) else read_key_file(server, ("public",))["public"]
    public, secret = _pair()
    _check_new(file)
    caption = "The keys of a ZSQ client, for --key-file, ZSQ_KEY_FILE or key_file=. Keep it secret."
    _write(file, caption, {"public": public, "secret": secret, "server": known})
    if as_json:
        tell({"file": str(file), "public": public, "server": known})
    else:
        click.echo(f"{file}: keep it secret. {_access_lines(public)}")


@keys.command("token")
@json_option
def keys_token(as_json: bool) -> None:
    """Create a token for HTTP and NSQ: the token on standard output, only once, and the access file
    line on standard error.
    """
    import secrets

    from ....actors.security.access import token_hash

    token = TOKEN_PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    if as_json:
        tell({"token": token, "hash": token_hash(token)})
        return
    click.echo(token)
    click.echo(
        f'Add to the broker\'s access file, below [users.NAME]:\ntokens = ["{token_hash(token)}"]',
        err=True,
    )


@keys.command("show")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def keys_show(file: Path, as_json: bool) -> None:
    """Show the public keys in FILE, and for a client's FILE the line for the access file. Secret
    keys are not shown.
    """
    from ....transport.errors import UsageError
    from ....transport.wire.credentials import read_key_file

    public = read_key_file(str(file), ("public",))
    with contextlib.suppress(UsageError):  # only the file of a client has this key
        public |= read_key_file(str(file), ("server",))
    if as_json:
        tell(public)
    else:
        click.echo("\n".join(f"{name} = {value}" for name, value in public.items()))
        if "server" in public:
            click.echo(_access_lines(public["public"]))


def _access_lines(public: str) -> str:
    return f'Add to the broker\'s access file, below [users.NAME]:\ncurve = ["{public}"]'


def _pair() -> tuple[str, str]:
    import zmq

    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def _check_new(file: Path) -> None:
    if os.path.lexists(file):
        raise click.UsageError(
            f"{file} exists and is not overwritten; choose another name, or remove it first"
        )


def _write(file: Path, caption: str, fields: Mapping[str, str], mode: int = 0o600) -> None:
    lines = [f"# {caption}", *(f'{name} = "{value}"' for name, value in fields.items())]
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as out:
        out.write("\n".join(lines) + "\n")
        out.flush()
        os.fsync(out.fileno())
