"""Errors: each has a class, which tells the caller how to react, a code, and a text for people.

A protocol message carries `(code, text)`. `from_wire` selects the class:

* `UsageError`: The call is wrong. The same call fails again.
* `NotFound`: The topic, the channel or the offset does not exist.
* `Refused`: The broker refuses the request now (disk full, a limit, stopping). The same request may
  succeed later.
* `LeaseLost`: The lease of the message ended. The answer changed nothing.
* `CorruptBlock`: A checksum does not match. The bytes were not used.
* `BrokerUnreachable`: No broker answered in time. The request may still take effect.
* `DataLoss`: The requested offsets no longer exist.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

E_BAD_NAME: Final = "E_BAD_NAME"
E_BAD_BLOCK: Final = "E_BAD_BLOCK"
E_BAD_COMMAND: Final = "E_BAD_COMMAND"
E_BAD_ARGUMENT: Final = "E_BAD_ARGUMENT"
E_BUCKET: Final = "E_BUCKET"  # the bucket refuses, or does not answer
E_BAD_KEY: Final = "E_BAD_KEY"  # the client has no keys, or keys that the broker does not accept
E_CHECKSUM: Final = "E_CHECKSUM"
E_CLOSED: Final = "E_CLOSED"  # a user closed the topic to publishers or to consumers
E_CLOSING: Final = "E_CLOSING"
E_DATA_LOSS: Final = "E_DATA_LOSS"
E_DISK_FULL: Final = "E_DISK_FULL"
E_EXISTS: Final = "E_EXISTS"
E_FENCED: Final = "E_FENCED"  # another broker writes to the bucket
E_FORBIDDEN: Final = "E_FORBIDDEN"  # the access file does not permit this to the client
E_HELLO: Final = "E_HELLO"
E_INTERNAL: Final = "E_INTERNAL"
E_IN_USE: Final = "E_IN_USE"
E_LEASE: Final = "E_LEASE"
E_LIMIT: Final = "E_LIMIT"
E_NOT_EMPTY: Final = "E_NOT_EMPTY"
E_NOT_FOUND: Final = "E_NOT_FOUND"
E_PARTS: Final = "E_PARTS"  # the topic has parts, and the request is possible only for one part
E_SEQUENCE: Final = "E_SEQUENCE"
E_STANDBY: Final = "E_STANDBY"  # this broker is a standby: another one is the primary
E_TIMEOUT: Final = "E_TIMEOUT"
E_TOO_BIG: Final = "E_TOO_BIG"
E_TOPIC_FAILED: Final = "E_TOPIC_FAILED"
E_TOPIC_FULL: Final = "E_TOPIC_FULL"
E_UNREACHABLE: Final = "E_UNREACHABLE"
E_UNSUPPORTED: Final = "E_UNSUPPORTED"


_flags = False


@contextlib.contextmanager
def options_as_flags() -> Iterator[None]:
    """Let errors name options as on the command line (`--key-file`), not as in Python.

    The name in Python is `key_file=`.
    """
    global _flags
    before, _flags = _flags, True
    try:
        yield
    finally:
        _flags = before


def option(name: str) -> str:
    """Return the name of an argument as an error text shows it. See `options_as_flags`."""
    return f"--{name.replace('_', '-')}" if _flags else f"{name}="


def in_command() -> bool:
    """Return True in a command. Its error tells the user everything, so a warning need not."""
    return _flags


def advice_in_log() -> str:
    """Return `advice` as a sentence of a warning, or ""."""
    return "" if in_command() else f". {advice()}"


def advice() -> str:
    """Return the last sentence of errors and warnings about a missing broker."""
    return f"Check that `zsq serve` runs there, and check {option('url')} or $ZSQ_URL"


class ZsqError(Exception):
    """The base class of all errors that ZSQ raises on purpose.

    `code` is stable, and the text is for people.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text

    def __reduce__(self) -> tuple[type[ZsqError], tuple[str, str]]:
        return type(self), (self.code, self.text)


class UsageError(ZsqError):
    """The call is wrong: a bad name, a limit exceeded, or an unknown command."""


class NotFound(ZsqError):
    """The named topic, channel, or offset does not exist."""


class Refused(ZsqError):
    """The broker refuses the request now. The text says why, and what to do about it."""


class LeaseLost(ZsqError):
    """The lease of this message ended before the answer arrived.

    Another consumer may hold the message now.
    """


class CorruptBlock(ZsqError):
    """The checksum of these bytes does not match. The bytes were not used."""


class BrokerUnreachable(ZsqError):
    """No broker answered within the timeout. It is not known whether the request took effect."""


class DataLoss(ZsqError):
    """The requested messages no longer exist (retention, damage, or a topic that was created
    again).

    The text names the offsets.
    """


_CLASS_OF: Final[dict[str, type[ZsqError]]] = {
    E_BAD_NAME: UsageError,
    E_BAD_BLOCK: UsageError,
    E_BAD_COMMAND: UsageError,
    E_BAD_ARGUMENT: UsageError,
    E_BAD_KEY: UsageError,
    E_TOO_BIG: UsageError,
    E_EXISTS: UsageError,
    E_PARTS: UsageError,
    E_UNSUPPORTED: UsageError,
    E_CHECKSUM: CorruptBlock,
    E_DATA_LOSS: DataLoss,
    E_NOT_FOUND: NotFound,
    E_LEASE: LeaseLost,
    E_UNREACHABLE: BrokerUnreachable,
    E_TIMEOUT: BrokerUnreachable,
}


def from_wire(code: str, text: str) -> ZsqError:
    """Return the exception for a received code. For an unknown code, this is `Refused`."""
    return _CLASS_OF.get(code, Refused)(code, text)
