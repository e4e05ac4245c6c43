"""What each path asks of its caller. An application with a path that is not in this table does not start. Pure.

| need | with an access file | with an auth server |
|---|---|---|
| OPEN | nothing | nothing |
| VIEW | to be known; the topic, if one is named, may be seen; lists show what may be seen | nothing: names and numbers |
| READ | `subscribe` of the topic, all channels: bodies by offset | the same |
| SUBSCRIBE | `subscribe` of the channel | the same |
| PUBLISH | `publish` of the topic | the same |
| ADMIN_TOPIC | `admin` of the topic | `publish` of the topic |
| ADMIN_CHANNEL | `admin` of the topic | `subscribe` of the channel |
| CONFIG | `admin` of `*` | to be known |
| BROKER | `admin` of `*` | nobody: it has no word for that |
| KNOWN | to be known; the handler looks at the rest | the same |
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Need(Enum):
    OPEN = "open"
    VIEW = "view"
    READ = "read"
    SUBSCRIBE = "subscribe"
    PUBLISH = "publish"
    ADMIN_TOPIC = "admin of the topic"
    ADMIN_CHANNEL = "admin of the channel's topic"
    CONFIG = "config"
    BROKER = "admin of *"
    KNOWN = "known"


API: Final = "/api/"  # ours: here names must be there and be legal, once each


def _all(need: Need, method: str, *paths: str) -> dict[tuple[str, str], Need]:
    return {(method, path): need for path in paths}


NEEDS: Final[dict[tuple[str, str], Need]] = {
    # The console's files hold nothing; /ping says OK or not, and more only to who may see it.
    **_all(Need.OPEN, "GET", "/ping", "/", "/console/{name:path}"),
    **_all(Need.VIEW, "GET", "/info", "/stats", "/metrics", "/lookup", "/topics", "/channels", "/nodes", "/config/{option}"),
    **_all(Need.CONFIG, "PUT", "/config/{option}"),
    **_all(Need.PUBLISH, "POST", "/pub", "/mpub"),
    **_all(Need.ADMIN_TOPIC, "POST", *(f"/topic/{one}" for one in ("create", "delete", "empty", "pause", "unpause", "tombstone"))),
    **_all(Need.ADMIN_CHANNEL, "POST", *(f"/channel/{one}" for one in ("create", "delete", "empty", "pause", "unpause"))),
    # The console's
    **_all(Need.VIEW, "GET", "/api/overview", "/api/live", "/api/history", "/api/histories", "/api/topic", "/api/channel", "/api/chunks"),
    **_all(Need.VIEW, "GET", "/api/alarms", "/api/preview", "/api/jobs"),
    **_all(Need.READ, "GET", "/api/messages", "/api/body", "/api/delayed"),
    **_all(Need.SUBSCRIBE, "GET", "/api/peek"),
    **_all(Need.BROKER, "GET", "/api/processes", "/api/audit"),
    **_all(
        Need.ADMIN_TOPIC, "POST",
        *(f"/api/topic/{one}" for one in ("create", "configure", "pause", "unpause", "empty", "close", "open", "delete")),
        "/api/delayed/cancel", "/api/redrive",
    ),
    **_all(
        Need.ADMIN_CHANNEL, "POST",
        *(f"/api/channel/{one}" for one in ("create", "configure", "pause", "unpause", "empty", "seek", "delete")),
    ),
    **_all(Need.KNOWN, "POST", "/api/job/stop"),
}  # fmt: skip


def need_of(method: str, path: str) -> Need:
    """`path` as the table of paths has it."""
    try:
        return NEEDS[method, path]
    except KeyError:
        raise AssertionError(f"{method} {path} has no entry in needs.py: say what it asks of its caller") from None
