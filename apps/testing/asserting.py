"""Assertions about what was published. They wait for it, and their errors show what was found."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from ...transport.client.blocking.client import Admin, Reader
from ...transport.client.core.message import StoredMessage, message_at
from ...transport.errors import E_BAD_ARGUMENT, NotFound, UsageError, ZsqError
from ...transport.wire.codec import HeaderValue

WAIT_S: Final = 5.0
LOOK_S: Final = 0.01
SHOWN_MAX: Final = 20
BODY_SHOWN_MAX: Final = 200
READ_BYTES: Final = 4 * 1024 * 1024


class _Any:
    """The default of an expectation: it is not checked. None is a value that can be expected."""

    def __repr__(self) -> str:
        return "ANY"


ANY: Final[Any] = _Any()


def _bytes(value: Any, caption: str) -> bytes | None:
    if value is None or isinstance(value, bytes | bytearray | memoryview):
        return None if value is None else bytes(value)
    if isinstance(value, str):
        return value.encode()
    text = f"{caption} must be bytes or text, not {type(value).__name__}"
    raise UsageError(E_BAD_ARGUMENT, text)


class _Expected:
    """The expectations of one assertion."""

    def __init__(
        self, body: Any, as_json: Any, headers: Mapping[str, HeaderValue] | None, key: Any, tag: Any
    ) -> None:
        self._body = body if body is ANY or callable(body) else _bytes(body, "body")
        self._json = as_json
        self._headers = dict(headers or {})
        self._key = key if key is ANY else _bytes(key, "key")
        self._tag = tag

    def __str__(self) -> str:
        expected = {"body": self._body, "json": self._json, "key": self._key, "tag": self._tag}
        texts = [f"{name}={_short(value)}" for name, value in expected.items() if value is not ANY]
        texts += [f"headers={self._headers!r}"] if self._headers else []
        return f"with {', '.join(texts)}" if texts else "at all"

    def differences(self, message: StoredMessage) -> list[str]:
        """Return what is not as expected in this message."""
        differing = []
        if callable(self._body):
            if not self._body(message.body):
                differing.append(f"body: {_name(self._body)} returned False")
        elif self._body is not ANY and self._body != message.body:
            differing.append("body")
        if self._json is not ANY and _json_of(message.body) != (self._json,):
            differing.append("json")
        if self._key is not ANY and self._key != message.key:
            differing.append("key")
        if self._tag is not ANY and self._tag != message.tag:
            differing.append("tag")
        differing += [
            f"header {name!r}"
            for name, value in self._headers.items()
            if name not in message.headers or message.headers[name] != value
        ]
        return differing


def _json_of(body: bytes) -> tuple[Any, ...]:
    """Return (value,), or () if the body is not JSON."""
    try:
        return (json.loads(body),)
    except ValueError:
        return ()


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))


class ReadableBroker(Protocol):
    """A broker for tests, or a namespace of one, which adds its prefix to the names of topics."""

    @property
    def url(self) -> str: ...

    def reader(self, topic: str) -> Reader: ...


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= BODY_SHOWN_MAX else f"{text[:BODY_SHOWN_MAX]}... ({len(text)} long)"


def messages_of(topic: str, broker: ReadableBroker | str | None = None) -> list[StoredMessage]:
    """Return all messages that a topic keeps. It is empty if the topic does not exist."""
    messages: list[StoredMessage] = []
    with _reader_of(topic, broker) as reader:
        try:
            offset, head = reader.bounds()
            while offset < head:
                read = reader.read(offset, READ_BYTES)
                if read.next_offset <= offset:
                    break
                messages += [
                    message_at(topic, block, index)
                    for block in read.blocks
                    for index in range(block.count)
                ]
                offset = read.next_offset
        except NotFound:
            return []
    return messages


def _reader_of(topic: str, broker: ReadableBroker | str | None) -> Reader:
    if broker is None or isinstance(broker, str):
        return Reader(topic, url=broker)
    return broker.reader(topic)  # a namespace adds its prefix


def _url_of(broker: ReadableBroker | str | None) -> str | None:
    return broker if broker is None or isinstance(broker, str) else broker.url


def assert_published(
    topic: str,
    *,
    body: bytes | str | Callable[[bytes], object] | None = ANY,
    json: Any = ANY,
    headers: Mapping[str, HeaderValue] | None = None,
    key: bytes | str | None = ANY,
    tag: str | None = ANY,
    count: int | None = None,
    timeout: float = WAIT_S,
    broker: ReadableBroker | str | None = None,
) -> list[StoredMessage]:
    """Wait until the topic has messages as expected, and return them in their order.

    Raises `AssertionError` after `timeout` seconds. The error shows what the topic has, and how
    each message differs. What is not given is not checked.

    - `body`: bytes, text (its UTF-8), or a function that gets the body and returns True.
    - `json`: the value of a body that is JSON.
    - `headers`: headers that the message has, among others.
    - `key`, `tag`: the key and the tag. None means that the message has none.
    - `count`: the exact number of such messages. By default there must be one or more. More than
      `count` is an error at once. With 0, the call does not wait.
    - `broker`: a broker for tests, or a URL. The default is $ZSQ_URL, which `zsq_namespace` sets.
    """
    __tracebackhide__ = True  # pytest shows the line of the test, and not this function
    expected = _Expected(body, json, headers, key, tag)
    deadline = time.monotonic() + timeout
    while True:
        messages = messages_of(topic, broker)
        differences = [expected.differences(message) for message in messages]
        matching = [
            message for message, wrong in zip(messages, differences, strict=True) if not wrong
        ]
        if len(matching) == count or (count is None and matching):
            return matching
        too_many = count is not None and len(matching) > count
        if too_many or time.monotonic() >= deadline:
            wanted = "one or more" if count is None else f"{count}"
            raise AssertionError(
                f"topic {topic!r} has {len(matching)} messages {expected}, expected {wanted}"
                f"{'' if too_many else f' within {timeout:g} s'}\n"
                f"{_shown(messages, differences)}{_delayed(topic, _url_of(broker))}"
            )
        time.sleep(LOOK_S)


def _shown(messages: list[StoredMessage], differences: list[list[str]]) -> str:
    lines = [f"it has {len(messages)} messages in all"]
    if len(messages) > SHOWN_MAX:
        lines[0] += f"; the last {SHOWN_MAX}"
    lines[0] += ":" if messages else ""
    rows = list(zip(messages, differences, strict=True))[-SHOWN_MAX:]
    for message, wrong in rows:
        text = f"  offset {message.offset}: body={_short(message.body)}"
        text += "" if message.key is None else f" key={message.key!r}"
        text += "" if message.tag is None else f" tag={message.tag!r}"
        text += f" headers={message.headers!r}" if message.headers else ""
        lines.append(text + (f"  <- differs: {', '.join(wrong)}" if wrong else "  <- as expected"))
    return "\n".join(lines)


def _delayed(topic: str, url: str | None) -> str:
    with contextlib.suppress(ZsqError), Admin(url) as admin:
        waiting = admin.delayed_count(topic)["messages"]
        if waiting:
            return (
                f"\n{waiting} delayed messages are not due yet; advance() moves the clock of a "
                "broker for tests"
            )
    return ""
