"""zsq pub: publish one message, or each line of a file or of standard input.

Lines are sent as soon as they arrive, in blocks of at most `--batch` messages. A fast file fills
its blocks. A slow pipe (`tail -f log | zsq pub t`) sends line by line and does not wait for full
blocks. At most `RECEIPTS_MAX` blocks are unanswered, so memory does not depend on the input.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Final, NamedTuple, TypeVar, cast

import click

from ....transport.errors import E_BAD_ARGUMENT, E_TOO_BIG, UsageError
from ....transport.message_object import MessageObject
from ..options import BLOCK_COUNT_MAX, MESSAGE_BYTES_LARGEST, stop_signals, with_broker
from ..output import json_option, tell
from ..progress import bar
from ..quantities import Seconds

if TYPE_CHECKING:
    from ....transport.client.blocking.client import Receipt
    from ....transport.wire.codec import HeaderValue

_T = TypeVar("_T")

READ_BYTES: Final = 1 << 20
POLL_S: Final = 0.2
RECEIPTS_MAX: Final = 64
# JSON uses at most six characters for a byte of a body.
JSON_LINE_BYTES_MAX: Final = 8 * MESSAGE_BYTES_LARGEST
# The fields that a line may have. The topic, the offset and the times of a message are ignored.
FIELDS: Final = frozenset({*MessageObject.__annotations__, "dedupe_id"})
ID_OF_BODY: Final = "body"  # what --dedupe-key-from takes the id from; else the name of a header
ID_OF_KEY: Final = "key"


class PublishColumns(NamedTuple):
    """One block to publish: the bodies, and the attributes that at least one message has."""

    bodies: Sequence[bytes]
    keys: Sequence[bytes | str | None] | None
    tags: Sequence[bytes | str | None] | None
    headers: Sequence[Mapping[str, HeaderValue] | None] | None


class PublishEntry(NamedTuple):
    """A message to publish."""

    body: bytes
    key: bytes | str | None = None
    tag: bytes | str | None = None
    headers: Mapping[str, HeaderValue] | None = None


def lines(
    descriptor: int,
    stopped: Callable[[], bool] = lambda: False,
    max_bytes: int = MESSAGE_BYTES_LARGEST,
    end: bytes = b"\n",
) -> Iterator[list[bytes]]:
    """Yield lists of whole lines as they arrive, without their `end`. The last one may lack it.

    Ends soon after `stopped()` is true. Raises `UsageError` (E_TOO_BIG) if a line is longer than
    `max_bytes`.
    """
    rest = b""
    while not stopped():
        if not select.select([descriptor], (), (), POLL_S)[0]:
            continue  # check `stopped` again, so that a signal is noticed without input
        data = os.read(descriptor, READ_BYTES)
        if not data:
            break
        *complete, rest = (rest + data).split(end)
        if len(rest) > max_bytes:
            raise UsageError(E_TOO_BIG, f"a line is longer than the limit of {max_bytes} bytes")
        if complete:
            yield complete
    if rest:
        yield [rest]


def entry_of(line: bytes, number: int) -> PublishEntry:
    """Parse a line that `zsq tail --json` or `zsq sub --json` has written.

    Raises `UsageError` (E_BAD_ARGUMENT) with the line's number and the reason.
    """
    from ....transport.client.core.dedupe_arguments import check_id
    from ....transport.names import check_name
    from ....transport.wire.codec import CHANNEL_HEADER, DEDUPE_HEADER

    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise TypeError("it is not a JSON object")
        unknown = fields.keys() - FIELDS
        if unknown:
            raise TypeError(
                f"unknown field {min(unknown)!r}; use body, key, tag and headers, or "
                "body_base64, key_base64 and headers_base64 for bytes"
            )
        body, key = _bytes_of(fields, "body"), _bytes_of(fields, "key")
        if body is None:
            raise TypeError("body or body_base64 is missing")
        tag, headers, encoded = (
            fields.get("tag"),
            fields.get("headers", {}),
            fields.get("headers_base64", {}),
        )
        only, dedupe_id = fields.get("only_channel"), fields.get("dedupe_id")
        if (
            not isinstance(tag, str | None)
            or not isinstance(only, str | None)
            or not isinstance(headers, dict)
            or not isinstance(encoded, dict)
            or not isinstance(dedupe_id, str | None)
        ):
            raise TypeError(
                "tag, only_channel and dedupe_id must be strings, headers and headers_base64 must "
                "be objects"
            )
        return PublishEntry(
            body,
            key,
            tag,
            headers
            | {name: base64.b64decode(value, validate=True) for name, value in encoded.items()}
            | ({} if only is None else {CHANNEL_HEADER: check_name(only, "channel")})
            | ({} if dedupe_id is None else {DEDUPE_HEADER: check_id(dedupe_id)})
            or None,
        )
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"line {number} is not a message as zsq tail --json writes it: {str(error)[:200]}",
        ) from None


def _bytes_of(fields: Mapping[str, object], name: str) -> bytes | None:
    text, encoded = fields.get(name), fields.get(f"{name}_base64")
    if text is not None and encoded is not None:
        raise TypeError(f"it has both {name} and {name}_base64; give one of them")
    if not isinstance(text, str | None) or not isinstance(encoded, str | None):
        raise TypeError(f"{name} must be a string")
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    return None if text is None else text.encode()


def _argument(text: str | None) -> bytes | None:
    """Return the bytes of an argument as they were given, whether they are text or not."""
    return None if text is None else os.fsencode(text)


def _check_source(body: str | None, from_json: bool, ends_in_null: bool) -> None:
    """Raise `UsageError` if more than one option says where the messages are."""
    given = click.get_current_context().get_parameter_source("source")
    if body is not None and (
        from_json or ends_in_null or given is not click.core.ParameterSource.DEFAULT
    ):
        raise click.UsageError(
            "BODY cannot be combined with --file, --json-lines or -0; give one of them"
        )
    if from_json and ends_in_null:
        raise click.UsageError("--json-lines cannot be combined with -0; give one of them")


def _check_unique(
    key: str | None, unique: str | None, *, body: str | None, has_id: bool, delay: float
) -> None:
    if (key is None) != (unique is None):
        raise click.UsageError("--unique-key and --unique belong together; give both")
    if key is not None and (body is None or has_id or delay):
        text = "--unique-key is for BODY, and not with --delay, --dedupe-id or --dedupe-key-from"
        raise click.UsageError(text)


def _own_headers(
    channel: str | None, dedupe_id: str | None, unique_key: str | None, unique: str | None
) -> dict[str, HeaderValue]:
    """Return the headers of a message for one channel, and of one with an id or a unique key."""
    from ....transport.client.core.dedupe_arguments import check_id
    from ....transport.client.core.unique_arguments import unique_headers
    from ....transport.names import check_name
    from ....transport.wire.codec import CHANNEL_HEADER, DEDUPE_HEADER

    headers: dict[str, HeaderValue] = {}
    if channel is not None:
        headers[CHANNEL_HEADER] = check_name(channel, "channel")
    if dedupe_id is not None:
        headers[DEDUPE_HEADER] = check_id(dedupe_id)
    if unique_key is not None or unique is not None:
        headers |= unique_headers(unique_key, unique)
    return headers


def given_headers(pairs: Sequence[str]) -> dict[str, HeaderValue]:
    """Return the headers of all `--header NAME=VALUE` options.

    Raises `click.BadParameter` if one has no name or no `=`.
    """
    headers: dict[str, HeaderValue] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--header")
        headers[name] = value
    return headers


@click.command()
@click.argument("topic")
@click.argument("body", required=False)
@click.option(
    "--file",
    "source",
    type=click.File("rb"),
    default="-",
    metavar="FILE",
    help="Read lines from this file. Default: standard input.",
)
@click.option(
    "--json-lines",
    "from_json",
    is_flag=True,
    help="Read each line as a JSON object, as zsq tail --json and zsq sub --json write it.",
)
@click.option(
    "-0",
    "--null",
    "ends_in_null",
    is_flag=True,
    help="Read messages that end in a NUL byte instead of a newline, as find -print0 writes them.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, BLOCK_COUNT_MAX),
    default=1000,
    show_default=True,
    help="Largest number of messages in one block.",
)
@click.option(
    "--delay",
    type=Seconds(),
    default=0,
    metavar="TIME",
    help="Deliver the messages after this delay, such as 90s, 10m or 7d. At most 366d.",
)
@click.option(
    "--expires-in",
    type=Seconds(),
    metavar="TIME",
    help="Begin none of the messages later than this, such as 90s, 10m or 7d.",
)
@click.option(
    "--revoke-key",
    metavar="KEY",
    help="Key by which `zsq cancel --revoke-key` cancels all these messages.",
)
@click.option(
    "--key",
    metavar="KEY",
    help="Key of all these messages. An ordered channel delivers the messages of one key in order.",
)
@click.option(
    "--tag",
    metavar="TAG",
    help="Tag of all these messages. A channel with tags takes only messages with its tags.",
)
@click.option(
    "--header",
    "pairs",
    metavar="NAME=VALUE",
    multiple=True,
    help="Header of all these messages. Repeatable.",
)
@click.option(
    "--channel",
    metavar="CHANNEL",
    help="Deliver to this channel only. All other channels count the messages as finished.",
)
@click.option(
    "--dedupe-id",
    metavar="ID",
    help="Id of BODY. If the topic knows it, nothing is stored. See docs/dedupe.md.",
)
@click.option(
    "--dedupe-key-from",
    "id_from",
    metavar="WHAT",
    help="Id of each message: body (a digest of it), key, or the name of a header.",
)
@click.option(
    "--unique-key",
    metavar="KEY",
    help="Store BODY only if no earlier message holds this key. See docs/dedupe.md.",
)
@click.option(
    "--unique",
    type=click.Choice(["while-waiting", "while-working"]),
    help="How long an earlier message holds the key: until it is begun, or until it is finished.",
)
@json_option
@with_broker
def pub(
    topic: str, body: str | None, source: IO[bytes], from_json: bool, ends_in_null: bool, batch: int, delay: float,
    expires_in: float | None, revoke_key: str | None, key: str | None, tag: str | None, pairs: tuple[str, ...], channel: str | None,
    dedupe_id: str | None, id_from: str | None, unique_key: str | None, unique: str | None, as_json: bool, url: str,
    timeout: float,
) -> None:  # fmt: skip
    """Publish BODY, or each line of a file or of standard input, to TOPIC. Returns when all
    messages are durable.

    With --json-lines each line has its own body, key, tag, headers and dedupe_id; missing ones come
    from the options. Its topic, offset and times are ignored. A line with only_channel (see zsq
    tail --addresses) is delivered by that channel only. With --delay the broker keeps the messages,
    durably, until they are due; see `zsq delayed`.
    """
    from ....transport.client.blocking.client import Producer
    from ....transport.client.core.publish_arguments import as_attributes, as_delay_ms, lifetime_of
    from ....transport.names import check_name

    check_name(topic)
    lifetime = lifetime_of(expires_in, as_delay_ms(delay), revoke_key)
    _check_source(body, from_json, ends_in_null)
    if dedupe_id is not None and (body is None or id_from is not None):
        raise click.UsageError("--dedupe-id is for BODY; --dedupe-key-from is for all messages")
    _check_unique(unique_key, unique, body=body, has_id=bool(dedupe_id or id_from), delay=delay)
    headers = given_headers(pairs) | _own_headers(channel, dedupe_id, unique_key, unique)
    usual = PublishEntry(b"", _argument(key), _argument(tag), headers or None)
    as_attributes(usual.key, usual.tag, headers | lifetime)
    stored = duplicates = 0
    start = time.monotonic()
    receipts: deque[Receipt] = deque()
    receipt: Receipt | None = None
    try:
        with (
            stop_signals() as stopping,
            _bar(source, body) as advance,
            Producer(url, timeout=timeout) as producer,
        ):
            batches: Iterator[tuple[int, Sequence[bytes | PublishEntry]]]
            batches = (
                iter([(0, [os.fsencode(body)])])
                if body is not None
                else _read(
                    source.fileno(), stopping.is_set, from_json, b"\0" if ends_in_null else b"\n"
                )
            )
            try:
                for size, messages in batches:
                    for first in range(0, len(messages), batch):
                        bodies, keys, tags, header_column = _columns(
                            messages[first : first + batch], usual
                        )
                        if id_from is not None:
                            header_column = _with_ids(bodies, keys, header_column, id_from)
                        receipt = producer.publish_many(
                            topic,
                            bodies,
                            keys=keys,
                            tags=tags,
                            headers=header_column,
                            delay=delay,
                            expires_in=expires_in,
                            revoke_key=revoke_key,
                            wait=False,
                        )
                        receipts.append(receipt)
                        while len(receipts) > RECEIPTS_MAX or (receipts and receipts[0].done):
                            counts = _settle(receipts, timeout)
                            stored, duplicates = stored + counts[0], duplicates + counts[1]
                    advance(size)
            finally:
                # The messages before an invalid line are stored, and are counted here.
                while receipts:
                    counts = _settle(receipts, timeout)
                    stored, duplicates = stored + counts[0], duplicates + counts[1]
            if stopping.is_set():
                raise KeyboardInterrupt
    finally:
        elapsed = max(time.monotonic() - start, 1e-9)
        waits = "waits" if stored == 1 else "wait"
        how = f"{waits} in {topic} until due" if delay else f"stored in {topic}"
        if as_json:
            answer = {"topic": topic, "messages": stored, "seconds": round(elapsed, 3)}
            if duplicates:
                answer["duplicates"] = duplicates
            alone = receipt is not None and stored + duplicates == 1
            tell(answer | (_place(receipt) if receipt is not None and alone else {}))
        elif stored or sys.exception() is None:
            # After an error, this is printed only if messages were stored.
            caption = "1 message" if stored == 1 else f"{stored:,} messages"
            known = (
                f", {duplicates:,} not stored again (their ids are known, or their keys are held)"
                if duplicates
                else ""
            )
            click.echo(
                f"{caption} {how}{known}, {elapsed:.2f} s, {stored / elapsed:,.0f} a second",
                err=True,
            )


def _read(
    descriptor: int, stopped: Callable[[], bool], from_json: bool, end: bytes
) -> Iterator[tuple[int, Sequence[bytes | PublishEntry]]]:
    """Yield the arrived messages, with their size in bytes.

    Messages before an invalid line are yielded before the error is raised.
    """
    number = 0
    for chunk in lines(
        descriptor, stopped, JSON_LINE_BYTES_MAX if from_json else MESSAGE_BYTES_LARGEST, end
    ):
        size = sum(map(len, chunk)) + len(chunk)
        if not from_json:
            yield size, chunk
            continue
        entries: list[PublishEntry] = []
        wrong: UsageError | None = None
        for line in chunk:
            number += 1
            try:
                entries += [entry_of(line, number)] if line.strip() else []
            except UsageError as error:
                wrong = error
                break
        yield size, entries
        if wrong is not None:
            raise wrong


def _columns(messages: Sequence[bytes | PublishEntry], usual: PublishEntry) -> PublishColumns:
    """Return the bodies, and the columns of attributes that at least one message has."""
    if isinstance(messages[0], bytes):
        bodies, count = cast("Sequence[bytes]", messages), len(messages)
        return PublishColumns(
            bodies,
            _given([usual.key] * count),
            _given([usual.tag] * count),
            _given([usual.headers] * count),
        )
    entries = cast("Sequence[PublishEntry]", messages)
    keys = [usual.key if entry.key is None else entry.key for entry in entries]
    tags = [usual.tag if entry.tag is None else entry.tag for entry in entries]
    headers: list[Mapping[str, HeaderValue] | None] = [
        {**(usual.headers or {}), **(entry.headers or {})} or None for entry in entries
    ]
    return PublishColumns(
        [entry.body for entry in entries], _given(keys), _given(tags), _given(headers)
    )


def _given(column: list[_T | None]) -> list[_T | None] | None:
    return column if any(value is not None for value in column) else None


def _place(receipt: Receipt) -> dict[str, int | str]:
    """Return the offset of a message, or its key if it is delayed. The broker may know neither."""
    if receipt.delayed_key is not None:
        return {"delayed_key": receipt.delayed_key}
    return {} if receipt.offset is None or receipt.offset < 0 else {"offset": receipt.offset}


def _with_ids(
    bodies: Sequence[bytes],
    keys: Sequence[bytes | str | None] | None,
    headers: Sequence[Mapping[str, HeaderValue] | None] | None,
    id_from: str,
) -> list[Mapping[str, HeaderValue] | None]:
    """Return the headers of the messages with their ids. A message without its source has none."""
    from ....transport.client.core.dedupe_arguments import with_id

    given = headers or [None] * len(bodies)
    ids: list[bytes | str | None]
    if id_from == ID_OF_BODY:
        ids = [sha256(body).hexdigest() for body in bodies]
    elif id_from == ID_OF_KEY:
        ids = list(keys or [None] * len(bodies))
    else:
        values = [(one or {}).get(id_from) for one in given]
        ids = [value if isinstance(value, str | bytes | None) else str(value) for value in values]
    return [with_id(one, name or None) for one, name in zip(given, ids, strict=True)]


def _settle(receipts: deque[Receipt], timeout: float) -> tuple[int, int]:
    """Return how many messages of the oldest receipt were stored, and how many were known."""
    receipts[0].wait(timeout)
    receipt = receipts.popleft()
    return receipt.count - receipt.duplicates, receipt.duplicates


@contextlib.contextmanager
def _bar(source: IO[bytes], body: str | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, unless the body is given or the user types the lines."""
    if body is not None or source.isatty():
        yield lambda size: None
        return
    total = None
    with contextlib.suppress(OSError, ValueError):
        status = os.fstat(source.fileno())
        total = status.st_size if stat.S_ISREG(status.st_mode) else None
    with bar("publishing", total) as advance:
        yield advance
