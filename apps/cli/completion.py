"""zsq completion: complete commands, and topics and channels if the broker answers quickly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class
from click.types import StringParamType

from ...transport.settings import CHANNEL, Kind

if TYPE_CHECKING:
    from ...transport.client.blocking.client import Admin
    from ...transport.whole_topic import TopicName

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
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(context.find_root().command, {}, "zsq", VARIABLE).source())


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


def known_names(url: Any, timeout: float = QUICK_S) -> dict[str, Sequence[str]]:
    """Return the channels of each topic, or nothing after an error, which is not shown.

    A client without the permission to list names gets nothing, too.
    """
    from ...transport.client.blocking.client import Admin
    from ...transport.names import part_name

    try:
        with Admin(str(url), timeout=timeout) as admin:
            topics = topic_names(admin)
    except Exception:
        return {}
    known: dict[str, Sequence[str]] = {}
    for name, topic in topics.items():
        for log in (name, *(part_name(name, number) for number in topic.parts)):
            known[log] = topic.channels
    return known


def topic_names(admin: Admin) -> dict[str, TopicName]:
    """Return the topics of the broker, and all topics with parts of its cluster."""
    from ...transport.errors import E_UNSUPPORTED, UsageError
    from ...transport.whole_topic import whole_names
    from ...transport.wire.answers import places_of

    topics = admin.topics()
    try:
        parts = {row["topic"]: [*places_of(row)] for row in admin.cluster()["topics"]}
    except UsageError as error:
        if error.code != E_UNSUPPORTED:
            raise
        parts = {}
    return whole_names(topics, parts)


def complete_names(command: click.Command) -> None:
    """Complete the arguments and options of a command that name a broker's topics and channels."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            complete_names(subcommand)
    elif any(param.name == "url" for param in command.params):
        for param in command.params:
            if param.name in TOPICS or param.name in CHANNELS:
                param.type = _Name(channel=param.name in CHANNELS)
