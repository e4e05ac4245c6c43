"""What the console's pages do: each a POST, with names in the query and options in a JSON body; and what it would cost, before.

Whoever may do it was looked at before (needs.py); here only what a body names besides: another topic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ....transport.channel_options import END, ChannelOptions, NewChannelOptions
from ....transport.client import RetentionSettings
from ....transport.names import check_name
from ....transport.redrive import CHANNEL as REDRIVE
from ..errors import api_error
from ..limits import Budget, HttpLimits
from ..parameters import Parameters
from ..rights import Rights, rights_of
from ..sharing import SharedStats
from . import losses
from .answers import answer, bad, number, options_of, parameters_of
from .jobs import Jobs
from .source import Open, Source

KEYS_MAX: Final = 1_000
Options = dict[str, Any]
Do = Callable[[str, str, Options, Rights], Awaitable[Mapping[str, Any]]]


class Doing:
    """The handlers; `table` has them by their paths. `stir` is called after each action: what it did is to be seen."""

    def __init__(
        self, source: Source, open_reader: Open, stats: SharedStats, jobs: Jobs, limits: HttpLimits, stir: Callable[[], None]
    ) -> None:
        self._source = source
        self._open = open_reader
        self._stats = stats
        self._jobs = jobs
        self._stir = stir
        self._limits = limits
        self._budget = Budget(limits.bodies_bytes_max)

    def table(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        source = self._source
        actions: dict[str, Do] = {
            "/api/topic/create": self._create_topic,
            "/api/topic/configure": lambda topic, _, options, __: source.configure_topic(topic, **_known(options, RetentionSettings)),
            "/api/topic/pause": lambda topic, *_: source.pause(topic),
            "/api/topic/unpause": lambda topic, *_: source.unpause(topic),
            "/api/topic/empty": lambda topic, *_: source.empty(topic),
            "/api/topic/close": lambda topic, _, options, __: source.close_topic(topic, options.get("to", "publishers")),
            "/api/topic/open": lambda topic, _, options, __: source.open_topic(topic, options.get("to", "publishers")),
            "/api/topic/delete": lambda topic, _, options, __: source.delete_topic(topic, force=options.get("force") is True),
            "/api/channel/create": self._create_channel,
            "/api/channel/configure": self._configure_channel,
            "/api/channel/pause": lambda topic, channel, *_: source.pause(topic, channel),
            "/api/channel/unpause": lambda topic, channel, *_: source.unpause(topic, channel),
            "/api/channel/empty": lambda topic, channel, *_: source.empty(topic, channel),
            "/api/channel/seek": self._seek,
            "/api/channel/delete": lambda topic, channel, options, _: source.delete_channel(
                topic, channel, force=options.get("force") is True
            ),
            "/api/delayed/cancel": self._cancel,
            "/api/redrive": self._redrive,
        }
        return {path: self._handler(do, with_channel=path.startswith("/api/channel/")) for path, do in actions.items()} | {
            "/api/job/stop": self._stop
        }

    def _handler(self, do: Do, *, with_channel: bool) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            options = await options_of(request, self._limits, self._budget)
            parameters = parameters_of(request)
            topic = check_name(parameters.get("topic") or "")
            channel = check_name(parameters.get("channel") or "", "channel") if with_channel else ""
            try:
                return answer({"done": True, **await do(topic, channel, options, rights_of(request))})
            finally:
                self._stir()

        return handle

    # Where it is more than a call

    async def _create_topic(self, topic: str, channel: str, options: Options, rights: Rights) -> Mapping[str, Any]:
        retention = options.get("retention") or {}
        if not isinstance(retention, dict):
            raise bad("retention is an object of settings")
        return await self._source.create_topic(topic, options.get("sync") or "always", **_known(retention, RetentionSettings))

    async def _create_channel(self, topic: str, channel: str, options: Options, rights: Rights) -> Mapping[str, Any]:
        _check_dead_letters(options, rights)
        settings = _known(options, NewChannelOptions)
        await self._stats.fresh(topic)  # the broker would make the topic
        if isinstance(settings.get("start"), dict):
            settings["start"] = _time_s(settings["start"])
        return await self._source.create_channel(topic, channel, **settings)

    async def _configure_channel(self, topic: str, channel: str, options: Options, rights: Rights) -> Mapping[str, Any]:
        _check_dead_letters(options, rights)
        return await self._source.configure_channel(topic, channel, **_known(options, ChannelOptions))

    async def _seek(self, topic: str, channel: str, options: Options, rights: Rights) -> Mapping[str, Any]:
        to = options.get("to")
        if to is None:
            raise bad('say where to: {"to": OFFSET, "earliest", "latest" or {"time_ms": N}}')
        where = _time_s(to) if isinstance(to, dict) else to
        return await self._source.seek(topic, channel, where, forward=options.get("forward") is True)

    async def _cancel(self, topic: str, channel: str, options: Options, rights: Rights) -> Mapping[str, Any]:
        if options.get("all") is True:
            return {"cancelled": await self._source.delayed_cancel_all(topic), "not_found": 0}
        keys = options.get("keys")
        if not isinstance(keys, list) or not 1 <= len(keys) <= KEYS_MAX or not all(isinstance(key, str) for key in keys):
            raise bad(f'say which: {{"keys": [1 to {KEYS_MAX} keys]}} or {{"all": true}}')
        found = await self._source.delayed_cancel(topic, keys)
        return {"cancelled": sum(found), "not_found": len(found) - sum(found)}

    async def _redrive(self, topic: str, channel: str, options: Options, rights: Rights) -> Mapping[str, Any]:
        to, only, count = options.get("to"), options.get("channel"), options.get("count")
        if to is not None:
            check_name(to)
            if not (rights.may_publish(to) or rights.may_admin(to)):
                raise api_error("UNAUTHORIZED")
        if only is not None:
            check_name(only, "channel")
        if count is not None and (type(count) is not int or count < 1):
            raise bad("count is a number of dead letters, 1 or more")
        await self._stats.fresh(topic)  # it is there
        await self._source.create_channel(topic, REDRIVE, start="earliest")  # with the name of who does it, for the audit log
        return {"job": self._jobs.start(topic, to, only, count, rights).row()}

    async def _stop(self, request: Request) -> Response:
        await options_of(request, self._limits, self._budget)
        job = self._jobs.stop(number(parameters_of(request), "id", 0, 0, 1 << 53), rights_of(request))
        return answer({"done": True, "job": job.row()})

    # Before

    async def preview(self, request: Request) -> Response:
        parameters = parameters_of(request)
        topic, channel = check_name(parameters.get("topic") or ""), parameters.get("channel") or ""
        action = parameters.get("action") or ""
        row = (await self._stats.fresh(topic))["topics"][0]
        own: Mapping[str, Any] = {}
        if action.startswith("channel."):
            own = next((one for one in row["channels"] if one["channel_name"] == channel), {})
            if not own:
                raise api_error("CHANNEL_NOT_FOUND")
        to = await self._offset(topic, parameters) if action == "channel.seek" else None
        keys = number(parameters, "keys", 0, 0, 1 << 53) if parameters.get("keys") else None
        return answer(losses.preview(action, losses.Asked(row, own, to, keys)))

    async def _offset(self, topic: str, parameters: Parameters) -> int | None:
        to = parameters.get("to")
        if to in ("earliest", "latest"):
            return 0 if to == "earliest" else END
        if to is None or not to.startswith("time:"):
            return None if to is None else number(parameters, "to", 0, 0, END)
        if not to[5:].isdecimal():
            raise bad("to=time:MS wants milliseconds since 1970")
        async with self._open(topic) as reader:
            return await reader.offset_at(int(to[5:]) * 1_000_000)


def _known(options: Options, kind: Any) -> Any:
    """Settings, as keywords. What is not known is refused here: it would be a TypeError."""
    known: frozenset[str] = kind.__optional_keys__
    unknown = options.keys() - known
    if unknown:
        raise bad(f"there is no setting {', '.join(sorted(unknown))[:80]}; known: {', '.join(sorted(known))}")
    return options


def _check_dead_letters(options: Options, rights: Rights) -> None:
    """A channel writes to that topic in the name of whoever sets it."""
    topic = options.get("dead_letter_topic")
    if isinstance(topic, str) and topic and not (rights.may_publish(topic) or rights.may_admin(topic)):
        raise api_error("UNAUTHORIZED")


def _time_s(given: Mapping[str, Any]) -> float:
    time_ms = given.get("time_ms")
    if given.keys() == {"time_ms"} and isinstance(time_ms, (int, float)) and abs(time_ms) < 1 << 43:
        return float(time_ms) / 1000
    raise bad('a time is {"time_ms": milliseconds since 1970}')
