"""Addresses: the URL of a broker, and the target that a link reaches there.

    tcp://host:4153        the ZeroMQ gateway
    ipc:///path/to/run     a broker's run directory on this machine: its actors, without a gateway

The gateway tells clients where the run directory is. A client on the same machine that runs as the
same user then connects to the actors directly (`direct_address`), which saves two hops.

If the paths in a run directory would be too long for a socket, the broker puts the directory in
another place. Then `/path/to/run.json` contains its path.

A client does not trust a broker to say where it connects. Only the user gives ipc:// addresses. The
run directory of a gateway is used only if the gateway is at a loopback address, and if the
directory and its file belong to this user and nobody else may write there. Over ipc, the endpoints
of the actors must lie in the run directory. Other brokers, such as those of the parts of a topic,
are named by tcp:// addresses, which must not reach less far than that of the broker that names them
(`Space`). So a broker of another machine cannot send a client to a service that listens for this
machine alone.
"""

from __future__ import annotations

import ipaddress
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

from ..errors import E_BAD_ARGUMENT, E_UNSUPPORTED, UsageError
from ..records import Record, record
from ..system import DOCS, RUNS_BROKERS, system_name
from .credentials import Credentials, KeyFile, resolve
from .protocol import DEFAULT_URL, HEARTBEAT_MS, LOCAL_HEARTBEAT_MS

IPC_PATH_BYTES_MAX: Final = 107
RUN_ID_FILE: Final = "run_id"  # each start of a broker writes a new random value
_RUN_ID_BYTES: Final = 32
TRANSPORTS: Final = ("auto", "tcp")


class DefaultTimeout(float):
    """A default time-out in seconds, which the user did not choose.

    With it, a client or a command of `zsq` fails after 1 s if no broker listens on this machine.
    With a time-out that the user chose, it waits for the whole time, because the broker may start
    soon.
    """


@record
class Target(Record):
    """The actor that a link talks to. With `create`, it is created on first use."""

    kind: str
    topic: str = ""
    channel: str = ""
    create: bool = True
    settings: Mapping[str, object] = field(default_factory=dict)  # the settings of the channel

    def __str__(self) -> str:
        name = f"{self.topic}/{self.channel}" if self.channel else self.topic
        return f"{self.kind} {name}".strip()


class Space(IntEnum):
    """The distance that an address reaches."""

    MACHINE = 0  # loopback
    LINK = 1  # link-local addresses; clouds have services for each machine there
    SITE = 2  # private networks
    WORLD = 3


def space_of(host: str) -> Space:
    """Return the space of a numeric address."""
    address = ipaddress.ip_address(host)
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback or address.is_unspecified:
        return Space.MACHINE
    if address.is_link_local or address.is_multicast:
        return Space.LINK
    return Space.WORLD if address.is_global else Space.SITE


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a broker.

    - `direct`: True for a run directory, False for a gateway.
    - `credentials`: The keys for the gateway, or None.
    - `by`: If one of the broker's gateways is the client: the user in whose name it sends requests.
      The audit log records the topics and channels that they create under this name.
    - `auto`: True for a gateway whose clients connect to the actors directly if they can.
    - `run_id`: For a run directory that a gateway named, the content of its `run_id` file.
    - `least`: For an address that a broker named: the space of that broker. See `Space`.
    """

    url: str
    direct: bool
    credentials: Credentials | None = None
    by: Mapping[str, str] = field(default_factory=dict, compare=False)
    auto: bool = False
    run_id: str = ""
    least: Space = field(default=Space.MACHINE, compare=False)

    @property
    def heartbeat_ms(self) -> int:
        """The default heartbeat of its links."""
        return LOCAL_HEARTBEAT_MS if self.direct else HEARTBEAT_MS

    def place(self) -> tuple[str, int]:
        """Return host and port of a gateway."""
        host, _, port = self.url.removeprefix("tcp://").rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def local(self) -> bool:
        """True if this is a run directory, or a gateway at a loopback address.

        If a connection to it fails, nothing listens there.
        """
        if self.direct:
            return True
        host, _ = self.place()
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"

    @property
    def current(self) -> bool:
        """True while the run directory belongs to the start of a broker that the gateway named."""
        return read_run_id(self.url.removeprefix("ipc://")) == self.run_id

    def endpoint(self) -> str:
        """Return the endpoint of the supervisor in this run directory.

        This looks it up again for each attempt, because the run directory may have moved.
        """
        path = Path(self.url.removeprefix("ipc://"))
        if not self.run_id and not (path / "supervisor").exists():
            path = _moved(path)
        socket_path = str(path / "supervisor")
        if len(os.fsencode(socket_path)) > IPC_PATH_BYTES_MAX:
            text = (
                f"the socket path {socket_path} is longer than the limit of {IPC_PATH_BYTES_MAX} "
                "bytes; use the path that run.json names"
            )
            raise UsageError(E_BAD_ARGUMENT, text)
        return f"ipc://{socket_path}"


def tcp_endpoint(host: str, port: int) -> str:
    """Return ZeroMQ's endpoint of a numeric address, or the URL of a host."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _moved(path: Path) -> Path:
    try:
        return Path(json.loads(Path(f"{path}.json").read_bytes())["run"])
    except (OSError, ValueError, KeyError, TypeError):
        return path  # the file does not exist, or does not exist yet


def read_run_id(run_dir: str) -> str:
    """Return the run id of a run directory, or "" if this user has none at this path.

    Only the user who started the broker may connect directly. Root could read the file of any user,
    but the sockets that it creates would belong to root. Nobody else may be able to create sockets
    in the directory.
    """
    if not os.path.isabs(run_dir):
        return ""
    # O_NONBLOCK is necessary because an unknown server may have named a pipe.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    data, opened = b"", []
    try:
        opened.append(os.open(run_dir, flags | os.O_DIRECTORY))
        if _is_private(os.fstat(opened[0])):
            opened.append(os.open(RUN_ID_FILE, flags, dir_fd=opened[0]))
            state = os.fstat(opened[1])
            if _is_private(state) and stat.S_ISREG(state.st_mode):
                data = os.read(opened[1], _RUN_ID_BYTES + 1)
    except (OSError, ValueError):  # a path that contains a zero byte raises ValueError
        return ""
    finally:
        for fd in opened:
            os.close(fd)
    return data.decode("ascii", "replace") if len(data) == _RUN_ID_BYTES else ""


def _is_private(state: os.stat_result) -> bool:
    """Return True if this belongs to this user, and no other user may write it."""
    return state.st_uid == os.geteuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def beside(endpoint: str, supervisor: str) -> str:
    """Return the endpoint of this file name in the run directory of the supervisor, or "".

    Only the file name counts, because the client may see the directory at another path than the
    broker: a relative one, one through a link, or a volume of a container.
    """
    name = endpoint.rpartition("/")[2]
    is_good = endpoint.startswith("ipc:///") and name not in ("", ".", "..")
    return f"{supervisor.rpartition('/')[0]}/{name}" if is_good else ""


def direct_address(opened: Mapping[str, object]) -> Address | None:
    """Return the address of the run directory that a gateway named, or None if it is not usable.

    The path may not exist here, for example in a container, or it may belong to another broker. So
    the `run_id` file in it must contain the run id that the gateway sent. This id is random, so a
    server that is not the broker does not know it. (Rejected: to compare the
    uuid of the data directory. A copy of a data directory has the same uuid, and a broker that was
    killed leaves its run directory behind.)
    """
    run_dir, run_id = opened.get("run"), opened.get("run_id")
    if (
        not isinstance(run_dir, str)
        or not isinstance(run_id, str)
        or not run_id
        or read_run_id(run_dir) != run_id
    ):
        return None
    return Address(f"ipc://{run_dir}", True, run_id=run_id)


def given_url(url: str | None) -> str:
    """Return the URL that a client uses: the given one, else $ZSQ_URL, else the default."""
    return url or os.environ.get("ZSQ_URL") or DEFAULT_URL


def parse(url: str | None, key_file: KeyFile = None, transport: str | None = None) -> Address:
    """Return the address of one URL. None means $ZSQ_URL, or tcp://127.0.0.1:4153.

    `addresses.parse_all` accepts several.

    Keys are not needed over ipc, so this reads no key file for ipc. `transport`: with "auto", a
    client of a gateway on this machine connects to the actors directly. With "tcp" it does not.
    None means $ZSQ_TRANSPORT, or "auto". Raises `UsageError` if the URL or the transport is not
    valid (E_BAD_ARGUMENT), if the key file is not valid (E_BAD_KEY), or for ipc where no broker can
    run (E_UNSUPPORTED).
    """
    chosen = transport or os.environ.get("ZSQ_TRANSPORT") or "auto"
    if chosen not in TRANSPORTS:
        raise UsageError(E_BAD_ARGUMENT, f"transport must be 'auto' or 'tcp', not {chosen!r}")
    url = given_url(url)
    scheme, _, rest = url.partition("://")
    if scheme == "ipc" and rest:
        if not RUNS_BROKERS:
            text = f"is an address for the broker's own machine; {system_name()} has no broker"
            raise UsageError(E_UNSUPPORTED, f"{url!r} {text}: use tcp://HOST:PORT (see {DOCS})")
        return Address(f"ipc://{rest.rstrip('/')}", True)
    host, colon, port = rest.rpartition(":")
    if scheme == "tcp" and ":" in host and not (host[0] == "[" and host[-1] == "]"):
        text = "is not the address of a broker: write an address of IPv6 in brackets"
        raise UsageError(E_BAD_ARGUMENT, f"{url!r} {text}, such as tcp://[::1]:4153")
    if (
        scheme == "tcp"
        and host.strip("[]")
        and not any(char in host for char in " ,/")
        and colon
        and port.isascii()
        and port.isdecimal()
        and len(port) < 6
        and 0 < int(port) < 65536
    ):
        credentials = resolve(key_file)
        # Where no broker runs, a run directory that exists belongs to a container, and its sockets
        # lead nowhere.
        auto = chosen == "auto" and credentials is None and RUNS_BROKERS
        return Address(url, False, credentials, auto=auto)
    text = (
        "is not the address of a broker: write tcp://HOST:PORT, or ipc:///DATA_DIR/run on the "
        "same machine"
    )
    raise UsageError(E_BAD_ARGUMENT, f"{url!r} {text}")
