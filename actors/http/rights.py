"""What one caller may do over HTTP, whoever says so: the access file, an auth server, or nobody, which permits all. Pure.

Handlers ask `rights_of(request)` where the path alone does not decide: what of a list may be seen, and whether a name in a body is
permitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from ...transport.nsq.permissions import PUBLISH, SUBSCRIBE, AuthState
from ..access import User

_KEY: Final = "zsq.rights"


class Rights:
    """As it is here: nothing at all."""

    name = ""
    is_broker_admin = False
    may_configure = False
    sees_all = False

    def may_publish(self, topic: str) -> bool:
        return False

    def may_subscribe(self, topic: str, channel: str = "") -> bool:
        """`channel` "": to read by offset."""
        return False

    def may_admin(self, topic: str, channel: str = "") -> bool:
        return False

    def may_view(self, topic: str) -> bool:
        """Names and numbers."""
        return self.sees_all


class _Everything(Rights):
    is_broker_admin = may_configure = sees_all = True

    def may_publish(self, topic: str) -> bool:
        return True

    def may_subscribe(self, topic: str, channel: str = "") -> bool:
        return True

    def may_admin(self, topic: str, channel: str = "") -> bool:
        return True


class _Looking(Rights):
    sees_all = True


NOTHING: Final = Rights()
EVERYTHING: Final = _Everything()
LOOKING: Final = _Looking()  # with an auth server: reading is open


@dataclass(frozen=True)
class OfUser(Rights):
    """As the access file has it."""

    user: User

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.user.name

    @property
    def is_broker_admin(self) -> bool:  # type: ignore[override]
        return self.user.is_broker_admin

    @property
    def may_configure(self) -> bool:  # type: ignore[override]
        return self.user.is_broker_admin

    @property
    def sees_all(self) -> bool:  # type: ignore[override]
        return self.user.sees_all

    def may_publish(self, topic: str) -> bool:
        return self.user.may_publish(topic)

    def may_subscribe(self, topic: str, channel: str = "") -> bool:
        return self.user.may_subscribe(topic, channel)

    def may_admin(self, topic: str, channel: str = "") -> bool:
        return self.user.may_admin(topic)

    def may_view(self, topic: str) -> bool:
        return self.user.may_view(topic)


@dataclass(frozen=True)
class OfAuthServer(Rights):
    """An auth server knows two permissions: who may publish to a topic may change it, who may subscribe to a channel may change that."""

    state: AuthState
    may_configure = True
    sees_all = True

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.state.identity

    def may_publish(self, topic: str) -> bool:
        return self.state.permits(PUBLISH, topic)

    def may_subscribe(self, topic: str, channel: str = "") -> bool:
        """To read by offset wants a pattern that is of every channel, which `.*` is, as to publish."""
        if channel:
            return self.state.permits(SUBSCRIBE, topic, channel)
        return any(one.permits(SUBSCRIBE, topic, "") for one in self.state.authorizations)

    def may_admin(self, topic: str, channel: str = "") -> bool:
        return self.may_subscribe(topic, channel) if channel else self.may_publish(topic)


def rights_of(request: Request) -> Rights:
    """Of this request's caller, once the path's need is met."""
    found: Rights = request.scope[_KEY]
    return found


def give(request: Request, rights: Rights) -> None:
    request.scope[_KEY] = rights
