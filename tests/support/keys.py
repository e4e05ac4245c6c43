"""CURVE keys and an access file for tests: one key pair for the broker, and one for each user."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import click.testing

from zsq.apps.cli.run.keys import keys
from zsq.transport.wire.credentials import Credentials, load


class Keyring:
    """Keys that were made with the commands that users run. `folder` holds `access.toml` and the
    key files, for example `etl.key`.
    """

    def __init__(self, folder: Path, users: Iterable[str]) -> None:
        self.folder = folder
        self.server = folder / "broker.key"
        self.access = folder / "access.toml"
        self._run("server", str(self.server))
        for user in users:
            self._run("client", str(self.file(user)), "--server", f"{self.server}.pub")

    def _run(self, *arguments: str) -> None:
        found = click.testing.CliRunner().invoke(keys, arguments)
        assert found.exit_code == 0, found.output

    def file(self, user: str) -> Path:
        return self.folder / f"{user}.key"

    def of(self, user: str) -> Credentials:
        return load(str(self.file(user)))

    def allow(self, text: str) -> None:
        """Write the access file. `KEY NAME` in its text stands for the public key of that user."""
        self.access.write_text(re.sub(r"KEY (\w+)", lambda found: self.of(found[1]).public, text))

    def options(self) -> tuple[str, ...]:
        return ("--access", str(self.access), "--curve-key", str(self.server))
