"""Handlers of the console's actions and their previews.

An action is a POST with names in the query and options in a JSON body. `authority.py` has already
checked the permission for the names in the query. This module checks only the other topics that the
body names.

Redrives take longer than a request, so they are jobs (`redrive_jobs.py`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypedDict, cast

from starlette.requests import Request
from starlette.responses import Response

from .....transport.client.asyncio.aio import Admin, Producer, Reader
from .....transport.client.blocking.producer import ReceiptView
from .....transport.client.core.asking import Place
from .....transport.client.core.letter_groups import LetterConditions
from .....transport.client.core.message import id_of
from .....transport.errors import Refused, ZsqError
from .....transport.names import check_name, part_of
from .....transport.reports import ChannelStats
from .....transport.settings import ChannelOptions, NewChannelOptions, TopicOptions
from .....transport.whole_topic import WholeTopic, whole_topic
from .....transport.wire.actions import Action
from .....transport.wire.admin_requests import END, Side
from .....transport.wire.answers import Scheduled
from .....transport.wire.codec import CHANNEL_HEADER, EXPIRES_HEADER
from .....transport.wire.lifetime import REVOKE_KEY_HEADER
from .....transport.wire.protocol import SKIPPED_MAX
from ....security.policy import (
    DEAD_LETTER_TOPIC,
    REDRIVE,
    Principal,
    admin_action,
    check_address,
    check_dead_letters,
)
from ..api.broker import SharedStats
from ..web.authority import Handler, principal_of, rights_of
from ..web.body import JsonObject, Parameters, share_of
from ..web.permissions import actions_of
from ..web.places import Limiters, holder_of
from ..web.responses import ApiError, api_error
from . import previews
from .answers import (
    OPTIONS_BYTES_MAX,
    answer,
    bad,
    number,
    options_of,
    parameters_of,
    published,
    read_options,
)
from .redrive_jobs import RedriveJobs

RATE_MAX: Final = 1_000_000
KEYS_MAX: Final = 1_000
CLOCKS_DIFFER_S: Final = 60.0  # a time this far ahead still counts as now, as for the broker
END_S: Final = 0.1  # the time that this client has to close after its publish


class TopicChanges(TopicOptions, total=False):
    """The settings of a topic that may change."""

    sync: str


Do = Callable[[str, str, JsonObject, Principal], Awaitable[Mapping[str, object]]]


class ActionHandlers:
    """The handlers of actions. `stir` is called after each action, so that pages show its
    effect. `node` returns the number of the broker's node, for the ids of messages.
    """

    def __init__(
        self,
        source: Admin,
        open_reader: Callable[[str], Reader],
        open_producer: Callable[[], Producer],
        stats: SharedStats,
        jobs: RedriveJobs,
        limiters: Limiters,
        stir: Callable[[], None],
        node: Callable[[], Awaitable[int]],
    ) -> None:
        self._node = node
        self._source = source
        self._open = open_reader
        self._open_producer = open_producer
        self._stats = stats
        self._jobs = jobs
        self._stir = stir
        self._limiters = limiters

    def table(self) -> dict[str, Handler]:
        source = self._source
        actions: dict[str, Do] = {
            "/api/topic/create": self._create_topic,
            "/api/topic/configure": lambda topic, _, options, __: source.configure_topic(
                topic, **_known(options, TopicChanges)
            ),
            "/api/topic/pause": lambda topic, *_: source.pause(topic),
            "/api/topic/unpause": lambda topic, *_: source.unpause(topic),
            "/api/topic/empty": lambda topic, *_: source.empty(topic),
            "/api/topic/close": lambda topic, _, options, __: source.close_topic(
                topic, to=_side(options)
            ),
            "/api/topic/open": lambda topic, _, options, __: source.open_topic(
                topic, to=_side(options)
            ),
            "/api/topic/delete": lambda topic, _, options, __: source.delete_topic(
                topic, force=options.get("force") is True
            ),
            "/api/channel/create": self._create_channel,
            "/api/channel/configure": self._configure_channel,
            "/api/channel/pause": lambda topic, channel, *_: source.pause(topic, channel),
            "/api/channel/unpause": lambda topic, channel, *_: source.unpause(topic, channel),
            "/api/channel/empty": lambda topic, channel, *_: source.empty(topic, channel),
            "/api/channel/seek": self._seek,
            "/api/channel/skip": self._skip,
            "/api/message/cancel": self._cancel_messages,
            "/api/message/revoke": self._revoke,
            "/api/redrive/discard": self._discard,
            "/api/channel/delete": lambda topic, channel, options, _: source.delete_channel(
                topic, channel, force=options.get("force") is True
            ),
            "/api/channel/disconnect": self._disconnect,
            "/api/delayed/cancel": self._cancel,
            "/api/schedule/add": self._schedule_add,
            "/api/schedule/set": self._schedule_set,
            "/api/schedule/run": lambda topic, _, options, __: source.schedule_run(
                topic, _schedule(options)
            ),
            "/api/schedule/pause": lambda topic, _, options, __: source.schedule_pause(
                topic, _schedule(options)
            ),
            "/api/schedule/resume": lambda topic, _, options, __: source.schedule_resume(
                topic, _schedule(options)
            ),
            "/api/schedule/remove": lambda topic, _, options, __: source.schedule_remove(
                topic, _schedule(options)
            ),
        }
        return {
            path: self._handler(path.removeprefix("/api/").replace("/", "."), do)
            for path, do in actions.items()
        } | {
            "/api/redrive": self._redrive,
            "/api/job/stop": self._stop,
            "/api/alarm/ack": self._silence,
            "/api/alarm/unack": self._silence,
            "/api/topic/publish": self._publish,
        }

    def _handler(self, action: str, do: Do) -> Handler:
        """Return the handler of an action. `action` has the name that its preview has."""
        with_channel = action.startswith("channel.")

        async def handle(request: Request) -> Response:
            options = await options_of(request, self._limiters)
            parameters = parameters_of(request)
            topic = check_name(parameters.get("topic") or "")
            channel = check_name(parameters.get("channel") or "", "channel") if with_channel else ""
            await self._check_seen(action, topic, channel, options)
            try:
                return answer(
                    {"done": True, **await do(topic, channel, options, principal_of(request))}
                )
            finally:
                self._stir()

        return handle

    # Actions that are more than one call

    async def _create_topic(
        self, topic: str, channel: str, options: JsonObject, principal: Principal
    ) -> Mapping[str, object]:
        settings = options.get("settings") or {}
        if not isinstance(settings, dict):
            raise bad("settings must be an object of settings")
        return await self._source.create_topic(
            topic,
            sync=cast("str", options.get("sync") or "always"),
            **_known(settings, TopicOptions),
        )

    async def _create_channel(
        self, topic: str, channel: str, options: JsonObject, principal: Principal
    ) -> Mapping[str, object]:
        _check_dead_letters(topic, channel, options, principal)
        settings = _known(options, NewChannelOptions)
        await self._stats.fresh(topic)  # without this check the broker would create the topic
        if isinstance(settings.get("start"), dict):
            settings["start"] = _time_s(settings["start"])
        return await self._source.create_channel(topic, channel, **settings)

    async def _configure_channel(
        self, topic: str, channel: str, options: JsonObject, principal: Principal
    ) -> Mapping[str, object]:
        _check_dead_letters(topic, channel, options, principal)
        return await self._source.configure_channel(
            topic, channel, **_known(options, ChannelOptions)
        )

    async def _seek(
        self, topic: str, channel: str, options: JsonObject, principal: Principal
    ) -> Mapping[str, object]:
        to = options.get("to")
        if to is None:
            raise bad(
                '"to" is missing; give {"to": OFFSET, "earliest", "latest" or {"time_ms": N}}'
            )
        where = _time_s(to) if isinstance(to, dict) else cast("Place", to)
        forward, clamp = (options.get(name) is True for name in ("forward", "clamp"))
        return await self._source.seek(topic, channel, where, forward=forward, clamp=clamp)

    async def _skip(
        self, topic: str, channel: str, options: JsonObject, principal: Principal
    ) -> Mapping[str, object]:
        return {"offsets": await self._source.skip(topic, channel, _offsets(options))}

    async def _cancel_messages(
        self, topic: str, channel: str, options: JsonObject, principal: Principal
    ) -> Mapping[str, object]:
        await self._stats.fresh(topic)
        return {"channels": await self._source.cancel(topic, _offsets(options))}

    async def _revoke(
        self, topic: str, channel: str, options: JsonObject, principal: Principal
    ) -> Mapping[str, object]:
        keys = options.get("keys")
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise bad(f'give {{"keys": [1 to {KEYS_MAX} revoke keys]}}')
        await self._stats.fresh(topic)  # without this check the broker would create the topic
        return await self._source.revoke(topic, cast("list[str]", keys))

    async def _discard(
        self, topic: str, channel: str, options: JsonObject, principal: Principal
    ) -> Mapping[str, object]:
        offsets = _offsets(options)
        await self._stats.fresh(topic)  # without this check the broker would create the topic
        await self._source.create_channel(topic, REDRIVE, start="earliest")
        return {"offsets": await self._source.skip(topic, REDRIVE, offsets)}

    async def _cancel(
        self, topic: str, channel: str, options: JsonObject, principal: Principal
    ) -> Mapping[str, object]:
        if options.get("all") is True:
            return {"cancelled": await self._source.delayed_cancel_all(topic), "not_found": 0}
        keys = options.get("keys")
        if (
            not isinstance(keys, list)
            or not 1 <= len(keys) <= KEYS_MAX
            or not all(isinstance(key, str) for key in keys)
        ):
            raise bad(f'give {{"keys": [1 to {KEYS_MAX} keys]}} or {{"all": true}}')
        cancelled = await self._source.delayed_cancel(topic, cast("list[str]", keys))
        return {"cancelled": sum(cancelled), "not_found": len(cancelled) - sum(cancelled)}

    async def _disconnect(
        self, topic: str, channel: str, options: JsonObject, principal: Principal
    ) -> Mapping[str, object]:
        consumer = options.get("consumer")
        if not isinstance(consumer, str) or not consumer:
            raise bad('"consumer" is missing; give {"consumer": NAME}')
        return await self._source.disconnect(topic, channel, consumer)

    async def _schedule_add(
        self, topic: str, channel: str, options: JsonObject, principal: Principal
    ) -> Mapping[str, object]:
        name, settings = _schedule(options), _schedule_settings(options)
        wanted = published(_without(options, "name", *settings))
        if CHANNEL_HEADER in (wanted.headers or ()):
            check_address(principal, topic)
        if len(wanted.bodies) != 1 or wanted.delay_s is not None:
            raise bad("a schedule has one body, and no delay")
        if wanted.expires_s is not None or wanted.revoke_key is not None:
            names = f"{EXPIRES_HEADER} and {REVOKE_KEY_HEADER}"
            raise bad(f"a schedule has its lifetime and its revoke key as headers: {names}")
        return _first_due(
            await self._source.schedule_add(
                topic, name, settings.get("cron", ""), wanted.bodies[0],
                timezone=settings.get("timezone", "UTC"), missed=settings.get("missed", "one"),
                key=wanted.key, tag=wanted.tag, headers=wanted.headers,
            )
        )  # fmt: skip

    async def _schedule_set(
        self, topic: str, channel: str, options: JsonObject, principal: Principal
    ) -> Mapping[str, object]:
        name, settings = _schedule(options), _schedule_settings(options)
        rest = _without(options, "name", *settings)
        body = published(rest).bodies[0] if rest else None
        if unknown := rest.keys() - {"body", "body_base64"}:
            raise bad(f"a schedule cannot change its {min(unknown)[:40]} here")
        return _first_due(await self._source.schedule_set(topic, name, body=body, **settings))

    async def _redrive(self, request: Request) -> Response:
        options, principal = await options_of(request, self._limiters), principal_of(request)
        topic = check_name(parameters_of(request).get("topic") or "")
        to, only = cast("str | None", options.get("to")), cast("str | None", options.get("channel"))
        count = options.get("count")
        if to is not None:
            check_name(to)
            if not principal.may(Action.PUBLISH, to):
                raise api_error("UNAUTHORIZED")
            if only is not None:
                check_address(principal, to)
        if only is not None:
            check_name(only, "channel")
        if count is not None and (type(count) is not int or count < 1):
            raise bad(f"count must be a number of dead letters, at least 1, not {repr(count)[:40]}")
        offsets = _offsets(options) if "offsets" in options else None
        rate, group = options.get("rate"), options.get("group")
        if rate is not None and (type(rate) not in (int, float) or not 0 < rate <= RATE_MAX):  # type: ignore[operator]
            raise bad(f"rate must be a number a second up to {RATE_MAX:,}, not {repr(rate)[:40]}")
        if group is not None and not isinstance(group, str):
            raise bad("group must be the id of a group of dead letters")
        if offsets is not None and (rate is not None or group is not None):
            raise bad("offsets name the dead letters: give no rate and no group")
        await self._check_seen("redrive", topic, "", options)
        await self._stats.fresh(topic)  # this raises an error if the topic does not exist
        # The channel is created here, so that the audit log names the user.
        await self._source.create_channel(topic, REDRIVE, start="earliest")
        job = self._jobs.start(
            topic, to, only, count, rights_of(request), holder_of(request), offsets,
            cast("float | None", rate), None if group is None else LetterConditions(group=group),
        )  # fmt: skip
        return answer({"done": True, "job": job.row(principal)})

    async def _stop(self, request: Request) -> Response:
        await options_of(request, self._limiters)
        principal = principal_of(request)
        job = self._jobs.stop(number(parameters_of(request), "id", 0, 0, 1 << 53), principal)
        return answer({"done": True, "job": job.row(principal)})

    async def _silence(self, request: Request) -> Response:
        options, parameters = await options_of(request, self._limiters), parameters_of(request)
        topic, channel = parameters.get("topic") or "", parameters.get("channel") or ""
        kind, seconds = options.get("kind", ""), options.get("seconds", 0)
        if (
            not isinstance(kind, str)
            or isinstance(seconds, bool)
            or not isinstance(seconds, int | float)
        ):
            raise bad("kind must be a string, and seconds a number")
        if not principal_of(request).may(admin_action(topic), topic):  # broker alarms need more
            raise api_error("UNAUTHORIZED")
        try:
            if request.url.path.endswith("/ack"):
                silenced = await self._source.alarm_ack(topic, channel, kind=kind, seconds=seconds)
            else:
                silenced = await self._source.alarm_unack(topic, channel, kind=kind)
            return answer({"done": True, **silenced})
        finally:
            self._stir()

    async def _publish(self, request: Request) -> Response:
        """Publish messages with keys, tags, headers and delays.

        Each request opens a producer, because `Gatherer` does not support keys, tags, headers and
        offsets.
        """
        limiters = self._limiters
        try:
            with share_of(request, limiters) as share:
                size_max = limiters.limits.max_msg_size
                options = await read_options(share, 2 * size_max + OPTIONS_BYTES_MAX)
                topic, wanted = (
                    check_name(parameters_of(request).get("topic") or ""),
                    published(options),
                )
                if max(map(len, wanted.bodies)) > size_max:
                    raise api_error("MSG_TOO_BIG")
                bodies, key, tag, headers, delay, expires_in, revoke_key = wanted
                if CHANNEL_HEADER in (headers or ()):
                    check_address(principal_of(request), topic)
                with limiters.publishes.place(holder_of(request)):
                    producer = self._open_producer()
                    try:
                        receipt = await producer.publish_many(
                            topic, bodies, key=key, tag=tag, headers=headers, delay=delay,
                            expires_in=expires_in, revoke_key=revoke_key,
                        )  # fmt: skip
                    finally:
                        with contextlib.suppress(ZsqError):  # the publish already raised the error
                            await producer.close(END_S)
        finally:
            self._stir()
        return answer(
            {
                "done": True,
                "count": len(bodies),
                **await self._place(topic, receipt),
                "keys": receipt.delayed_keys()[:KEYS_MAX],
            }
        )

    async def _place(self, topic: str, receipt: ReceiptView) -> Mapping[str, object]:
        """Return the offset, the part and the id of the first message, as far as they are known.

        The broker's answer is used as it is: a delayed message has none of the three, and messages
        in several parts have no common place.
        """
        offset = receipt.offset
        if offset is None or offset < 0:
            return {"offset": None, "part": None, "id": None}
        place = part_of(topic)
        part = receipt.part if place is None else place[1]
        return {"offset": offset, "part": part, "id": id_of(offset, await self._node(), part)}

    # Previews

    async def preview(self, request: Request) -> Response:
        parameters = parameters_of(request)
        topic, channel = check_name(parameters.get("topic") or ""), parameters.get("channel") or ""
        action = parameters.get("action") or ""
        keys = number(parameters, "keys", 0, 0, 1 << 53) if parameters.get("keys") else None
        to = _place(parameters) if action == "channel.seek" else None
        offsets = None
        if (text := parameters.get("offsets")) is not None:
            offsets = _offsets({"offsets": [_whole(offset) for offset in text.split(",")]})
            # Which messages a channel has finished is more than a user with `view` may see.
            path = "/api/channel/skip" if action == "channel.skip" else "/api/redrive"
            if not all(
                principal_of(request).may(action_of_path, topic, channel)
                for action_of_path in actions_of("POST", path)
            ):
                raise api_error("UNAUTHORIZED")
        return answer(await self._preview(action, topic, channel, to, keys, offsets))

    async def _preview(
        self,
        action: str,
        topic: str,
        channel: str,
        to: object,
        keys: int | None = None,
        offsets: Sequence[int] | None = None,
    ) -> previews.Preview:
        """`to` is a position in the form of the body of a seek."""
        combined = whole_topic(await self._stats.fresh(topic), topic)
        channel_row: ChannelStats | None = None
        if action.startswith("channel."):
            channel_row = combined.channel(channel)
            if channel_row is None:
                raise api_error("CHANNEL_NOT_FOUND")
        offset = None if to is None else await self._offset(topic, to)
        chosen = None
        if offsets is not None:
            chosen = len(offsets), await self._unfinished(combined, channel or REDRIVE, offsets)
        request = previews.ActionRequest(
            combined.row, channel_row, offset, keys, chosen, combined.missing
        )
        return previews.preview(action, request)

    async def _unfinished(
        self, combined: WholeTopic, channel: str, offsets: Sequence[int]
    ) -> list[int]:
        """Return which of the offsets the channel has not finished.

        Without a channel for redrives, that is all that are stored.
        """
        row = combined.row
        if channel == REDRIVE and combined.channel(channel) is None:
            return [offset for offset in offsets if row["start"] <= offset < row["head"]]
        return await self._source.skip(row["topic_name"], channel, offsets, preview=True)

    async def _offset(self, topic: str, to: object) -> int:
        if to in ("earliest", "latest"):
            return 0 if to == "earliest" else END
        if isinstance(to, dict):
            time_s = _time_s(to)
            if time_s > time.time() + CLOCKS_DIFFER_S:
                raise bad("this time has not come yet; to skip all waiting messages, take latest")
            async with self._open(topic) as reader:
                return await reader.offset_at(int(time_s * 1000) * 1_000_000)
        if type(to) is int:
            return to
        raise bad(f"a position is an offset, earliest, latest or a time, not {repr(to)[:40]}")

    async def _check_seen(self, action: str, topic: str, channel: str, options: JsonObject) -> None:
        """Refuse an action if it would affect more than the user has seen. Raises `ApiError`.

        `seen` is what the preview has returned. It is taken out of the options. The statistics
        are read again here, so the gap to the action itself is a few milliseconds.
        """
        if "seen" not in options:
            return
        seen = _seen(options.pop("seen"))
        if action == "topic.close" and _side(options) == "consumers":
            action = "topic.close.consumers"
        now: previews.SeenCounts
        if previews.has_preview(action):
            to = options.get("to") if action == "channel.seek" else None
            offsets = _offsets(options) if "offsets" in options else None
            now = (await self._preview(action, topic, channel, to, offsets=offsets))["seen"]
        else:
            row = whole_topic(await self._stats.fresh(topic), topic).row
            now = {"uuid": row["uuid"], "counts": {}}
        if changed := previews.change(seen, now):
            raise ApiError(409, f"E_CHANGED {changed}")


def _place(parameters: Parameters) -> object:
    """Return the position in a query, in the form of the body of a seek."""
    to = parameters.get("to")
    if to is None or to in ("earliest", "latest"):
        return to
    if not to.startswith("time:"):
        return number(parameters, "to", 0, 0, END)
    if not to[5:].isdecimal():
        raise bad(f"MS in to=time:MS must be milliseconds since 1970, not {to[5:45]!r}")
    return {"time_ms": int(to[5:])}


def _seen(seen: object) -> previews.SeenCounts:
    """Return what the user of an action has seen. Raises `ApiError` if it has another form."""
    if isinstance(seen, dict) and isinstance(seen.get("uuid"), str):
        counts = seen.get("counts")
        if isinstance(counts, dict) and all(type(count) is int for count in counts.values()):
            return {"uuid": seen["uuid"], "counts": counts}
    raise bad("seen must be what the preview has returned as seen")


def _offsets(options: JsonObject) -> list[int]:
    """Return the chosen messages, each once. Raises `ApiError` if they are invalid."""
    offsets = options.get("offsets")
    if (
        isinstance(offsets, list)
        and 1 <= len(offsets) <= SKIPPED_MAX
        and all(type(offset) is int and 0 <= offset < END for offset in offsets)
    ):
        return sorted(set(cast("list[int]", offsets)))
    raise bad(f"offsets must be 1 to {SKIPPED_MAX:,} offsets, which are whole numbers from 0 on")


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else -1


def _side(options: JsonObject) -> Side:
    """Return the side that a topic is closed to or opened to. The broker checks the value."""
    return cast("Side", options.get("to", "publishers"))


def _schedule(options: JsonObject) -> str:
    """Return the name of a schedule. The broker checks it."""
    name = options.get("name")
    if not isinstance(name, str):
        raise bad('"name" is missing; give {"name": NAME}')
    return name


class ScheduleSettings(TypedDict, total=False):
    cron: str
    timezone: str
    missed: str


def _schedule_settings(options: JsonObject) -> ScheduleSettings:
    """Return the settings of a schedule that are texts. The broker checks them."""
    settings: ScheduleSettings = {}
    for name in ScheduleSettings.__optional_keys__ & options.keys():
        value = options[name]
        if not isinstance(value, str):
            raise bad(f"{name} must be a string, not {repr(value)[:40]}")
        settings[name] = value  # type: ignore[literal-required]
    return settings


def _without(options: JsonObject, *names: str) -> JsonObject:
    return {name: value for name, value in options.items() if name not in names}


def _first_due(scheduled: Scheduled) -> Mapping[str, object]:
    return {"next_due_ms": scheduled["next_due_ns"] // 1_000_000}


def _known(options: JsonObject, kind: Any) -> Any:
    """Return settings as keyword arguments.

    Raises `ApiError` if one is unknown. Otherwise the call would raise `TypeError`.
    """
    known: frozenset[str] = kind.__optional_keys__
    unknown = options.keys() - known
    if unknown:
        raise bad(
            f"unknown setting {', '.join(sorted(unknown))[:80]}; the settings are "
            f"{', '.join(sorted(known))}"
        )
    return options


def _check_dead_letters(
    topic: str, channel: str, options: JsonObject, principal: Principal
) -> None:
    """Check the permissions for a channel's dead-letter topic. Raises `ApiError` without them.

    The channel copies bodies to that topic on behalf of the user that sets it. So the user must be
    permitted to read the channel's topic and to publish to the dead-letter topic.
    """
    if isinstance(options.get(DEAD_LETTER_TOPIC), str):  # else the broker reports the error
        try:
            check_dead_letters(principal, topic, channel, options)
        except Refused:
            raise api_error("UNAUTHORIZED") from None


def _time_s(options: Mapping[str, object]) -> float:
    time_ms = options.get("time_ms")
    if (
        options.keys() == {"time_ms"}
        and isinstance(time_ms, (int, float))
        and abs(time_ms) < 1 << 43
    ):
        return float(time_ms) / 1000
    raise bad('a time must be {"time_ms": milliseconds since 1970}')
