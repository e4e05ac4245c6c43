"""Credentials: a client's keys for the ZeroMQ gateway, from a key file.

`key_file=`, `--key-file` and $ZSQ_KEY_FILE name the file. The keys are for CURVE, ZeroMQ's
encryption. The server proves its identity by its public key, which the client knows beforehand. The
client proves its identity by its own pair of keys. The file is TOML: `public`, `secret` and
`server`, each a key of 32 bytes written as 40 characters (Z85). The key file of a server has no
`server`. A key file that other users of the machine may read is refused (`open_to_others`). Error
texts never contain a secret key.
"""

from __future__ import annotations

import os
import shlex
import stat
import struct
from dataclasses import field
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from ..errors import E_BAD_KEY, UsageError
from ..records import Record, record
from ..system import user_id

__all__ = [
    "KEY_FILE_VARIABLE",
    "Credentials",
    "KeyFile",
    "is_key",
    "load",
    "open_to_others",
    "read_key_file",
    "resolve",
]

KEY_FILE_VARIABLE: Final = "ZSQ_KEY_FILE"
KEY_FILE_BYTES_MAX: Final = 64 * 1024
KEY_BYTES: Final = 32
KEY_CHARS: Final = 40  # Z85 writes four bytes as five characters


@record
class Credentials(Record):
    """A client's own keys, and the server key that it trusts.

    It can be pickled and sent to machines without the key file. Its repr does not contain the
    secret.
    """

    public: str
    secret: str = field(repr=False)
    server: str
    source: str = ""
    """The name of the key file, for error texts."""


KeyFile = str | os.PathLike[str] | Credentials | None


def resolve(key_file: KeyFile) -> Credentials | None:
    """Return the credentials for `key_file`.

    None means the file that $ZSQ_KEY_FILE names, if it is set. "" means no credentials. Raises
    `UsageError` (E_BAD_KEY) if the file contains no keys.
    """
    if isinstance(key_file, Credentials):
        return key_file
    if key_file is None:
        key_file = os.environ.get(KEY_FILE_VARIABLE, "")
    path = os.fspath(key_file)
    return load(path) if path else None


def load(path: str) -> Credentials:
    """Read a client's key file. Raises `UsageError` (E_BAD_KEY) if it is not valid."""
    fields = read_key_file(path, ("public", "secret", "server"))
    return Credentials(fields["public"], fields["secret"], fields["server"], path)


def read_key_file(path: str, names: tuple[str, ...]) -> dict[str, str]:
    """Return the keys with these names from a file.

    If `secret` is among the names, other users must have no access to the file, and `public` must
    belong to `secret`.
    """
    import tomllib  # most clients have no keys

    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(KEY_FILE_BYTES_MAX)
        fields: dict[str, object] = tomllib.loads(text.decode())
    except OSError as error:
        raise UsageError(
            E_BAD_KEY, f"the key file {path} cannot be read: {error.strerror or error}"
        ) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError):
        raise UsageError(
            E_BAD_KEY, f"{path} is not a key file; create one with `zsq keys`"
        ) from None
    keys: dict[str, str] = {}
    for name in names:
        value = fields.get(name)
        if not isinstance(value, str) or not is_key(value):
            reason = (
                f"has no `{name}`"
                if value is None
                else f"has no key of {KEY_CHARS} characters as `{name}`"
            )
            kind = (
                "it may be a server's key file, but each client needs its own"
                if "server" in names and "secret" in fields
                else "it may be another kind of file"
            )
            raise UsageError(E_BAD_KEY, f"{path} {reason}; {kind} (see `zsq keys --help`)")
        keys[name] = value
    if "secret" in names:
        if why := open_to_others(path, status, secret=True):
            raise UsageError(E_BAD_KEY, f"the key file {why}")
        if (
            "public" in names
            and zmq.curve_public(keys["secret"].encode()).decode() != keys["public"]
        ):
            raise UsageError(
                E_BAD_KEY,
                f"{path}: `public` does not belong to `secret`; make new keys with `zsq keys`",
            )
    return keys


def is_key(text: str) -> bool:
    """Return True if this is a key of KEY_BYTES, written as KEY_CHARS of Z85."""
    try:
        return len(z85.decode(text)) == KEY_BYTES
    # The text has a character outside of Z85, or five characters that stand for too large a number.
    except (
        KeyError,
        ValueError,
        struct.error,
    ):
        return False


def open_to_others(
    path: str | os.PathLike[str], status: os.stat_result, *, secret: bool = False
) -> str:
    """Return why other users could change this file or folder, and what to do about it.

    Return "" if they cannot. With `secret`, they must not be able to read it either. The rules are
    those of PostgreSQL: The owner must be this user or root. The group and others must not have the
    right to write. They must not have the right to read a secret either, except that the group may
    read a secret that belongs to root. So several services without root's rights can share the key
    of a certificate, and Kubernetes can mount it: with `fsGroup`, a secret's files belong to root,
    and their group may always read them, also if the broker runs as root. Windows has no such
    numbers and rights, so nothing is checked there.
    """
    user, owner, mode = user_id(), status.st_uid, stat.S_IMODE(status.st_mode)
    if user is None:
        return ""
    named = shlex.quote(os.fspath(path))
    if owner not in (user, 0):
        text = f"{path} belongs to user {owner}, not to this user ({user}) or root"
        return f"{text}: chown {user} {named}"
    of_root = owner == 0
    if not mode & (0o022 if not secret else 0o027 if of_root else 0o077):
        return ""
    mounted = (
        " (for a mounted secret: defaultMode: 0440 and fsGroup in Kubernetes, mode: 0440 in Docker)"
        if secret and of_root
        else ""
    )
    wanted = (
        ("640" if of_root and user else "600")
        if secret
        else "700"
        if stat.S_ISDIR(status.st_mode)
        else "go-w"
    )
    return (
        f"{path} has mode {mode:04o}, so that other users may "
        f"{'change' if mode & 0o022 else 'read'} it: chmod {wanted} {named}{mounted}"
    )
