"""zsq topic: create, set, show, delete; and pause, unpause, empty of topics and channels."""

from __future__ import annotations

from typing import Any

import click

from .channel import channel
from .options import SYNC_MODES, with_broker
from .output import json_option, tell
from .retention import described, given_retention, with_retention


@click.group()
def topic() -> None:
    """Create, set, show, close, open, retire, delete, pause, unpause or empty a topic."""


@topic.command("create")
@click.argument("topic")
@click.option("--sync", type=click.Choice(SYNC_MODES), default="always", show_default=True, help="When a publish is answered.")
@with_retention(default=False)
@with_broker
def topic_create(topic: str, sync: str, url: str, timeout: float, **retention: Any) -> None:
    """Make TOPIC; if it exists it stays as it is."""
    from ...transport.client import Admin

    given = given_retention(retention)
    with Admin(url, timeout=timeout) as admin:
        found = admin.create_topic(topic, sync=sync, **given)
        if found.get("existed"):
            now = admin.stats(topic)["topics"][0]
            if now["sync"] != sync:
                click.echo(f"zsq: topic {topic!r} exists, with --sync {now['sync']}; that was not changed", err=True)
            if any(now.get("retention", {}).get(name) != value for name, value in given.items()):
                click.echo(f"zsq: topic {topic!r} exists; what it keeps was not changed, zsq topic set does that", err=True)


@topic.command("set")
@click.argument("topic")
@with_retention(default=True)
@json_option
@with_broker
def topic_set(topic: str, as_json: bool, url: str, timeout: float, **retention: Any) -> None:
    """Change how long TOPIC keeps what, now and for good; what is not named stays as it is."""
    from ...transport.client import Admin

    given = given_retention(retention)
    if not given:
        raise click.UsageError("say what to change: --keep-bytes, --keep-time, --keep-chunks, --max-bytes, --max-age or --when-full")
    with Admin(url, timeout=timeout) as admin:
        found = admin.configure_topic(topic, **given)["retention"]
    if as_json:
        tell({"topic_name": topic, "retention": found})
    else:
        click.echo(described(found))


@topic.command("show")
@click.argument("topic")
@json_option
@with_broker
def topic_show(topic: str, as_json: bool, url: str, timeout: float) -> None:
    """Show how TOPIC is set, and what of it is on disk."""
    from ...transport.client import Admin
    from ...transport.names import check_name

    check_name(topic)
    with Admin(url, timeout=timeout) as admin:
        found = admin.stats(topic)["topics"][0]
    if as_json:
        tell({name: value for name, value in found.items() if name != "channels"})
        return
    click.echo(f"topic      {found['topic_name']}, uuid {found['uuid']}, sync {found['sync']}, health {found['health']}")
    if found["closed"]:
        click.echo(f"closed     to publishers{' and consumers' if found['closed'] == 'consumers' else ''}")
    click.echo(f"offsets    {found['start']} to {found['head']}")
    click.echo(f"on disk    {found['log_bytes']:,} bytes, {found['finished_bytes']:,} of them finished by all channels")
    dropped = f"up to {found['dropped_count']:,} messages dropped unfinished (each channel counts its own)"
    click.echo(f"gone       {found['removed_bytes']:,} bytes since it was started; {dropped}")
    click.echo(described(found["retention"]))


@topic.command("delete")
@click.argument("topic")
@click.option("--force", is_flag=True, help="Even if there are unfinished messages; they are gone then.")
@with_broker
def topic_delete(topic: str, force: bool, url: str, timeout: float) -> None:
    """Delete TOPIC with its channels; refused while messages are unfinished, unless forced."""
    from ...transport.client import Admin

    with Admin(url, timeout=timeout) as admin:
        admin.delete_topic(topic, force=force)


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
