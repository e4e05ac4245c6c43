"""Permissions of NSQ's commands: the action that each needs (`security/policy.py`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ....transport.nsq.permissions import PUBLISH, SUBSCRIBE
from ....transport.wire.actions import Action
from ...security.policy import Principal

COMMANDS: Final[Mapping[str, Action]] = {PUBLISH: Action.PUBLISH, SUBSCRIBE: Action.CONSUME}


def may_command(principal: Principal, permission: str, topic: str, channel: str) -> bool:
    """Return True if an NSQ client has the permission.

    A publish has no channel, and a subscribe has one. Any other combination is not permitted.
    """
    action = COMMANDS.get(permission)
    return (
        action is not None
        and bool(channel) == (action is Action.CONSUME)
        and principal.may(action, topic, channel)
    )
