"""Policy of an auth server: what its answer permits (`security/policy.py`). Pure.

An auth server knows only two permissions, publish and subscribe. A client that may publish to a
topic may also change it, and a client that may subscribe to a channel may also change the channel.
All clients may see names and numbers, and no client may change what belongs to the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ....transport.nsq.permissions import PUBLISH, SUBSCRIBE, AuthState
from ....transport.wire.actions import Action
from ...security.policy import REDRIVE, FixedPolicy, Policy, Principal

# All clients that read over HTTP when an auth server is used.
LOOKING: Final = Principal(
    "", FixedPolicy(Action.OPEN, Action.SEE, Action.SEE_SOME, Action.SEE_ALL)
)


def _yes(state: AuthState, topic: str, channel: str) -> bool:
    return True


def _no(state: AuthState, topic: str, channel: str) -> bool:
    return False


def _publishes(state: AuthState, topic: str, channel: str) -> bool:
    return state.permits(PUBLISH, topic)


def _reads(state: AuthState, topic: str, channel: str) -> bool:
    """Return True if the topic may be read by offset.

    This needs a subscribe pattern that also matches the empty channel name, as `.*` does.
    """
    return any(
        authorization.permits(SUBSCRIBE, topic, "") for authorization in state.authorizations
    )


def _consumes(state: AuthState, topic: str, channel: str) -> bool:
    return state.permits(SUBSCRIBE, topic, channel) if channel else _reads(state, topic, "")


# The row of each action: whether an auth server's answer permits it.
PERMITS: Final[Mapping[Action, Callable[[AuthState, str, str], bool]]] = {
    Action.OPEN: _yes,
    Action.KNOWN: _yes,
    Action.SEE: _yes,
    Action.SEE_SOME: _yes,
    Action.SEE_ALL: _yes,
    Action.PUBLISH: _publishes,
    Action.CONSUME: _consumes,
    Action.READ: _reads,
    Action.REDRIVE: lambda state, topic, _: _consumes(state, topic, REDRIVE),
    Action.CREATE: _yes,
    Action.MANAGE_TOPIC: _publishes,
    Action.MANAGE_CHANNEL: lambda state, topic, channel: state.permits(SUBSCRIBE, topic, channel),
    Action.CONFIGURE: _yes,
    Action.ADMINISTER: _no,
}


class AuthServerPolicy(Policy):
    """The policy of an auth server's answer for one principal."""

    def __init__(self, state: AuthState) -> None:
        self._state = state

    def may(self, principal: Principal, action: Action, topic: str = "", channel: str = "") -> bool:
        return PERMITS[action](self._state, topic, channel)


def granted(state: AuthState) -> Principal:
    """Return the principal of an auth server's answer."""
    return Principal(
        state.identity, AuthServerPolicy(state), state.permission_count, state.identity_url
    )
