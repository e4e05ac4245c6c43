"""zsq completion: complete commands, and topics and channels if the broker answers quickly."""

from __future__ import annotations

from typing import Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class
from click.types import StringParamType

from ...transport.settings import CHANNEL, Kind

VARIABLE: Final = "_ZSQ_COMPLETE"
QUICK_S: Final = 0.5  # seconds to wait for the broker after the user has pressed TAB
TOPICS: Final = (
    "topic",
    "dead_topic",
    "to",
    *(row.parameter for row in CHANNEL if row.kind is Kind.TOPIC),
)
CHANNELS: Final = ("channel",)


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL (bash, zsh, fish): it completes commands, options,
    topics and channels.

    \b
    bash  zsq completion bash > ~/.local/share/bash-completion/completions/zsq
    zsh   zsq completion zsh > ~/.zfunc/_zsq    (with fpath+=~/.zfunc before compinit in ~/.zshrc)
    fish  zsq completion fish > ~/.config/fish/completions/zsq.fish

    It takes effect in new shells. For the current shell: eval "$(zsq completion bash)".
    """
    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(context.find_root().command, {}, "zsq", VARIABLE).source())


class _Name(StringParamType):
    """The name of a topic, or of a channel of the topic given before it."""

    def __init__(self, *, channel: bool) -> None:
        self._channel = channel

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        known = known_names(ctx.params.get("url"))
        topic = ctx.params.get("topic") or ctx.params.get("to")
        names = known.get(str(topic), []) if self._channel else list(known)
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def known_names(url: Any, timeout: float = QUICK_S) -> dict[str, list[str]]:
    """Return the channels of each topic, or nothing after an error, which is not shown.

    A client without the permission to list names gets nothing, too.
    """
    from ...transport.client.blocking.client import Admin

    try:
        with Admin(str(url), timeout=timeout) as admin:
            return admin.topics()
    except Exception:
        return {}


def complete_names(command: click.Command) -> None:
    """Complete the arguments and options of a command that name a broker's topics and channels."""
    if isinstance(command, click.Group):
        for one in command.commands.values():
            complete_names(one)
    elif any(param.name == "url" for param in command.params):
        for param in command.params:
            if param.name in TOPICS or param.name in CHANNELS:
                param.type = _Name(channel=param.name in CHANNELS)
