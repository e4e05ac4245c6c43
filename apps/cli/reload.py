"""Reading the configuration of a running `zsq serve` again, for SIGHUP."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

import click

from ...transport.errors import E_BAD_ARGUMENT, UsageError
from .config_options import ARGUMENTS, RELOADABLE, SECRETS, flag, options_of

if TYPE_CHECKING:
    from ...actors.reloading import Fresh


class Again:
    """Takes the same flags and the same environment again, and the file as it is now.

    Secrets are kept here: they leave the environment at the start, so that no child inherits them. What *_FILE names is read again.
    """

    def __init__(self, context: click.Context, environment: Mapping[str, str] = os.environ) -> None:
        self._command = context.command
        self._arguments: list[str] = context.meta[ARGUMENTS]
        names = [name + end for name in SECRETS for end in ("", "_FILE")]
        self._secrets = {name: environment[name] for name in names if name in environment}
        self._begun = dict(context.params)
        self._now = dict(context.params)

    def read(self) -> Fresh:
        """`UsageError` (or `OSError`) where anything is wrong: nothing is taken of it then."""
        from ...actors.reloading import Fresh
        from .serve import serve_options

        try:
            with self._command.make_context("serve", list(self._arguments)) as context:
                params = dict(context.params)
            secrets: MutableMapping[str, str] = dict(self._secrets)
            options = serve_options(params, secrets)
        except click.ClickException as error:
            raise UsageError(E_BAD_ARGUMENT, error.format_message()) from None
        live = self._differing(params, self._now, reloadable=True)
        dead = self._differing(params, self._begun, reloadable=False)
        self._now = params
        return Fresh(options, live, dead)

    def _differing(self, params: Mapping[str, Any], before: Mapping[str, Any], *, reloadable: bool) -> tuple[str, ...]:
        found = [one for one in options_of(self._command) if (one.name in RELOADABLE) is reloadable]
        return tuple(flag(one) for one in found if params.get(str(one.name)) != before.get(str(one.name)))
