"""Access control: decides whether a principal may do an action on a topic and a channel. Pure.

A gateway authenticates each client, which gives a `Principal`. The tables below say which action a
request needs. They have one row for each kind of link (`LINKS`). The table of administrative
requests (`transport/wire/admin_requests.py`) has the action of each. `RULES` has one row for each
action: what it needs in the access file, and the text of its refusal. A gateway for another
protocol has the table of its own requests (`gateways/nsq/permissions.py`,
`gateways/http/web/permissions.py`), and an auth server's answer has its own policy
(`gateways/shared/auth_policy.py`).

The permission to change a topic does not include reading its messages.

A publish creates the topic on first use, and a subscription creates the topic and the channel, as
far as `create` permits. `dead_letter_topic` and redrive copy bodies from one topic to another, so
they need more: `subscribe` on the source and `publish` on the target. Otherwise a user with only
`admin` could read a topic by sending its messages to another one. A message for one channel only is
withheld from all others, so it needs `admin` of the topic, also from a redrive.

The rules name topics. A part of a topic has the permissions of its topic.

A principal keeps the policy that authenticated it. Gateways authenticate again for each request, so
new rules apply at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from ...transport.errors import E_FORBIDDEN, Refused
from ...transport.names import base_of
from ...transport.wire import protocol as p
from ...transport.wire.actions import Action
from ...transport.wire.admin_codec import name_of, request_of
from ...transport.wire.admin_requests import (
    REQUESTS,
    ROW_OF,
    AdminRequest,
    ConfigureChannelRequest,
    CreateChannelRequest,
    RedriveRequest,
)

if TYPE_CHECKING:
    from .access import Access, User

REDRIVE: Final = "redrive"  # the name of the order, and of the channel that reads the dead letters
DEAD_LETTER_TOPIC: Final = "dead_letter_topic"


class Rule(NamedTuple):
    """A row of `RULES`.

    `names` are the names that the action needs, or None if it concerns the whole broker.
    """

    user: Callable[[User, str, str], bool]
    needs: str
    what: str = ""
    names: tuple[str, ...] | None = None


def _yes(granted: object, topic: str, channel: str) -> bool:
    return True


_TOPIC: Final = ("topic",)
_CHANNEL: Final = ("topic", "channel")
RULES: Final[Mapping[Action, Rule]] = {
    Action.OPEN: Rule(_yes, "nothing"),
    Action.KNOWN: Rule(_yes, "a user"),
    # SEE shows names and numbers, but no bodies. Lists contain only what a principal may see
    # (`visible`).
    Action.SEE: Rule(lambda user, topic, _: user.may_view(topic), "view", "view topic {topic!r}", ()),
    Action.SEE_SOME: Rule(lambda user, *_: user.may_something, "view", "see statistics"),
    Action.SEE_ALL: Rule(lambda user, *_: user.sees_all, 'view = ["*"]', "see all topics"),
    Action.PUBLISH: Rule(lambda user, topic, _: user.may_publish(topic), "publish", "publish to topic {topic!r}", _TOPIC),
    # Without a channel it covers all channels, as for reading by offset.
    Action.CONSUME: Rule(
        lambda user, topic, channel: user.may_subscribe(topic, channel),
        "subscribe", "consume channel {channel!r} of topic {topic!r}", _CHANNEL,
    ),
    Action.READ: Rule(
        lambda user, topic, _: user.may_subscribe(topic), "subscribe to the whole topic", "read topic {topic!r} by offset", _TOPIC
    ),
    Action.REDRIVE: Rule(
        lambda user, topic, _: user.may_subscribe(topic, REDRIVE), f"subscribe to its channel {REDRIVE}", "redrive topic {topic!r}", _TOPIC
    ),
    # First use creates the channel if one is named, else the topic.
    Action.CREATE: Rule(lambda user, topic, channel: user.may_create(topic, channel), "create", "create topic {topic!r}", _TOPIC),
    Action.MANAGE_TOPIC: Rule(lambda user, topic, _: user.may_admin(topic), "admin", "change topic {topic!r}", _TOPIC),
    Action.MANAGE_CHANNEL: Rule(
        lambda user, topic, _: user.may_admin(topic), "admin", "change channel {channel!r} of topic {topic!r}", _CHANNEL
    ),
    Action.CONFIGURE: Rule(lambda user, *_: user.is_broker_admin, 'admin = ["*"]', "change the configuration"),
    # This is for processes, the audit log, backups, and what concerns the whole broker.
    Action.ADMINISTER: Rule(lambda user, *_: user.is_broker_admin, 'admin = ["*"]', "change the broker"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated client: its name, and the policy that authenticated it. The name may be "".

    NSQ's AUTH returns `permission_count` and `identity_url`. If the count is 0, AUTH is refused.
    """

    name: str
    policy: Policy
    permission_count: int = 0
    identity_url: str = ""

    @property
    def identity(self) -> str:
        return self.name

    def may(self, action: Action, topic: str = "", channel: str = "") -> bool:
        return self.policy.may(self, action, base_of(topic), channel)

    def require(self, action: Action, topic: str = "", channel: str = "", what: str = "") -> None:
        """Raise `Refused` (E_FORBIDDEN) if the principal may not do the action.

        `what` replaces the action's text.
        """
        if not self.may(action, topic, channel):
            rule = RULES[action]
            raise forbidden(
                self, what or rule.what.format(topic=topic, channel=channel), rule.needs
            )


class Policy(ABC):
    """The decision whether a principal may do an action on a topic and a channel."""

    @abstractmethod
    def may(
        self, principal: Principal, action: Action, topic: str = "", channel: str = ""
    ) -> bool: ...


class AccessPolicy(Policy):
    """The policy of an access file. It also finds the principals of tokens and keys."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.anonymous = self._principal(access.anonymous)

    def by_token(self, token: str) -> Principal | None:
        return self._principal(self.access.by_token(token))

    def by_curve(self, key: str) -> Principal | None:
        return self._principal(self.access.by_curve(key))

    def may(self, principal: Principal, action: Action, topic: str = "", channel: str = "") -> bool:
        user = self.access.by_name(principal.name)
        return user is not None and RULES[action].user(user, topic, channel)

    def _principal(self, user: User | None) -> Principal | None:
        return (
            None
            if user is None
            else Principal(user.name, self, len(user.publish) + len(user.subscribe))
        )


class FixedPolicy(Policy):
    """A policy that permits these actions to all principals on all topics."""

    def __init__(self, *actions: Action) -> None:
        self._actions = frozenset(actions)

    def may(self, principal: Principal, action: Action, topic: str = "", channel: str = "") -> bool:
        return action in self._actions


EVERYBODY: Final = Principal("", FixedPolicy(*Action))  # all clients, without authentication
NOBODY: Final = Principal("", FixedPolicy(Action.OPEN))  # unknown clients


def forbidden(principal: Principal, what: str, needs: str) -> Refused:
    return _refused(principal, what, f"that needs {needs} in the broker's access file")


def _refused(principal: Principal, what: str, why: str) -> Refused:
    return Refused(E_FORBIDDEN, f"{principal.name or 'this client'} may not {what}: {why}")


# Links and messages of ZeroMQ's clients

NOT_GRANTED: Final = "no permission in the broker's access file allows that"
LINKS: Final[Mapping[str, Action]] = {
    "supervisor": Action.SEE_SOME,  # any permission is enough: each message on the link is checked
    "topic": Action.PUBLISH,
    "stage": Action.PUBLISH,
    "reader": Action.READ,
    "channel": Action.CONSUME,
}


def check_open(principal: Principal, link: p.Open) -> None:
    """Raise `Refused` (E_FORBIDDEN) if the principal may not open the link.

    The other checks below raise it too.
    """
    action = LINKS.get(link.kind)
    if action is None:
        raise _refused(principal, f"open a link of kind {link.kind!r}", NOT_GRANTED)
    principal.require(action, link.topic, link.channel)
    if action is Action.CONSUME:
        check_dead_letters(principal, link.topic, link.channel, link.settings)


def check_message(principal: Principal, message: p.Wire) -> None:
    """Check a message on a link to the supervisor.

    Raises `UsageError` for an administrative request that is not valid.
    """
    if isinstance(message, p.Manage):
        _check_request(principal, request_of(message))
    elif isinstance(message, p.Stats):
        principal.require(Action.SEE if message.topic else Action.SEE_SOME, message.topic)
    elif isinstance(message, p.Lookup) and message.create:
        topic, channel = message.topic, message.channel
        principal.require(Action.MANAGE_TOPIC, topic, channel, f"create topic {topic!r}")
        if channel:
            check_dead_letters(principal, topic, channel, message.settings)
    elif isinstance(message, p.Lookup):
        principal.require(Action.SEE, message.topic, message.channel)
    elif not isinstance(message, p.Beat | p.Bye):
        raise _refused(principal, f"send {type(message).__name__} on this link", NOT_GRANTED)


STATS: Final = "stats"
LOOKUP: Final = "lookup"


def kind_of(message: p.Wire) -> str:
    """Return the kind of a request to the supervisor: its name in `REQUESTS`, or that of Stats."""
    if isinstance(message, p.Manage):
        return name_of(message)
    return STATS if isinstance(message, p.Stats) else LOOKUP


def _check_request(principal: Principal, request: AdminRequest[Any]) -> None:
    row, topic, channel = ROW_OF[type(request)], request.topic, request.channel
    action = row.action
    if action is Action.MANAGE_TOPIC:
        action = admin_action(topic)
    what = {Action.SEE: "", Action.SEE_SOME: "", Action.ADMINISTER: row.name}.get(
        action, f"{row.name} topic {topic!r}"
    )
    principal.require(action, topic, channel, what)
    if request.target is not None:
        _check_target(principal, request.target)
    if isinstance(request, RedriveRequest) and request.to_channel:
        check_address(principal, request.to)
    if isinstance(request, CreateChannelRequest | ConfigureChannelRequest):
        check_dead_letters(principal, topic, channel, request.settings)


def admin_action(topic: str) -> Action:
    """Return the action that changes a topic, or the broker if `topic` is ""."""
    return Action.MANAGE_TOPIC if topic else Action.ADMINISTER


def _check_target(
    principal: Principal, topic: object, what: str = "", needs: str = "publish"
) -> None:
    """Check the topic to which bodies are copied. `topic` may be of any type."""
    if not (isinstance(topic, str) and principal.may(Action.PUBLISH, topic)):
        raise forbidden(principal, what or f"publish to topic {topic!r:.70}", needs)


def check_address(principal: Principal, topic: str) -> None:
    """Check that the principal may publish messages for one channel of the topic.

    All other channels count such messages as finished. So this needs the permission that emptying
    or moving those channels needs.
    """
    principal.require(
        Action.MANAGE_TOPIC, topic, what=f"publish messages for one channel of topic {topic!r:.70}"
    )


def check_dead_letters(
    principal: Principal, topic: str, channel: str, settings: Mapping[str, object]
) -> None:
    """Check the dead-letter topic.

    The channel copies bodies to that topic with the permissions of the user who sets the topic.
    """
    dead = settings.get(DEAD_LETTER_TOPIC)
    if not dead:
        return
    what = f"have dead letters of channel {channel!r} of topic {topic!r} sent to topic {dead!r:.70}"
    _check_target(principal, dead, what, f"publish to topic {dead!r:.70}")
    if not principal.may(Action.CONSUME, topic, channel):
        raise forbidden(principal, what, "subscribe to the channel")


# First use

NOT_CREATED: Final = (
    "first use may not create it: that needs create in the broker's access file. Or ask an "
    "admin of the topic to create it"
)
TOPIC_TOO: Final = "topic"
CHANNEL_ONLY: Final = "channel"


def first_use(principal: Principal, topic: str) -> str:
    """Return what may be created, for `Lookup.by`.

    A user may be permitted to create channels of existing topics only.
    """
    return TOPIC_TOO if principal.may(Action.CREATE, topic) else CHANNEL_ONLY


# Filtering of answers

# The kinds of requests whose permission is that of one topic.
_ABOUT_ONE: Final = {
    LOOKUP,
    *(row.name for row in REQUESTS if row.action not in (Action.SEE_SOME, Action.ADMINISTER)),
}
_Answer = TypeVar("_Answer", bound=Mapping[str, object])
UNWELL: Final = "a topic has a problem; only users who may view the topic see which one"
# The fields of processes that totals need.
_OF_PROCESSES: Final = ("kind", "state", "private_bytes", "restarts")


def visible(data: _Answer, principal: Principal, kind: str) -> _Answer:
    """Return an answer without what the principal may not see.

    `kind` is the kind of the request (`kind_of`). The answer to a request about one topic is not
    changed, because the permission on that topic was checked before. The answer to a request about
    the whole broker needs a filter in `FILTERS`. Without one, nothing of it is visible.
    """
    if principal.may(Action.ADMINISTER):
        return data
    if kind in FILTERS:
        return cast("_Answer", FILTERS[kind](data, principal))
    return data if kind in _ABOUT_ONE else cast("_Answer", {})


def _schedules(data: Mapping[str, Any], principal: Principal) -> Mapping[str, Any]:
    return {"schedules": _of_topics(data["schedules"], principal)}


def _topics(data: Mapping[str, Any], principal: Principal) -> Mapping[str, Any]:
    """Return an answer with rows of topics.

    A principal that may see every topic may not see what belongs to the broker: the rows of
    processes, and the receivers of alarms (a webhook's address may be a secret).
    """
    found: dict[str, Any] = dict(data)
    if "processes" in found:
        found["processes"] = [
            {name: row[name] for name in _OF_PROCESSES if name in row} for row in found["processes"]
        ]
    if "alarm_receivers" in found:
        found["alarm_receivers"] = []
    if isinstance(alarms := found.get("alarms"), Mapping):  # in an overview
        found["alarms"] = {
            which: [] if which == "receivers" else _of_topics(rows, principal)
            for which, rows in alarms.items()
        }
    if principal.may(Action.SEE_ALL):
        return found
    found.pop("disk", None)
    found.pop("gateways", None)
    found.pop("bucket", None)
    found.pop("schedules", None)
    topics = found["topics"]
    if isinstance(topics, Mapping):
        found["topics"] = {
            name: row for name, row in topics.items() if principal.may(Action.SEE, name)
        }
    else:
        name = "topic" if "directory" in found else "topic_name"
        found["topics"] = [row for row in topics if principal.may(Action.SEE, row[name])]
    for which in ("alarms", "recent_alarms"):
        if isinstance(rows := found.get(which), list | tuple):
            found[which] = _of_topics(rows, principal)
    if "producers" in found:
        found["producers"] = _producers(found["producers"], principal)
    if found.get("health", "OK") != "OK":
        found["health"] = UNWELL
    if isinstance(broker := found.get("broker"), Mapping):
        hidden = {"disk_full": ""} if "disk_full" in broker else {}
        found["broker"] = {
            **broker,
            **hidden,
            "alarms": 0,
            **({} if broker.get("health", "OK") == "OK" else {"health": UNWELL}),
        }
    return found


def _of_topics(rows: Any, principal: Principal) -> list[Any]:
    return [row for row in rows if principal.may(Action.SEE, row["topic"])]


def _producers(rows: Any, principal: Principal) -> list[Any]:
    found = []
    for row in rows:
        counts = [
            one for one in row.get("pub_counts", ()) if principal.may(Action.SEE, one["topic"])
        ]
        if counts:
            found.append({**row, "pub_counts": counts})
    return found


# The filter of each answer about the whole broker.
FILTERS: Final[Mapping[str, Callable[[Mapping[str, Any], Principal], Mapping[str, Any]]]] = {
    STATS: _topics,
    "list": _topics,
    "overview": _topics,
    "cluster": _topics,
    "schedule list": _schedules,
}
