"""zsq topic and zsq channel: create, delete, pause, unpause, empty."""

from __future__ import annotations

import click

from .options import SYNC_MODES, with_broker


@click.group()
def topic() -> None:
    """Create, delete, pause, unpause or empty a topic."""


@click.group()
def channel() -> None:
    """Create, delete, pause, unpause or empty a channel."""


@topic.command("create")
@click.argument("topic")
@click.option("--sync", type=click.Choice(SYNC_MODES), default="always", show_default=True, help="When a publish is answered.")
@with_broker
def topic_create(topic: str, sync: str, url: str, timeout: float) -> None:
    """Make TOPIC; if it exists it stays as it is."""
    from ...transport.client import Admin

    with Admin(url, timeout=timeout) as admin:
        found = admin.create_topic(topic, sync=sync)
        if found.get("existed"):
            now = admin.stats(topic)["topics"][0]["sync"]
            if now != sync:
                click.echo(f"zsq: topic {topic!r} exists, with --sync {now}; that was not changed", err=True)


@topic.command("delete")
@click.argument("topic")
@click.option("--force", is_flag=True, help="Even if there are unfinished messages; they are gone then.")
@with_broker
def topic_delete(topic: str, force: bool, url: str, timeout: float) -> None:
    """Delete TOPIC with its channels; refused while messages are unfinished, unless forced."""
    from ...transport.client import Admin

    with Admin(url, timeout=timeout) as admin:
        admin.delete_topic(topic, force=force)


@channel.command("create")
@click.argument("topic")
@click.argument("channel")
@with_broker
def channel_create(topic: str, channel: str, url: str, timeout: float) -> None:
    """Make CHANNEL on TOPIC (and TOPIC, if need be).

    The first channel of a topic gets all that waits there, a later one what is published from then on.
    """
    from ...transport.client import Admin

    with Admin(url, timeout=timeout) as admin:
        admin.create_channel(topic, channel)


@channel.command("delete")
@click.argument("topic")
@click.argument("channel")
@click.option("--force", is_flag=True, help="Even if there are unfinished messages.")
@with_broker
def channel_delete(topic: str, channel: str, force: bool, url: str, timeout: float) -> None:
    """Delete CHANNEL; refused while messages are unfinished, unless forced."""
    from ...transport.client import Admin

    with Admin(url, timeout=timeout) as admin:
        admin.delete_channel(topic, channel, force=force)


def _order(action: str, topic: str, channel: str | None, url: str, timeout: float) -> None:
    from ...transport.client import Admin

    with Admin(url, timeout=timeout) as admin:
        getattr(admin, action)(topic, channel)


_ORDERS = {
    "pause": ("Deliver nothing from what is published from now on.", "Deliver nothing until it is unpaused."),
    "unpause": ("Deliver again.", "Deliver again."),
    "empty": ("Clear what waits for a first channel.", "Clear its backlog."),
}


def _add_orders() -> None:
    for action, (of_topic, of_channel) in _ORDERS.items():

        def on_topic(topic: str, url: str, timeout: float, action: str = action) -> None:
            _order(action, topic, None, url, timeout)

        def on_channel(topic: str, channel: str, url: str, timeout: float, action: str = action) -> None:
            _order(action, topic, channel, url, timeout)

        topic.command(action, help=of_topic)(click.argument("topic")(with_broker(on_topic)))
        channel.command(action, help=of_channel)(click.argument("topic")(click.argument("channel")(with_broker(on_channel))))


_add_orders()
