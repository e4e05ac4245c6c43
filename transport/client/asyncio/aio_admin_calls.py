"""Calls of the asyncio Admin. `scripts/clients.py` generates them from `core/administration.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from ...settings import ChannelOptions, NewChannelOptions, RetentionSettings
from ...wire.admin_requests import Side
from ...wire.answers import (
    Added,
    AuditEntry,
    ChannelConfigured,
    Chunks,
    Closed,
    ClusterAnswer,
    DelayedCount,
    DelayedRow,
    Disconnected,
    FigureHistory,
    Made,
    Moved,
    Moving,
    Nothing,
    OverviewAnswer,
    Scheduled,
    ScheduleRow,
    Silenced,
    TopicConfigured,
)
from ...wire.codec import HeaderValue
from ..core import administration
from ..core.asking import Place
from .aio_asker import Asker


class AdminCalls(Asker):
    """Methods that ask the supervisor."""

    async def create_topic(
        self,
        name: str,
        sync: str = "always",
        *,
        parts: int = 0,
        brokers: Sequence[int] = (),
        **retention: Unpack[RetentionSettings],
    ) -> Made:
        """Create a topic. Returns {"existed": True} if it existed and so was not changed.

        `sync`: always, bucket, interval, or never. With `parts`, the topic has that many parts at
        the brokers of the cluster, in turn, or at `brokers` (numbers of brokers, see `cluster`).
        """
        return await self._carry_out(
            administration.create_topic(name, sync, parts=parts, brokers=brokers, **retention)
        )

    async def add_parts(self, topic: str, count: int, *, brokers: Sequence[int] = ()) -> Added:
        """Add parts to a topic that has parts. Returns {"parts": how many it has now}.

        They are at the brokers with the fewest parts of the topic, of all or of `brokers` (numbers
        of brokers, see `cluster`). Producers and consumers that are connected use them within a
        minute. Some keys move to the new parts, so the order of a key is not kept across this
        change.
        """
        return await self._carry_out(administration.add_parts(topic, count, brokers=brokers))

    async def move_part(self, part: str, broker: int) -> Moving:
        """Begin to move a part, such as "clicks#3", to the broker with this number.

        With the number of the broker that has it, a move that has not begun is withdrawn. Returns
        {"hold": how often the part was moved before}. `cluster` shows under `moves` what is not
        completed.
        """
        return await self._carry_out(administration.move_part(part, broker))

    async def cluster(self, *, fresh: bool = False) -> ClusterAnswer:
        """Return the brokers of the cluster, and the topics with parts, as this broker knows them.
        With `fresh`, it reads the directory first.

        Raises `UsageError` (E_UNSUPPORTED) if the broker is in no cluster.
        """
        return await self._carry_out(administration.cluster(fresh=fresh))

    async def configure_topic(
        self, name: str, sync: str | None = None, **retention: Unpack[RetentionSettings]
    ) -> TopicConfigured:
        """Change how long a topic keeps messages, see `RetentionSettings`, or its sync mode.

        `sync`: always, bucket, interval, or never. All that was published before is synced first.
        Returns {"retention": all settings in effect, "sync": the sync mode}. The change is durable
        and in effect when this returns.
        """
        return await self._carry_out(administration.configure_topic(name, sync, **retention))

    async def create_channel(
        self, topic: str, channel: str, **settings: Unpack[NewChannelOptions]
    ) -> Made:
        """Create a channel. Returns {"existed": True} if it existed and so was not changed.

        Raises `UsageError` if it exists with other `tags`, `ordered` or `priorities`.
        """
        return await self._carry_out(administration.create_channel(topic, channel, **settings))

    async def configure_channel(
        self, topic: str, channel: str, **settings: Unpack[ChannelOptions]
    ) -> ChannelConfigured:
        """Change the settings of a channel, see `ChannelOptions`.

        Returns {"settings": all settings in effect}. The change is durable and in effect when this
        returns.
        """
        return await self._carry_out(administration.configure_channel(topic, channel, **settings))

    async def delete_topic(self, name: str, force: bool = False) -> Nothing:
        """Delete a topic.

        Raises `Refused` (E_NOT_EMPTY) while it has unfinished messages, unless `force` is True.
        """
        return await self._carry_out(administration.delete_topic(name, force))

    async def close_topic(self, name: str, to: Side = "publishers") -> Closed:
        """Close a topic to publishers, or to publishers and consumers.

        `to="publishers"`: publishers are refused with E_CLOSED, and consumers can finish the
        messages that are left. `to="consumers"`: both are refused, and connected consumers get the
        same error, but `Consumer.run` waits until the topic is open again. Returns {"closed":
        "publishers" or "consumers"}. The change is durable, and in effect everywhere, when this
        returns.
        """
        return await self._carry_out(administration.close_topic(name, to))

    async def open_topic(self, name: str, to: Side = "publishers") -> Closed:
        """Open a closed topic.

        `to="publishers"`: open it to everyone. `to="consumers"`: open it only to consumers, so that
        they can finish the messages that are left. Returns {"closed": "" or "publishers"}.
        """
        return await self._carry_out(administration.open_topic(name, to))

    async def delete_channel(self, topic: str, channel: str, force: bool = False) -> Nothing:
        """Delete a channel.

        Raises `Refused` (E_NOT_EMPTY) while it has unfinished messages, unless `force` is True.
        """
        return await self._carry_out(administration.delete_channel(topic, channel, force))

    async def pause(self, topic: str, channel: str | None = None) -> Nothing:
        """Pause a topic or a channel.

        The channels of a paused topic get no new messages. A paused channel delivers nothing.
        """
        return await self._carry_out(administration.pause(topic, channel))

    async def unpause(self, topic: str, channel: str | None = None) -> Nothing:
        """Continue a paused topic or channel where it was paused."""
        return await self._carry_out(administration.unpause(topic, channel))

    async def empty(self, topic: str, channel: str | None = None) -> Nothing:
        """Remove the waiting messages, so that they are never delivered.

        With a channel, this removes its backlog. Without one, it removes only what no channel has
        yet: the messages that wait for the topic's first channel, or until the topic is unpaused.
        The backlogs of the topic's channels stay, as with nsqd. To remove them too, call this for
        each channel. Delayed messages that are not due yet are cancelled if the topic has no
        channel, or only this one. Otherwise they stay, because they will be due for all channels.
        """
        return await self._carry_out(administration.empty(topic, channel))

    async def seek(
        self, topic: str, channel: str, where: Place, forward: bool = False, clamp: bool = False
    ) -> Moved:
        """Move a channel: back, to read messages again, or forward, to leave messages out.

        `where`: an offset, "earliest", "latest", or a time (datetime, or seconds since 1970 as
        float). A time means the first message that was stored then or later. A place before the
        oldest kept message means the oldest kept message. The channel forgets the messages that it
        holds, and all unfinished messages before the new place. They can no longer be finished.
        With `forward` the channel never moves back. An offset beyond the topic's end, or a time in
        the future, raises `UsageError`. With `clamp`, such a place means the end. Returns
        {"offset": the new place}. If the topic has parts, the offset is -1, and "parts" has the new
        place in each part. The move is durable when this returns.
        """
        return await self._carry_out(administration.seek(topic, channel, where, forward, clamp))

    async def skip(
        self, topic: str, channel: str, offsets: Sequence[int], *, preview: bool = False
    ) -> list[int]:
        """Finish messages for a channel without a delivery, and return the offsets of those that it
        had not finished.

        `offsets`: up to 1,000 of them, of the topic or of one part. The messages may wait, be
        deferred, or be with a consumer, whose answer then comes too late. An ordered channel goes
        on with the next message of the key. Other channels, and the log, keep the messages. A
        message on its way to the dead letters is not skipped. With `preview`, only return the
        offsets. The call is recorded in the audit log, and durable when it returns.
        """
        return await self._carry_out(administration.skip(topic, channel, offsets, preview=preview))

    async def disconnect(self, topic: str, channel: str, consumer: str) -> Disconnected:
        """End the subscriptions of the consumers with this name.

        The leases of their messages end, and other consumers get the messages at once. They use no
        attempt. A client that still runs subscribes again by itself, and then gets messages again.
        To keep it away, stop it, or take its permission. `consumer`: its `client_id` in `stats`.
        Returns {"count": their number}. Raises `NotFound` if the channel has no such consumer. An
        `#ephemeral` channel ends with its last consumer.
        """
        return await self._carry_out(administration.disconnect(topic, channel, consumer))

    async def redrive_to(
        self,
        dead_topic: str,
        to: str,
        channel: str | None,
        origin: tuple[str, str, str],
        chosen: bool = False,
    ) -> Nothing:
        """Ask whether dead letters of `dead_topic` may be published to topic `to`, as `zsq redrive`
        does.

        `channel`: the only channel that gets them, or None for all channels. `origin`: topic, its
        uuid, and channel, as the headers of the dead letters say. Raises E_FORBIDDEN unless dead
        letters of that channel go to `dead_topic`. `chosen`: True if a person has chosen `to`. The
        broker then does not check the headers. The call is recorded in the audit log.
        """
        return await self._carry_out(
            administration.redrive_to(dead_topic, to, channel, origin, chosen)
        )

    async def delayed_list(
        self, topic: str, after: str = "", limit: int = 1000
    ) -> list[DelayedRow]:
        """Return the delayed messages that wait, the next due one first.

        Each row has key, due_ns, size, body (its first 200 bytes), tag, and message_key. At most
        `limit` (1,000) are returned. To get more, call it again with `after` set to the last key.
        """
        return await self._carry_out(administration.delayed_list(topic, after, limit))

    async def delayed_count(self, topic: str) -> DelayedCount:
        """Return the number of delayed messages that wait.

        The fields are messages, bytes, next_due_ns (0: nothing waits), and lost: the messages lost
        to damage.
        """
        return await self._carry_out(administration.delayed_count(topic))

    async def delayed_cancel(self, topic: str, keys: Sequence[str]) -> list[bool]:
        """Cancel delayed messages by their keys (1,000 at most).

        The result has one value for each key. False means that the message does not wait, or no
        longer waits. The cancellation is durable when this returns.
        """
        return await self._carry_out(administration.delayed_cancel(topic, keys))

    async def delayed_cancel_all(self, topic: str) -> int:
        """Cancel all delayed messages that wait, and return their number.

        This happens in several steps, so that other requests are not delayed. Messages that arrive
        in the meantime may stay.
        """
        return await self._carry_out(administration.delayed_cancel_all(topic))

    async def schedule_add(
        self,
        topic: str,
        name: str,
        cron: str,
        body: bytes,
        *,
        timezone: str = "UTC",
        missed: str = "one",
        key: bytes | str | None = None,
        tag: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> Scheduled:
        """Publish `body` to `topic` at each due time of a cron expression. See docs/schedules.md.

        `name`: a name that no other schedule of the topic has. `cron`: five fields, as in crontab.
        `timezone`: the time zone of the expression, such as "Europe/Berlin". `missed`: what is
        published of due times at which the broker was down: "one" (the latest), "all" (the last
        1,000), or "skip". Returns {"next_due_ns": the first due time}. The schedule is durable when
        this returns. Raises `UsageError` for a wrong expression or time zone, if the name exists
        (E_EXISTS), or if the broker lacks the extra `schedules` (E_UNSUPPORTED). In a topic with
        parts, the schedule belongs to the part of `key`, or else to that of its name.
        """
        return await self._carry_out(
            administration.schedule_add(
                topic,
                name,
                cron,
                body,
                timezone=timezone,
                missed=missed,
                key=key,
                tag=tag,
                headers=headers,
            )
        )

    async def schedule_set(
        self,
        topic: str,
        name: str,
        *,
        cron: str | None = None,
        body: bytes | None = None,
        timezone: str | None = None,
        missed: str | None = None,
        tag: str | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
    ) -> Scheduled:
        """Change a schedule, see `schedule_add`. What is None stays.

        Due times count from now on, so the change makes no due time missed. The key cannot change.
        Returns {"next_due_ns": the first due time}.
        """
        return await self._carry_out(
            administration.schedule_set(
                topic,
                name,
                cron=cron,
                body=body,
                timezone=timezone,
                missed=missed,
                tag=tag,
                headers=headers,
            )
        )

    async def schedule_run(self, topic: str, name: str) -> Nothing:
        """Publish the message of a schedule once, now. The schedule itself does not change.

        This also works while it is paused. The header `zsq-due` has the time of this call. The
        message is stored when this returns.
        """
        return await self._carry_out(administration.schedule_run(topic, name))

    async def schedule_remove(self, topic: str, name: str) -> Nothing:
        """Remove a schedule. A message that is just being published may still come."""
        return await self._carry_out(administration.schedule_remove(topic, name))

    async def schedule_pause(self, topic: str, name: str) -> Nothing:
        """Pause a schedule. Nothing is published for due times until it is resumed."""
        return await self._carry_out(administration.schedule_pause(topic, name))

    async def schedule_resume(self, topic: str, name: str) -> Nothing:
        """Resume a schedule. Due times of the pause are not published, and do not count as
        missed.
        """
        return await self._carry_out(administration.schedule_resume(topic, name))

    async def schedule_list(self, topic: str | None = None) -> list[ScheduleRow]:
        """Return the schedules of this broker, or those of one topic with all its parts, by topic
        and name.

        Each row has topic, name, cron, timezone, policy, state, next_due_ns, last_due_ns,
        published, missed, trouble, and body_bytes.
        """
        return await self._carry_out(administration.schedule_list(topic))

    async def topics(self) -> dict[str, list[str]]:
        """Return the names of all topics, each with the names of its channels.

        This asks only the supervisor.
        """
        return await self._carry_out(administration.topics())

    async def unfinished(self, topic: str, channel: str) -> int:
        """Return the number of messages that a channel has not finished.

        These are the messages that wait (`depth` of `stats`), that consumers hold, that are
        deferred, and that are on their way to the dead letters. With 0, the channel has nothing
        left to do, so a script can wait for that. Delayed messages that are not due yet belong to
        the topic, and do not count (`delayed_count` of `stats`). Raises `Refused` while the channel
        is being started.
        """
        return await self._carry_out(administration.unfinished(topic, channel))

    async def overview(
        self, since: int = 0, *, processes: bool = False, alarms: bool = False
    ) -> OverviewAnswer:
        """Return all topics and channels with the values that they last reported.

        The values are about a second old, or up to ten seconds for an idle topic. The supervisor
        asks no other process for them, so this is cheap. Returns {"version", "whole", "topics":
        {name: (row, {channel: row})}, "broker"}. A `whole` answer has `topic_fields` and
        `channel_fields`, which name the values of a row in their order. With `since` set to a
        version, the answer has only the rows that changed after this version. A topic whose own row
        did not change has () as its row.
        """
        return await self._carry_out(
            administration.overview(since, processes=processes, alarms=alarms)
        )

    async def history(
        self, topic: str, channel: str | None = None, span: str = "1d", points: int = 240
    ) -> FigureHistory:
        """Return values of a topic or channel over a day ("1d") or 30 days ("30d").

        The broker writes them once a minute, so they survive a restart. Returns {"step_s",
        "end_ms", "series": {name: values}}, with at most `points` (720) values each. Rates are
        means. A backlog, a depth, and a latency are the largest of their time.
        """
        return await self._carry_out(administration.history(topic, channel, span, points))

    async def alarm_ack(
        self, topic: str = "", channel: str = "", figure: str = "", *, seconds: float = 0
    ) -> Silenced:
        """Acknowledge the raised alarms of a topic or channel, or silence them for some time.

        Without `seconds`, the alarms that are raised now are silenced until they are cleared. With
        it, all alarms of this place are silenced until then, also those that are not raised yet.
        `figure`: only this alarm, such as "depth" (see `alarms` of `stats`). Without a topic: the
        alarms of the broker. Receivers do not hear of a silenced alarm until the silence ends.
        Silences survive a restart. Returns {"count": how many raised alarms are silenced now}.
        Raises `NotFound` if none is raised and no `seconds` are given.
        """
        return await self._carry_out(
            administration.alarm_ack(topic, channel, figure, seconds=seconds)
        )

    async def alarm_unack(self, topic: str = "", channel: str = "", figure: str = "") -> Silenced:
        """End the silences of a topic or channel. Receivers then hear of alarms that are raised."""
        return await self._carry_out(administration.alarm_unack(topic, channel, figure))

    async def audit(self, count: int = 100, topic: str = "") -> list[AuditEntry]:
        """Return the newest entries of the audit log, the newest first.

        `topic`: only entries about this topic. Each entry has "time", "action", "topic", "channel",
        "options", "user", "from", "via", and "result".
        """
        return await self._carry_out(administration.audit(count, topic))

    async def handover(self) -> None:
        """Let the primary stop, and its standby take over. See docs/standby.md.

        The call returns when the primary begins to stop. Raises `NotFound` if no standby follows
        it, or `Refused` if it ships nothing to a bucket.
        """
        await self._carry_out(administration.handover())

    async def chunks(self, topic: str) -> Chunks:
        """Return the log files of a topic: {"chunks": the newest 1,000, "older": the sum of the
        others, "total": the sum of all}.

        See `zsq stats --chunks`.
        """
        return await self._carry_out(administration.chunks(topic))

    async def ended(self, topic: str) -> int | None:
        """Return the offset at which the topic of this name that was deleted last has ended.

        It had no message with this offset or a higher one. A topic that is created again begins
        there. Returns None if the broker knows of no deleted topic of this name.
        """
        return await self._carry_out(administration.ended(topic))

    async def ping(self) -> str:
        """Return the health of the broker: "OK", or a description of the fault."""
        return await self._carry_out(administration.ping())
