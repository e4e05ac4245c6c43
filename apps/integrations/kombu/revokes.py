"""Revokes of Celery: `app.control.revoke` also cancels the tasks at the broker, durably.

Celery sends the ids to the workers that run now, and they keep them in memory, for three hours. So
a task that waits for longer, or for a worker that starts later, would run. The transport sees this
message when the caller publishes it, and revokes the ids as revoke keys of all queues (see
`Admin.revoke`). Workers still get the message, because they hold tasks themselves.

A worker that gets a revoked task stores the state REVOKED, so that nobody waits for its result for
ever. A task that is cancelled at the broker reaches no worker, so the caller stores the state.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any, Final

from kombu.utils.json import loads

from ....transport.client.blocking.client import Admin
from ....transport.errors import NotFound, ZsqError
from ....transport.wire.lifetime import REVOKE_KEY_BYTES_MAX
from ....transport.wire.protocol import SKIPPED_MAX

log = logging.getLogger("zsq")

PIDBOX: Final = "pidbox"
# A task in another state has a result, or a worker has begun it: STARTED, or a state that the task
# itself has set.
_NOT_BEGUN: Final = frozenset({"PENDING", "RECEIVED", "RETRY", "REJECTED"})


def revoke_key_of(message: dict[str, Any]) -> str | None:
    """Return the id of a task, by which it can be revoked, or None for another message."""
    headers = message.get("headers") or {}
    task_id = headers.get("id") if "task" in headers else None
    return task_id if _is_key(task_id) else None


def _is_key(value: object) -> bool:
    return (
        isinstance(value, str) and 0 < len(value.encode(errors="replace")) <= REVOKE_KEY_BYTES_MAX
    )


def revoked_ids(exchange: str, message: dict[str, Any]) -> list[str]:
    """Return the ids that this message of Celery's remote control revokes for all workers."""
    if not exchange.endswith(PIDBOX):
        return []
    try:
        body = loads(message["body"])
        if body.get("method") != "revoke" or body.get("destination"):
            return []
        ids = body["arguments"]["task_id"]
    except Exception:  # what is no such message is none of ours
        return []
    return [one for one in ([ids] if isinstance(ids, str) else ids or []) if _is_key(one)]


def revoke(admin: Admin, topics: Iterable[str], ids: list[str]) -> None:
    """Cancel the tasks with these ids in all topics. The caller goes on if this fails."""
    topics = list(topics)
    try:
        for start in range(0, len(ids), SKIPPED_MAX):
            for topic in topics:
                try:
                    admin.revoke(topic, ids[start : start + SKIPPED_MAX])
                except NotFound:  # it was deleted, or nobody has published to it yet
                    continue
    except ZsqError as error:
        log.warning(
            "%d tasks are revoked only in the workers that run now, and not at the broker: %s",
            len(ids),
            error,
        )
        return
    _store_states(ids)


def _store_states(ids: list[str]) -> None:
    """Store the state REVOKED of tasks that have not begun, as far as Celery knows them."""
    celery = sys.modules.get("celery")
    if celery is None:  # Kombu is used without Celery
        return
    try:
        backend = celery.current_app.backend
        if type(backend).__name__ == "DisabledBackend":
            return
        for task_id in ids:
            if backend.get_state(task_id) in _NOT_BEGUN:
                backend.mark_as_revoked(task_id, "revoked")
    except Exception as error:  # each result backend has errors of its own
        log.warning("the state REVOKED could not be stored for %d tasks: %r", len(ids), error)
