"""Errors for NSQ clients: a code, a text, and a flag for errors that end the connection.

The texts are exactly those of nsqd 1.3, because clients compare them. A text may contain bytes from
a client that are not UTF-8. They are kept as surrogate escapes, so that they are sent back
unchanged.
"""

from __future__ import annotations

from typing import Final

E_AUTH_DISABLED: Final = "E_AUTH_DISABLED"
E_AUTH_FAILED: Final = "E_AUTH_FAILED"
E_AUTH_FIRST: Final = "E_AUTH_FIRST"
E_BAD_BODY: Final = "E_BAD_BODY"
E_BAD_CHANNEL: Final = "E_BAD_CHANNEL"
E_BAD_MESSAGE: Final = "E_BAD_MESSAGE"
E_BAD_PROTOCOL: Final = "E_BAD_PROTOCOL"
E_BAD_TOPIC: Final = "E_BAD_TOPIC"
E_DPUB_FAILED: Final = "E_DPUB_FAILED"
E_FIN_FAILED: Final = "E_FIN_FAILED"
E_IDENTIFY_FAILED: Final = "E_IDENTIFY_FAILED"
E_INVALID: Final = "E_INVALID"
E_MPUB_FAILED: Final = "E_MPUB_FAILED"
E_PUB_FAILED: Final = "E_PUB_FAILED"
E_REQ_FAILED: Final = "E_REQ_FAILED"
E_SUB_FAILED: Final = "E_SUB_FAILED"
E_TOUCH_FAILED: Final = "E_TOUCH_FAILED"
E_UNAUTHORIZED: Final = "E_UNAUTHORIZED"

_SHORT: Final = {
    "\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", "\\": r"\\", '"': r"\"",
}  # fmt: skip


class NsqError(Exception):
    """A command failed.

    If `fatal`, the error is sent and the connection is closed. Without a code nothing is sent.
    """

    def __init__(self, code: str, text: str = "", *, fatal: bool = True) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text
        self.fatal = fatal

    @property
    def data(self) -> bytes:
        """The data of the error frame. It is empty if no frame must be sent."""
        line = f"{self.code} {self.text}" if self.code and self.text else self.code
        return line.encode("utf-8", "surrogateescape")

    def __str__(self) -> str:
        return f"{self.code} {self.text}".strip()


def shown(raw: bytes) -> str:
    """Return a client's bytes as text for an error. `NsqError.data` restores the bytes."""
    return raw.decode("utf-8", "surrogateescape")


def quoted(raw: bytes) -> str:
    """Return a client's bytes in double quotes as Go's `%q` does. nsqd quotes refused names."""
    return '"' + "".join(map(_quoted, raw.decode("utf-8", "surrogateescape"))) + '"'


def _quoted(char: str) -> str:
    code = ord(char)
    if char in _SHORT:
        return _SHORT[char]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if char.isprintable():
        return char
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
