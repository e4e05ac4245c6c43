"""A group whose commands are imported when they are used: `zsq --help` and each single command should come at once."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Place(NamedTuple):
    """Where a command is (`module:name`, of this package), and what help says of it in a few words."""

    where: str
    text: str


class LazyGroup(click.Group):
    """`sections`: title -> command's name -> its place, in the order of help. `add_command` works as ever."""

    def __init__(self, *arguments: Any, sections: Mapping[str, Mapping[str, Place]], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.sections: Final = sections
        self._places: Final = {name: place for section in sections.values() for name, place in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self._places, *(name for name in sorted(self.commands) if name not in self._places)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in self._places:
            module, _, name = self._places[cmd_name].where.partition(":")
            self.commands[cmd_name] = getattr(import_module(f".{module}", __package__), name)
        if ctx.resilient_parsing and cmd_name in self.commands:  # somebody pressed TAB
            from .completion import complete_names

            complete_names(self.commands[cmd_name])
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Of a slip of the pen it says what was meant: click would know only of what is imported already."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and not ctx.resilient_parsing and name not in self.list_commands(ctx):
            from difflib import get_close_matches

            close = get_close_matches(name, self.list_commands(ctx), n=1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {close[0]!r}?" if close else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Nothing is imported for it either."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=place.text) for name, place in self._places.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Nothing is imported for it."""
        width = max(map(len, self.list_commands(ctx)))
        for title, section in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), place.text) for name, place in section.items()])
        others = [
            (name.ljust(width), self.commands[name].get_short_help_str()) for name in self.list_commands(ctx) if name not in self._places
        ]
        if others:
            with formatter.section("Others"):
                formatter.write_dl(others)
