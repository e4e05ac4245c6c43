"""Handlers for the data of the console's pages: the board, its history, details, and messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from .....transport.block.block import Block
from .....transport.client.asyncio.aio import Admin, Reader
from .....transport.client.core import redrive
from .....transport.client.core.letter_groups import kind_of, letter_groups
from .....transport.client.core.message import (
    StoredMessage,
    count_missing,
    message_at,
    parse_id,
    part_in_id,
)
from .....transport.names import part_of
from .....transport.whole_topic import whole_topic
from .....transport.wire.actions import Action
from ....runtime.process import private_bytes
from ....security.policy import STATS, visible
from ...limiter import Limiter
from ..api.broker import SharedStats
from ..web.authority import principal_of
from ..web.body import Parameters
from ..web.places import WorkTurns, holder_of
from ..web.responses import ApiError, api_error
from . import answers as bodies
from .answers import HEADERS, answer, bad, number, parameters_of
from .board import BoardRow, BoardView
from .history import CHANNEL_FIGURES, FINE, SPANS, TOPIC_FIGURES, stride
from .page_details import channel_details, chunk_rows, topic_details
from .redrive_jobs import RedriveJobs
from .sampler import Sampler

ADMIN: Final = Action.MANAGE_TOPIC
MESSAGES_MAX: Final = 100
READ_BYTES: Final = 1024 * 1024
# The most bytes of messages that are read for one reply, before bodies are cut.
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
LOOKS_MAX: Final = 4  # the most reads that run at the same time; each may hold some blocks
SPARK_POINTS: Final = 60
PEEK_MAX: Final = 200
MEMORY_AGE_S: Final = 5.0
LONG_SPANS: Final = ("1d", "30d")  # kept by the broker, and not by this gateway
LONG_POINTS: Final = 720
LETTERS_MAX: Final = 1_000  # the most dead letters that are read to group them
LETTERS_BYTES_MAX: Final = 32 * 1024 * 1024
# The first step of dead letters, from the newest on. While a step is small, the next one is larger.
LETTERS_STEP: Final = 10


class ReadHandlers:
    """The handlers of GET paths."""

    def __init__(
        self,
        source: Admin,
        open_reader: Callable[[str], Reader],
        stats: SharedStats,
        sampler: Sampler,
        jobs: RedriveJobs,
        node: Callable[[], Awaitable[int]],
        looks: Limiter,
    ) -> None:
        self._node = node
        self._source = source
        self._open = open_reader
        self._stats = stats
        self._sampler = sampler
        self._jobs = jobs
        self._looks = WorkTurns(looks, LOOKS_MAX)
        self._memory: tuple[float, dict[int, int]] = (-MEMORY_AGE_S, {})
        self._measuring = asyncio.Lock()

    # From the board

    async def overview(self, request: Request) -> Response:
        parameters = parameters_of(request)
        topic = parameters.get("topic") or ""
        board = await self._sampler.fresh(topic)
        if topic and topic not in board.topics:
            raise ApiError(404, f"E_NOT_FOUND topic {topic!r} does not exist")
        return answer(
            BoardView(
                principal_of(request), topic, bool(topic) or parameters.flag("channels", False)
            ).whole(board)
        )

    async def history(self, request: Request) -> Response:
        parameters = parameters_of(request)
        topic, channel = parameters.get("topic") or "", parameters.get("channel") or ""
        if not topic:
            raise bad("topic is missing; give topic=NAME")
        await self._sampler.fresh()
        names = _series(parameters, [*(CHANNEL_FIGURES if channel else TOPIC_FIGURES)])
        if (span_name := parameters.get("span")) in LONG_SPANS:
            points = number(parameters, "points", LONG_POINTS, 1, LONG_POINTS)
            report = await self._source.history(
                topic, channel or None, span=str(span_name), points=points
            )
            kept = {name: report["series"].get(name, ()) for name in names}
            return answer({**report, "series": kept})
        span, points = _span(parameters, FINE * 4)
        series = self._sampler.history.series(
            topic, channel, span, names, points, self._sampler.second()
        )
        return answer(self._times(span, points) | {"series": series})

    async def histories(self, request: Request) -> Response:
        parameters, principal = parameters_of(request), principal_of(request)
        topic = parameters.get("topic") or ""
        board, history = await self._sampler.fresh(), self._sampler.history
        span, points = _span(parameters, SPARK_POINTS)
        names = _series(
            parameters,
            [*(CHANNEL_FIGURES if topic else TOPIC_FIGURES)],
            ["depth", "out"] if topic else ["in", "backlog"],
        )
        second = self._sampler.second()
        if topic:
            row = board.topics.get(topic)
            histories = {
                channel_name: history.series(topic, channel_name, span, names, points, second)
                for channel_name in (row.channels if row is not None else ())
            }
        else:
            histories = {
                name: history.series(name, "", span, names, points, second)
                for name, _ in board.rows(principal)
            }
        return answer(self._times(span, points) | {"channels" if topic else "topics": histories})

    def _times(self, span: str, points: int) -> dict[str, object]:
        step_s = SPANS[span][1]
        # The time since the last complete 10 seconds.
        late_ms = (self._sampler.second() % step_s) * 1000
        return {
            "step_s": step_s * stride(span, points),
            "end_ms": self._sampler.board.now_ms - late_ms,
        }

    async def alarms(self, request: Request) -> Response:
        overview = await self._source.overview(since=self._sampler.board.version, alarms=True)
        return answer(
            BoardView(principal_of(request)).alarms(overview.get("alarms", self._sampler.alarms))
        )

    async def jobs(self, request: Request) -> Response:
        return answer({"jobs": self._jobs.rows(principal_of(request))})

    # From requests to the broker

    async def schedules(self, request: Request) -> Response:
        parameters, principal = parameters_of(request), principal_of(request)
        if any(parameters.count(name) > 1 for name in ("topic", "channel")):
            raise api_error("INVALID_REQUEST")
        rows = [
            row
            for row in await self._source.schedule_list(parameters.get("topic") or None)
            if principal.may(Action.SEE, row["topic"])
        ]
        letters = {"a": ADMIN, "p": Action.PUBLISH}
        may = {
            row["topic"]: "".join(
                letter for letter in letters if principal.may(letters[letter], row["topic"])
            )
            for row in rows
        }
        return answer(bodies.schedules(rows, may))

    async def topic(self, request: Request) -> Response:
        topic = _topic(parameters_of(request))
        board, stats = (
            await self._sampler.fresh(topic),
            visible(await self._stats.fresh(topic), principal_of(request), STATS),
        )
        known = BoardView(principal_of(request), topic, True).whole(board)["topics"].get(topic, {})
        return answer({"now_ms": board.now_ms, **topic_details(stats, topic, known)})

    async def channel(self, request: Request) -> Response:
        parameters = parameters_of(request)
        topic, channel = _topic(parameters), parameters.get("channel") or ""
        board, stats = await self._sampler.fresh(topic), await self._stats.fresh(topic)
        combined = whole_topic(stats, topic)
        row = combined.channel(channel)
        if row is None:
            raise ApiError(
                404, f"E_NOT_FOUND channel {channel!r} of topic {topic!r} does not exist"
            )
        channels = (
            BoardView(principal_of(request), topic, True)
            .whole(board)["topics"]
            .get(topic, {})
            .get("channels")
        )
        known = channels.get(channel, {}) if isinstance(channels, dict) else {}
        known = {**known, "topic_uuid": combined.row["uuid"]}
        return answer({"now_ms": board.now_ms, **channel_details(row, known)})

    async def chunks(self, request: Request) -> Response:
        topic = _topic(parameters_of(request))
        board = await self._sampler.fresh(topic)
        cursors = (
            {name: row.values["next_offset"] for name, row in board.topics[topic].channels.items()}
            if topic in board.topics
            else {}
        )
        return answer(chunk_rows(await self._source.chunks(topic)) | {"cursors": cursors})

    async def processes(self, request: Request) -> Response:
        overview = await self._source.overview(since=self._sampler.board.version, processes=True)
        rows: list[dict[str, Any]] = [{**row} for row in overview.get("processes", ())]
        memory = await self._memory_of([row["pid"] for row in rows])
        for row in rows:
            row["memory_bytes"] = None if row.get("host") else memory.get(row["pid"])
        return answer(
            {
                "processes": rows,
                "memory_bytes": sum(memory.values()),
                "bucket": overview.get("bucket"),
            }
        )

    async def audit(self, request: Request) -> Response:
        return answer(
            {
                "entries": await self._source.audit(
                    count=number(parameters_of(request), "count", 100, 1, 1_000)
                )
            }
        )

    async def _memory_of(self, pids: list[int]) -> dict[int, int]:
        """Return the memory of processes in bytes, by pid, at most MEMORY_AGE_S old.

        It is measured in a thread, because a thousand processes take some tenths of a second.
        """
        loop = asyncio.get_running_loop()
        async with self._measuring:
            if loop.time() - self._memory[0] > MEMORY_AGE_S:
                self._memory = loop.time(), await asyncio.to_thread(_measured, pids)
        return self._memory[1]

    # Messages

    async def peek(self, request: Request) -> Response:
        parameters = parameters_of(request)
        topic, channel = _topic(parameters), parameters.get("channel") or ""
        count, room = number(parameters, "count", 20, 1, PEEK_MAX), _room(parameters, 1024)
        async with self._looks.turn(holder_of(request)):
            peek = await self._source.peek(topic, channel, count=count)
        return answer(bodies.peeked(peek, await self._node(), room))

    async def messages(self, request: Request) -> Response:
        parameters = parameters_of(request)
        topic, room = _topic(parameters), _room(parameters, bodies.BODY_BYTES)
        count = number(parameters, "count", MESSAGES_MAX, 1, MESSAGES_MAX)
        node = await self._node()
        async with self._looks.turn(holder_of(request)), self._open(topic) as reader:
            start, head = await reader.bounds()
            first = max(await self._first(parameters, reader, topic, node, count), start)
            messages, after, missing = await _read(topic, reader, first, head, count)
            shown = [bodies.message(message, node, room) for message in messages]
        place = {"start": start, "head": head, "from": first, "next_offset": after}
        return answer({**place, "missing": missing, "messages": shown})

    async def dead_letters(self, request: Request) -> Response:
        """Group the newest dead letters, and return the letters of one `group`, the newest first.

        Letters before those that wait to be sent back are left out if all of them were sent back.
        """
        parameters = parameters_of(request)
        topic, room = _topic(parameters), _room(parameters, bodies.BODY_BYTES)
        chosen, node = parameters.get("group") or "", await self._node()
        board = await self._sampler.fresh(topic)
        row = board.topics.get(topic)
        sender = row.channels.get(redrive.CHANNEL) if row is not None else None
        async with self._looks.turn(holder_of(request)), self._open(topic) as reader:
            start, head = await reader.bounds()
            first = max(start, _first_letter(sender, head))
            letters, at, missing = await _newest(topic, reader, first, head)
            groups = letter_groups((letter.headers, letter.timestamp_ns) for letter in letters)
            members = [
                letter for letter in letters if chosen and kind_of(letter.headers).id == chosen
            ]
            newest = members[-MESSAGES_MAX:]
            shown = [bodies.message(letter, node, room) for letter in reversed(newest)]
        place = {"from": at, "head": head, "read": len(letters), "all": at <= first}
        return answer({**place, "missing": missing, "groups": groups, "messages": shown})

    async def body(self, request: Request) -> Response:
        parameters = parameters_of(request)
        topic, offset = _topic(parameters), number(parameters, "offset", -1, 0, 1 << 62)
        async with self._looks.turn(holder_of(request)), self._open(topic) as reader:
            _, head = await reader.bounds()
            messages, *_ = await _read(topic, reader, offset, head, 1)
        if offset < 0 or not messages or messages[0].offset != offset:
            raise ApiError(404, f"E_NOT_FOUND topic {topic} has no message {offset}")
        headers = {
            **HEADERS,
            "content-disposition": f'attachment; filename="{topic.partition("#")[0]}-{offset}"',
        }
        headers["content-security-policy"] = "sandbox; default-src 'none'"
        return Response(messages[0].body, 200, headers, media_type="application/octet-stream")

    async def delayed(self, request: Request) -> Response:
        parameters = parameters_of(request)
        topic, limit = _topic(parameters), number(parameters, "limit", MESSAGES_MAX, 1, 1_000)
        count = await self._source.delayed_count(topic)
        rows = await self._source.delayed_list(
            topic, after=parameters.get("after") or "", count=limit
        )
        head = {
            "count": count["messages"],
            "bytes": count["bytes"],
            "next_due_ms": count["next_due_ns"] // 1_000_000,
            "lost": count["lost"],
        }
        return answer(head | {"messages": bodies.delayed(rows)})

    @staticmethod
    async def _first(
        parameters: Parameters, reader: Reader, topic: str, node: int, count: int
    ) -> int:
        """Return the first offset to show, from the one parameter that gives it."""
        places = [
            name
            for name in ("offset", "id", "time_ms", "latest")
            if parameters.get(name) is not None
        ]
        if len(places) > 1:
            raise bad(
                f"give only one of offset, id, time_ms and latest, not {' and '.join(places)}"
            )
        if places == ["offset"]:
            return number(parameters, "offset", 0, 0, 1 << 62)
        if places == ["time_ms"]:
            return await reader.offset_at(
                number(parameters, "time_ms", 0, -(1 << 42), 1 << 42) * 1_000_000
            )
        if places == ["id"]:
            text, part = parameters.get("id") or "", part_of(topic)
            of, offset = parse_id(text)
            if of is not None and part is not None and part_in_id(text) != part[1]:
                raise ApiError(404, f"E_NOT_FOUND this message is in part {part_in_id(text)}")
            if of is not None and part is None and of != node:
                raise ApiError(
                    404,
                    (
                        f"E_NOT_FOUND this message id is from node {of}, but this broker is node "
                        f"{node}"
                    ),
                )
            return offset
        return await reader.newest(count)


async def _read(
    topic: str, reader: Reader, first: int, head: int, count: int
) -> tuple[list[StoredMessage], int, int]:
    """Return messages from `first` on, the offset to continue at, and how many before it cannot be
    read.
    """
    messages: list[StoredMessage] = []
    at, size, missing = first, 0, 0
    while at < head:
        fetched = await reader.read(at, READ_BYTES if messages else 1)
        passed = at
        for block in fetched.blocks:
            for message in _of_block(topic, block, at, head):
                if len(messages) < count and size < HELD_BYTES_MAX:
                    messages.append(message)
                    size += len(message.body)
                    at = message.offset + 1
        is_full = len(messages) >= count or size >= HELD_BYTES_MAX
        if not is_full:
            at = max(at, fetched.next_offset)
        missing += count_missing(fetched, passed, min(at, head))
        if is_full or (fetched.next_offset <= passed and not fetched.blocks):
            break
    return messages, at, missing


async def _newest(
    topic: str, reader: Reader, first: int, head: int
) -> tuple[list[StoredMessage], int, int]:
    """Return the newest messages from `first` on, from where they are, and how many of these cannot
    be read.

    The bounds are LETTERS_MAX and LETTERS_BYTES_MAX. The last step may exceed them by one step.
    """
    letters: list[StoredMessage] = []
    at, size, missing, step = head, 0, 0, LETTERS_STEP
    while at > first and len(letters) < LETTERS_MAX and size < LETTERS_BYTES_MAX:
        begin, end = max(first, at - step), at
        at, read, passed = begin, [], begin
        while passed < end:
            messages, after, lost = await _read(topic, reader, passed, end, step)
            read += messages
            missing += lost
            if after <= passed:
                break
            passed = after
        letters = read + letters
        size_now = sum(len(message.body) for message in read)
        size += size_now
        step = min(step * (2 if size_now < READ_BYTES else 1), LETTERS_MAX - len(letters))
    return letters, at, missing


def _first_letter(sender: BoardRow | None, head: int) -> int:
    """Return the first offset that was not sent back, or 0 if there may be earlier ones."""
    if sender is None:
        return 0
    values = sender.values
    held = values["in_flight"] + values["deferred"] + values["dying"]
    position = int(values["next_offset"])
    return position if not held and values["depth"] <= head - position else 0


def _of_block(topic: str, block: Block, first: int, head: int) -> Any:
    """Return the messages of a block lazily, because only a few may be needed."""
    start, stop = max(0, first - block.first_offset), min(block.count, head - block.first_offset)
    return (message_at(topic, block, index) for index in range(start, stop))


def _topic(parameters: Parameters) -> str:
    topic = parameters.get("topic")
    if not topic:
        raise bad("topic is missing; give topic=NAME")
    return topic


def _room(parameters: Parameters, otherwise: int) -> bodies.Room:
    return bodies.Room(number(parameters, "body_max", otherwise, 0, bodies.BODY_BYTES_MAX))


def _span(parameters: Parameters, points: int) -> tuple[str, int]:
    span = parameters.get("span") or "5m"
    if span not in SPANS:
        raise bad(f"span must be one of {', '.join(SPANS)}, not {span[:20]!r}")
    return span, number(parameters, "points", points, 1, 1_000)


def _series(
    parameters: Parameters, known: list[str], otherwise: list[str] | None = None
) -> list[str]:
    text = parameters.get("series")
    if not text:
        return otherwise or known
    names = text.split(",")
    for name in names:
        if name not in known:
            raise bad(f"unknown series {name[:20]!r}; the series are {', '.join(known)}")
    return names


def _measured(pids: list[int]) -> dict[int, int]:
    """Return the memory by pid. Processes that cannot be read (size 0) are left out."""
    sizes: Mapping[int, int] = {pid: private_bytes(pid) for pid in pids}
    return {pid: size for pid, size in sizes.items() if size}
