"""zsq serve: run the broker in the foreground until SIGTERM or SIGINT.

`ConfigReload` reads the configuration of a running `zsq serve` again after SIGHUP.
"""

from __future__ import annotations

import os
import pkgutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from ....transport.errors import E_BAD_ARGUMENT, UsageError
from .broker_options import serve_options
from .config_options import ARGUMENTS, Configured, serve_parameters, standby_parameters
from .option_table import ROWS, SECRETS, GivenOptions, key

# A directory of a broker or a standby has one of these. (A test compares them with the modules that
# define them, whose import takes long.)
DATA_NAMES: Final = ("registry.json", "registry.json.old", "standby.json")
TEMPORARY_NAME: Final = "tmp"

if TYPE_CHECKING:
    from ....actors.supervisor.reloading import Fresh


class ConfigReload:
    """Reads the same flags and environment again, and the file as it is now.

    Secrets are kept here, because they leave the environment at the start, so that no child
    inherits them. The files that *_FILE variables name are read again.
    """

    def __init__(self, context: click.Context, environment: Mapping[str, str] = os.environ) -> None:
        self._command = context.command
        self._arguments: list[str] = context.meta[ARGUMENTS]
        names = [name + end for name in SECRETS for end in ("", "_FILE")]
        self._secrets = {name: environment[name] for name in names if name in environment}
        self._begun = self._now = GivenOptions.of(with_url(context.params))

    def read(self) -> Fresh:
        """Read the options again.

        Raises `UsageError` or `OSError` for any error, and then changes nothing.
        """
        from ....actors.supervisor.reloading import Fresh

        try:
            name = self._command.name
            with self._command.make_context(name, list(self._arguments)) as context:
                given = GivenOptions.of(with_url(context.params))
            options = serve_options(given, dict(self._secrets))
        except click.ClickException as error:
            raise UsageError(E_BAD_ARGUMENT, error.format_message()) from None
        live, dead = (
            _differing(given, self._now, live=True),
            _differing(given, self._begun, live=False),
        )
        self._now = given
        return Fresh(options, live, dead)


def _differing(options: GivenOptions, other: GivenOptions, *, live: bool) -> tuple[str, ...]:
    changed = (
        name
        for name, row in ROWS.items()
        if row.live is live and getattr(options, name) != getattr(other, name)
    )
    return tuple(f"--{key(name)}" for name in changed)


@click.command(cls=Configured, params=serve_parameters(needs_data_dir=True))
@click.pass_context
def serve(context: click.Context, /, **given: Any) -> int:
    """Run the broker on DIR until SIGTERM or Ctrl-C.

    With --sync always (the default) a publish is acknowledged after fdatasync. SIGHUP reloads the
    configuration; zsq config shows it.
    """
    return run(context, given, is_standby=False)


@click.command(cls=Configured, params=standby_parameters())
@click.pass_context
def standby(context: click.Context, /, url: str | None, first: bool, **given: Any) -> int:
    """Follow the broker of the bucket URL on DIR, and take over when it is gone.

    All options of zsq serve count once this broker is primary. URL is the same as --bucket. Clients
    name both brokers: --url tcp://one:4153,tcp://two:4153. See docs/standby.md.
    """
    options = with_url({**given, "url": url})
    if not options["bucket"]:
        raise click.UsageError("a standby follows a bucket: give its URL, or set --bucket")
    return run(context, options, is_standby=True, is_first=first)


def with_url(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters with the argument of `zsq standby` as the option that it stands for."""
    parameters = dict(given)
    parameters.pop("first", None)
    if url := parameters.pop("url", None):
        parameters["bucket"] = url
    return parameters


def run(
    context: click.Context, given: Mapping[str, Any], *, is_standby: bool, is_first: bool = False
) -> int:
    """Run a broker in the foreground."""
    environment = dict(os.environ)

    # Made before the secrets are removed from the environment.
    again = ConfigReload(context, os.environ)
    options = serve_options(GivenOptions.of(given), os.environ)
    from ....actors.runtime import forkserver
    from ....actors.runtime.extensions import filled

    if not is_standby:
        check_exists(options.data_dir, given["must_exist"])
    choose_temporary_directory(options.data_dir)
    # Imports take half of the time of a start. The forkserver does its imports in parallel.
    forkserver.begin(has_secrets=bool(environment.keys() - os.environ.keys()))
    if is_standby and not options.bucket_lag_s:
        raise click.UsageError("a standby needs what the primary ships: set --bucket-lag to a time")
    for runner in filter(None, (role(options) for role in filled("ROLE"))):
        code: int = pkgutil.resolve_name(runner)(
            options, again.read, environment, is_standby=is_standby, is_first=is_first
        )
        return code
    from ....actors.supervisor.serve import serve as serve_broker

    return serve_broker(options, again.read)


def check_exists(data_dir: Path, must_exist: bool) -> None:
    """Raise `UsageError` if the directory must have a broker's or standby's data, and has none."""
    if must_exist and not any((data_dir / name).exists() for name in DATA_NAMES):
        text = (
            f"{data_dir.absolute()} has no data of a broker, and --must-exist is given: mount its "
            "disk. To begin a new broker there, start it once without --must-exist"
        )
        raise UsageError(E_BAD_ARGUMENT, text)


def choose_temporary_directory(data_dir: Path) -> None:
    """Use DATA_DIR/tmp if no usual directory for temporary files can be written.

    A container with a read-only root file system may have none. The commands of alarms and a long
    path of the data directory need one. Raises `UsageError` if the data directory cannot be written
    either.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        folder = data_dir.absolute() / TEMPORARY_NAME
    else:
        return
    try:
        data_dir.absolute().mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        text = (
            f"no directory for temporary files can be written, and neither can {folder} "
            f"({error.strerror or error}): set TMPDIR to one that this user may write"
        )
        raise UsageError(E_BAD_ARGUMENT, text) from None
    # For this process, and for those that it starts.
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)
