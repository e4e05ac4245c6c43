"""Who an NSQ client is by the access file: in the place of an auth server, answered at once.

The secret of AUTH is the token. A client that does not AUTH is `[anonymous]`, where the file says what that may publish or subscribe to;
without it AUTH comes first, as with an auth server. Everything is looked up again for each command, so new rules hold as soon as they are
there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...transport.nsq.permissions import PUBLISH
from ..access import Access, AccessError, User
from ..actor import StartFailed
from .auth import AuthFailed, Who


def load_access(path: str) -> Access | None:
    """`StartFailed` says what is wrong with the file; None where there is none."""
    try:
        return Access.load(path) if path else None
    except AccessError as error:
        raise StartFailed(str(error)) from None


@dataclass(frozen=True, slots=True)
class Granted:
    """As the protocol tells it."""

    user: User
    identity_url: str = ""

    @property
    def identity(self) -> str:
        return self.user.name

    @property
    def permission_count(self) -> int:
        """Of what NSQ's clients can do; with 0 AUTH is refused."""
        return len(self.user.publish) + len(self.user.subscribe)

    def permits(self, permission: str, topic: str, channel: str = "") -> bool:
        if permission == PUBLISH:
            return not channel and self.user.may_publish(topic)
        return bool(channel) and self.user.may_subscribe(topic, channel)


NOBODY = Granted(User(""))


class AccessAuthenticator:
    """`access` may be set anew."""

    needed = True

    def __init__(self, access: Access) -> None:
        self.access = access
        self._failed = 0

    @property
    def takes_anonymous(self) -> bool:
        return self.access.anonymous is not None and Granted(self.access.anonymous).permission_count > 0

    def known(self, who: Who) -> Granted:
        found = self.access.by_token(who.secret) if who.secret else self.access.anonymous
        return NOBODY if found is None else Granted(found)

    async def state(self, who: Who, *, fresh: bool = False) -> Granted:
        if who.secret and (found := self.access.by_token(who.secret)) is not None:
            return Granted(found)
        self._failed += 1
        raise AuthFailed("a token that nobody has")

    async def permitted(self, who: Who, permission: str, topic: str, channel: str = "") -> bool:
        return self.known(who).permits(permission, topic, channel)

    async def close(self) -> None:
        pass

    def statistics(self) -> dict[str, Any]:
        return {"known": len(self.access.users), "failed": self._failed}
