"""Where a broker is: the URL a person gives, and what a link shall reach there.

    tcp://host:4153        the ZeroMQ gateway
    ipc:///path/to/run     a broker's run directory on this machine, its actors directly

A run directory whose paths would be too long for a socket lies elsewhere; then `/path/to/run.json` names it.
"""

from __future__ import annotations

import functools
import ipaddress
import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..errors import E_BAD_ARGUMENT, UsageError
from .credentials import Credentials, KeyFile, resolve
from .protocol import DEFAULT_URL, HEARTBEAT_MS, LOCAL_HEARTBEAT_MS

IPC_PATH_BYTES_MAX: Final = 107


class DefaultTimeout(float):
    """A time-out in seconds that nobody chose.

    A client with this one, or a command of `zsq`, fails after 1 s where no broker listens on this machine. A time-out that somebody gave
    is waited for in full, because the broker may be about to start.
    """


def _is_url(value: object) -> bool:
    return isinstance(value, str) and "://" in value


def url_last(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a constructor take its positional arguments also in the old order: the URL, then `names`. That order is deprecated."""

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(init)
        def made(self: Any, *given: Any, **options: Any) -> None:
            if given and len(given) + sum(name in options for name in names) > len(names) and "url" not in options:
                maker, wanted = type(self).__name__, ", ".join(names)
                if not _is_url(given[0]) and _is_url(given[-1]):  # the new order, and the URL as one more behind it
                    text = f"the URL is given by name: write {maker}({wanted}, url=...), with what else there is by name too"
                    raise UsageError(E_BAD_ARGUMENT, text)
                text = f"{maker}(url, {wanted}) is deprecated; write {maker}({wanted}, url=url)"
                warnings.warn(text, DeprecationWarning, stacklevel=2)
                options["url"], *given = given  # type: ignore[assignment]
            init(self, *given, **options)

        return made

    return decorate


@dataclass(frozen=True, slots=True)
class Target:
    """What a link talks to; made on first use if `create`."""

    kind: str
    topic: str = ""
    channel: str = ""
    create: bool = True
    settings: Mapping[str, object] = field(default_factory=dict)  # of the channel

    def __str__(self) -> str:
        name = f"{self.topic}/{self.channel}" if self.channel else self.topic
        return f"{self.kind} {name}".strip()


@dataclass(frozen=True, slots=True)
class Address:
    """`direct`: to a run directory, not to a gateway. `credentials`: with what the gateway is met, None for none.

    `by`: of a gateway of our own, in whose name it asks: what comes to be by that is in the audit log under it.
    """

    url: str
    direct: bool
    credentials: Credentials | None = None
    by: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def heartbeat_ms(self) -> int:
        """The default for its links."""
        return LOCAL_HEARTBEAT_MS if self.direct else HEARTBEAT_MS

    def place(self) -> tuple[str, int]:
        """Host and port of a gateway."""
        host, _, port = self.url.removeprefix("tcp://").rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def local(self) -> bool:
        """Return True if this machine alone can answer there: then a connection that fails was refused, and nothing listens."""
        if self.direct:
            return True
        host, _ = self.place()
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    def endpoint(self) -> str:
        """What to connect to first: the gateway, or the supervisor. Read anew for each attempt: a broker may have moved."""
        if not self.direct:
            return self.url
        path = Path(self.url.removeprefix("ipc://"))
        if not (path / "supervisor").exists():
            path = _moved(path)
        found = str(path / "supervisor")
        if len(os.fsencode(found)) > IPC_PATH_BYTES_MAX:
            raise UsageError(E_BAD_ARGUMENT, f"{found} is longer than {IPC_PATH_BYTES_MAX} bytes; use the path that run.json names")
        return f"ipc://{found}"


def _moved(path: Path) -> Path:
    try:
        return Path(json.loads(Path(f"{path}.json").read_bytes())["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return path  # not there (yet)


def parse(url: str | None, key_file: KeyFile = None) -> Address:
    """`None`: $ZSQ_URL, or tcp://127.0.0.1:4153. Over ipc no keys are needed, and none are looked for.

    `UsageError` E_BAD_ARGUMENT for what is no such URL, E_BAD_KEY for what is no key file.
    """
    url = url or os.environ.get("ZSQ_URL") or DEFAULT_URL
    scheme, _, rest = url.partition("://")
    if scheme == "ipc" and rest:
        return Address(f"ipc://{rest.rstrip('/')}", True)
    host, colon, port = rest.rpartition(":")
    if scheme == "tcp" and host and colon and port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536:
        return Address(url, False, resolve(key_file))
    text = "is not the address of a broker: write tcp://HOST:PORT, or ipc:///DATA_DIR/run on the same machine"
    raise UsageError(E_BAD_ARGUMENT, f"{url!r} {text}")
