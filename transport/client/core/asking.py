"""Requests of Admin and Reader as generators, and the encoding of settings and places. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, TypedDict, TypeVar

from ...block.block import Block
from ...errors import (
    E_BAD_ARGUMENT,
    E_CLOSING,
    E_NOT_FOUND,
    E_UNREACHABLE,
    BrokerUnreachable,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from ...names import check_name, is_channel_missing, part_name, part_of, parts_text
from ...settings import CHANNEL
from ...wire.admin_codec import manage_of, request_of, row_of
from ...wire.admin_requests import END, ROW_OF, AdminRequest
from ...wire.protocol import Done, Manage, Spread, Stats, Wire
from ...wire.spread import HasParts, addresses_of, why_missing

_T = TypeVar("_T")


class Question(NamedTuple):
    """One request.

    `make` builds the message from its number. `repeatable` is True if it is harmless to send the
    request twice. With `partial`, the answer about a topic with parts leaves out the parts that do
    not answer within `PARTIAL_S`, and says so.
    """

    make: Callable[[int], Wire]
    repeatable: bool = True
    partial: bool = False


Reply = tuple[Wire, list[Block]]
Asking = Generator[Question, Reply, _T]
"""The steps of a client call, without waiting.

The generator yields a question. It is sent the reply, or the error is thrown into it. The blocking
client and the asyncio client run it.
"""


def ask(question: Question) -> Asking[Any]:
    """Send the question and return the data of the `Done` reply.

    The type of the data depends on the question.
    """
    answer, _ = yield question
    assert isinstance(answer, Done)
    return answer.data


def ask_admin(request: AdminRequest[_T]) -> Asking[_T]:
    """Send an administrative request to the supervisor, and return the answer."""
    return ask(
        Question(
            lambda number: manage_of(replace(request, request=number)),
            ROW_OF[type(request)].is_repeatable,
        )
    )


def ask_stats(
    topic: str | None = None, channel: str | None = None, *, partial: bool = False
) -> Asking[Any]:
    """Ask the supervisor for statistics (`BrokerStats`). `partial`: see `Question`."""
    if channel is not None and topic is None:
        raise UsageError(E_BAD_ARGUMENT, "a channel needs its topic: give topic, too")
    names = (
        "" if topic is None else check_name(topic),
        "" if channel is None else check_name(channel, "channel"),
    )
    return ask(Question(lambda number: Stats(number, *names), partial=partial))


# Requests about a topic with parts

PARTIAL_S: Final = 2.0  # the time limit for a part of a partial answer


def for_parts(question: Question, spread: Spread) -> list[tuple[tuple[str, ...], Question]]:
    """Return the questions to ask instead of this one, with the addresses of their brokers.

    A question about one part goes to its broker. One about the topic goes to all parts. Raises
    `HasParts` if it makes no sense for several parts, and `NotFound` if there is no such part.
    """
    message = question.make(0)
    topic = str(getattr(message, "topic", ""))
    part = part_of(topic)
    if part is not None:
        numbers = [part[1]]
    elif isinstance(message, Stats) or (isinstance(message, Manage) and _is_for_each(message)):
        numbers = sorted(number for number, _ in spread.parts)
    else:
        raise HasParts(spread)
    questions = []
    for number in numbers:
        addresses = addresses_of(spread, number)
        if number not in dict(spread.parts):
            raise NotFound(E_NOT_FOUND, why_missing(spread, number))
        questions.append((addresses, _of_part(question, part_name(spread.topic, number))))
    return questions


def _is_for_each(message: Manage) -> bool:
    row = row_of(message)
    return row is not None and row.each_part and request_of(message).fits_each_part


def _of_part(question: Question, name: str) -> Question:
    def make(number: int) -> Wire:
        message: Any = question.make(number)
        renamed: Wire = replace(message, topic=name)
        return renamed

    return question._replace(make=make)


class PartQuestion(NamedTuple):
    """A question to one part, and the addresses of its broker."""

    part: str
    urls: tuple[str, ...]
    question: Question


class PartAnswers:
    """The answers of all parts of a topic to one question. No I/O.

    To iterate over this object is to ask. The caller passes each answer to `add` or `fail`. Parts
    at a broker that has not answered are not asked, so that each such broker costs one time-out.
    """

    def __init__(self, question: Question, spread: Spread) -> None:
        message = question.make(0)
        self._action = getattr(message, "action", "")
        self._is_partial = question.partial
        self._questions = [
            PartQuestion(str(getattr(part.make(0), "topic", "")), urls, part)
            for urls, part in for_parts(question, spread)
        ]
        self._replies: dict[str, Reply] = {}
        self._missing: dict[str, ZsqError] = {}
        self._away: dict[tuple[str, ...], ZsqError] = {}

    def __iter__(self) -> Iterator[PartQuestion]:
        for part in self._questions:
            if (error := self._away.get(part.urls)) is not None:
                self._missing[part.part] = error
            else:
                yield part

    def timeout(self, timeout: float | None) -> float | None:
        """Return the time limit for one part, from that of the client."""
        if not self._is_partial:
            return timeout
        return PARTIAL_S if timeout is None else min(timeout, PARTIAL_S)

    def add(self, part: PartQuestion, reply: Reply) -> None:
        self._replies[part.part] = reply

    def fail(self, part: PartQuestion, error: ZsqError) -> None:
        """Note an error. Raise it if the other parts need not be asked.

        An order goes on with the parts of the brokers that answer. A refusal is probably the same
        for all parts, so it ends the order.
        """
        if isinstance(error, NotFound) and not is_channel_missing(error.text):
            # The broker that has the part would know it.
            where = f"is at {','.join(part.urls)}, where" if part.urls else "is missing:"
            text = f"part {part.part} {where} a broker answers that does not have it"
            error = BrokerUnreachable(E_UNREACHABLE, text)
        self._missing[part.part] = error
        if isinstance(error, BrokerUnreachable):
            self._away[part.urls] = error
        elif not isinstance(error, NotFound) and not (self._is_partial and type(error) is Refused):
            raise self._with_parts(error)

    def combined(self) -> Reply:
        """Return the reply of the topic, or raise the error of parts that have not answered.

        A part that lacks the channel does not matter to statistics, and to a deletion, which may be
        a repeated one.
        """
        replies = [*self._replies.values()]
        lacking = [error for error in self._missing.values() if isinstance(error, NotFound)]
        away = {
            name: error for name, error in self._missing.items() if not isinstance(error, NotFound)
        }
        if not replies or (away and not self._is_partial):
            raise self._with_parts([*away.values(), *lacking][0])
        if lacking and self._action not in ("", "delete"):
            raise self._with_parts(lacking[0])
        first, blocks = combined(replies)
        if self._action == "seek" and isinstance(first, Done):
            places = {
                name: done.data["offset"]
                for name, (done, _) in self._replies.items()
                if isinstance(done, Done)
            }
            return Done(first.request, {"offset": -1, "parts": places}), blocks
        if self._action == "disconnect" and isinstance(first, Done):
            counts = [done.data["count"] for done, _ in replies if isinstance(done, Done)]
            return Done(first.request, {"count": sum(counts)}), blocks
        if away and isinstance(first, Done):
            unanswered = {name: str(error) for name, error in away.items()}
            return Done(first.request, {**first.data, "unanswered": unanswered}), blocks
        return first, blocks

    def _with_parts(self, error: ZsqError) -> ZsqError:
        """Return the error of an order with the parts that have carried it out."""
        if not self._replies or not self._action:
            return error
        left = [part.part for part in self._questions if part.part not in self._replies]
        text = f"{parts_text(self._replies)} did this, but {parts_text(left)} did not"
        text = f"{text}: repeat the order when the cause is gone. The cause is: {error.text}"
        return type(error)(error.code, text)


class Errand(NamedTuple):
    """A question to the client's own broker or, with `urls`, to the supervisor of another one."""

    question: Question
    timeout: float | None
    urls: tuple[str, ...] = ()


def ask_parts(question: Question, timeout: float | None) -> Generator[Errand, Reply, Reply]:
    """Ask the client's own broker or, if the question is about parts, their brokers."""
    try:
        return (yield Errand(question, timeout))
    except HasParts as error:
        answers = PartAnswers(question, error.spread)
    for part in answers:
        try:
            reply = yield Errand(part.question, answers.timeout(timeout), part.urls)
        except HasParts as error:
            text = f"a part of topic {error.spread.topic} is not where the directory said"
            answers.fail(part, Refused(E_CLOSING, f"{text}; try again in a moment"))
        except ZsqError as error:
            answers.fail(part, error)
        else:
            answers.add(part, reply)
    return answers.combined()


def combined(replies: Sequence[Reply]) -> Reply:
    """Return the reply of a topic from those of its parts.

    Statistics and schedules have the rows of all parts. A channel existed if it did in all parts.
    Everything else is as the first part says.
    """
    first, blocks = replies[0]
    answers = [answer for answer, _ in replies if isinstance(answer, Done)]
    if len(answers) < 2 or not isinstance(first, Done):
        return replies[0]
    data = dict(first.data)
    for rows in ("topics", "schedules"):
        if isinstance(data.get(rows), list | tuple):
            data[rows] = [row for answer in answers for row in answer.data[rows]]
    if "delayed" in data:
        data["delayed"] = sum(answer.data.get("delayed", 0) for answer in answers)
    if "existed" in data:
        data["existed"] = all(answer.data.get("existed") for answer in answers)
    return Done(first.request, data), blocks


# This fits into a field of a protocol message; the broker checks the allowed range.
SETTING_MAX: Final = 1 << 62
SettingValue = int | float | str | None


class Time(TypedDict):
    """A time: nanoseconds since 1970."""

    time_ns: int


def carried(options: Mapping[str, object]) -> dict[str, SettingValue]:
    """Return settings in the form of a protocol message.

    Raises `UsageError` if a value cannot be sent.
    """
    fields: dict[str, SettingValue] = {}
    for name, value in options.items():
        if not isinstance(value, (int, float, str, type(None))) or (
            isinstance(value, int) and abs(value) > SETTING_MAX
        ):
            raise UsageError(
                E_BAD_ARGUMENT,
                f"{name} must be a number up to 2**62, a text or None, not {repr(value)[:40]}",
            )
        fields[name] = value
    return fields


_SETTINGS: Final = (*sorted(row.name for row in CHANNEL), "start")


def on_wire(options: Mapping[str, object]) -> dict[str, SettingValue | Time]:
    """Return a channel's settings in the form of a protocol message.

    Raises `UsageError` if a setting does not exist or a value cannot be sent. A misspelled setting
    is found here, before a broker is asked.
    """
    for name in options:
        if name not in _SETTINGS:
            similar = get_close_matches(name, _SETTINGS, 1)
            hint = f"did you mean {similar[0]}?" if similar else f"use {', '.join(_SETTINGS)}"
            raise UsageError(E_BAD_ARGUMENT, f"{name!r} is not a setting of a channel; {hint}")
    start = options.get("start")
    fields: dict[str, SettingValue | Time] = {
        **carried({name: value for name, value in options.items() if name != "start"})
    }
    if start is not None:
        fields["start"] = place(start)
    return fields


Place = str | int | float | datetime


def seek_place(where: Place) -> tuple[int | None, int | None]:
    """Return the offset or the time (ns) of a place, as a seek has them.

    The broker moves it into the range that the topic holds.
    """
    position = place(where)
    if isinstance(position, str):
        return (0 if position == "earliest" else END), None
    return (position, None) if isinstance(position, int) else (None, position["time_ns"])


def place(where: object) -> str | int | Time:
    """Check a place in a topic and return it: "earliest", "latest", an offset, or a time."""
    if isinstance(where, datetime):
        where = where.timestamp()
    if isinstance(where, float) and abs(where) < SETTING_MAX / 1e9:
        return {"time_ns": round(where * 1_000_000) * 1_000}
    if (isinstance(where, str) and where in ("earliest", "latest")) or (
        type(where) is int and 0 <= where <= SETTING_MAX
    ):
        return where
    raise UsageError(
        E_BAD_ARGUMENT,
        (
            "a place must be 'earliest', 'latest', an offset, or a time (datetime, or seconds as "
            f"float), not {where!r:.60}"
        ),
    )
