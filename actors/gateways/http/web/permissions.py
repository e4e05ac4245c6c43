"""Permissions of HTTP: the actions that each path needs (`security/policy.py`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .....transport.wire.actions import Action

Actions = tuple[Action, ...]
CHANNEL_PATH: Final = "/api/v1/topics/{topic}/channels/{channel}"


def _all(actions: Actions | Action, method: str, *paths: str) -> dict[tuple[str, str], Actions]:
    return {
        (method, path): (actions,) if isinstance(actions, Action) else actions for path in paths
    }


PATHS: Final[Mapping[tuple[str, str], Actions]] = {
    # The console's files contain no data. To unknown clients, /ping and /health show only whether
    # the broker is healthy.
    **_all(Action.OPEN, "GET", "/ping", "/ready", "/health", "/", "/console/{name:path}"),
    **_all(Action.SEE, "GET", "/info", "/stats", "/metrics", "/lookup", "/topics", "/channels", "/nodes", "/config/{option}"),
    **_all(Action.CONFIGURE, "PUT", "/config/{option}"),
    **_all(Action.PUBLISH, "POST", "/pub", "/mpub", "/api/topic/publish"),
    **_all(Action.MANAGE_TOPIC, "POST", *(f"/topic/{one}" for one in ("create", "delete", "empty", "pause", "unpause", "tombstone"))),
    **_all(Action.MANAGE_CHANNEL, "POST", *(f"/channel/{one}" for one in ("create", "delete", "empty", "pause", "unpause"))),
    # The console's paths
    **_all(Action.SEE, "GET", "/api/overview", "/api/live", "/api/history", "/api/histories", "/api/topic", "/api/channel", "/api/chunks"),
    **_all(Action.SEE, "GET", "/api/alarms", "/api/preview", "/api/jobs"),
    **_all(Action.SEE_SOME, "GET", "/api/cluster"),  # the handler leaves out topics and brokers' values
    **_all(Action.SEE_SOME, "GET", "/api/schedules"),  # the handler leaves out other topics
    **_all(Action.READ, "GET", "/api/messages", "/api/body", "/api/delayed", "/api/dead-letters"),
    **_all(Action.READ, "GET", "/api/search", "/api/tail", "/api/download"),
    **_all(Action.CONSUME, "GET", "/api/peek"),
    **_all(Action.CONSUME, "POST", *(f"{CHANNEL_PATH}/{verb}" for verb in ("receive", "finish", "requeue", "touch"))),
    **_all(Action.ADMINISTER, "GET", "/api/processes", "/api/audit"),
    **_all(
        Action.MANAGE_TOPIC, "POST",
        *(f"/api/topic/{one}" for one in ("create", "configure", "pause", "unpause", "empty", "close", "open", "delete")),
        "/api/delayed/cancel", "/api/message/cancel", "/api/message/revoke",
        *(f"/api/schedule/{one}" for one in ("pause", "resume", "remove")),
        "/api/alarm/ack", "/api/alarm/unack",  # without a topic, the handler asks for ADMINISTER
    ),
    **_all((Action.MANAGE_TOPIC, Action.PUBLISH), "POST", *(f"/api/schedule/{one}" for one in ("add", "set", "run"))),
    **_all((Action.MANAGE_TOPIC, Action.REDRIVE), "POST", "/api/redrive", "/api/redrive/discard"),
    **_all(
        Action.MANAGE_CHANNEL, "POST",
        *(
            f"/api/channel/{one}"
            for one in ("create", "configure", "pause", "unpause", "empty", "seek", "skip", "delete", "disconnect")
        ),
    ),
    **_all(Action.KNOWN, "POST", "/api/job/stop"),  # the handler checks the job's topic
}  # fmt: skip


def actions_of(method: str, path: str) -> Actions:
    """Return the actions that a path needs, with `path` as in the table of paths.

    A path without a row cannot be served.
    """
    try:
        return PATHS[method, path]
    except KeyError:
        raise AssertionError(
            f"{method} {path} has no row in PATHS of permissions.py; add one with the actions that "
            "it needs"
        ) from None
