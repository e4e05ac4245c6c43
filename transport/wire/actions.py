"""Actions that need a permission.

`actors/security/policy.py` says which permission each needs. `admin_requests.py` says which action
an administrative request is.
"""

from __future__ import annotations

from enum import Enum


class Action(Enum):
    """An action of a principal. `RULES` of the policy says which permission it needs."""

    OPEN = "open"
    KNOWN = "known"
    SEE = "view"
    SEE_SOME = "view of some topic"
    SEE_ALL = "view of *"
    PUBLISH = "publish"
    CONSUME = "subscribe"
    READ = "read"
    REDRIVE = "subscribe of its channel redrive"
    CREATE = "create"
    MANAGE_TOPIC = "admin of the topic"
    MANAGE_CHANNEL = "admin of the channel's topic"
    CONFIGURE = "config"
    ADMINISTER = "admin of *"
