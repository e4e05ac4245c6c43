"""Access control: one `Policy` answers whether a principal may do an action on a topic and a channel. Pure.

A gateway authenticates whoever connects, which gives a `Principal`. What is asked of a principal stands in the tables below. There is one
row for each kind of link (`LINKS`), order (`ORDERS`), permission of an NSQ client (`COMMANDS`) and HTTP path (`PATHS`). `RULES` has one row
for each action: what it needs in the access file, what it needs of an auth server, and how its refusal is worded.

Whatever is in no table needs `admin` of `*`: an order that somebody adds later is closed until somebody opens it here. Whoever may change a
topic may not read its messages by that.

To publish makes the topic on first use, to subscribe makes the topic and the channel, within `create`. Their settings are another matter.
`dead_letter_topic` and redrive copy bodies from one topic to another, so they need `subscribe` on the source and `publish` on the target:
`admin` alone would read a topic by having its messages sent to another one.

An auth server knows two permissions. Whoever may publish to a topic may change it, and whoever may subscribe to a channel may change that.
Names and numbers are open to all there, and what belongs to the broker is closed to all.

A principal keeps the policy that it was authenticated by. Gateways authenticate again for each request, so new rules hold from then on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

from ...transport.errors import E_FORBIDDEN, Refused
from ...transport.nsq.permissions import PUBLISH, SUBSCRIBE, AuthState
from ...transport.wire import protocol as p

if TYPE_CHECKING:
    from .access import Access, User

REDRIVE: Final = "redrive"  # the order, and the channel by which dead letters are read
DEAD_LETTER_TOPIC: Final = "dead_letter_topic"


class Action(Enum):
    """What a principal wants to do. The value is how the HTTP gateway's log names it."""

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


class Rule(NamedTuple):
    """A row of `RULES`. `names`: the names that the action needs; None: it concerns the broker, and names are not looked at."""

    user: Callable[[User, str, str], bool]
    auth_server: Callable[[AuthState, str, str], bool]
    needs: str
    what: str = ""
    names: tuple[str, ...] | None = None


def _yes(granted: object, topic: str, channel: str) -> bool:
    return True


def _no(granted: object, topic: str, channel: str) -> bool:
    return False


def _publishes(state: AuthState, topic: str, channel: str) -> bool:
    return state.permits(PUBLISH, topic)


def _reads(state: AuthState, topic: str, channel: str) -> bool:
    """To read by offset wants a channel pattern that also matches the empty name, which `.*` does, as to publish."""
    return any(one.permits(SUBSCRIBE, topic, "") for one in state.authorizations)


def _consumes(state: AuthState, topic: str, channel: str) -> bool:
    return state.permits(SUBSCRIBE, topic, channel) if channel else _reads(state, topic, "")


_TOPIC: Final = ("topic",)
_CHANNEL: Final = ("topic", "channel")
RULES: Final[Mapping[Action, Rule]] = {
    Action.OPEN: Rule(_yes, _yes, "nothing"),
    Action.KNOWN: Rule(_yes, _yes, "a user"),
    # Names and numbers, no bodies. Of lists a principal is shown what it may see (`visible`).
    Action.SEE: Rule(lambda user, topic, _: user.may_view(topic), _yes, "view", "look at topic {topic!r}", ()),
    Action.SEE_SOME: Rule(lambda user, *_: user.may_something, _yes, "view", "see statistics"),
    Action.SEE_ALL: Rule(lambda user, *_: user.sees_all, _yes, 'view = ["*"]', "see all topics"),
    Action.PUBLISH: Rule(lambda user, topic, _: user.may_publish(topic), _publishes, "publish", "publish to topic {topic!r}", _TOPIC),
    # Without a channel: of all channels, as to read by offset.
    Action.CONSUME: Rule(
        lambda user, topic, channel: user.may_subscribe(topic, channel), _consumes,
        "subscribe", "consume channel {channel!r} of topic {topic!r}", _CHANNEL,
    ),
    Action.READ: Rule(
        lambda user, topic, _: user.may_subscribe(topic), _reads, "subscribe to the whole topic", "read topic {topic!r} by offset", _TOPIC
    ),
    Action.REDRIVE: Rule(
        lambda user, topic, _: user.may_subscribe(topic, REDRIVE),
        lambda state, topic, _: _consumes(state, topic, REDRIVE),
        f"subscribe to its channel {REDRIVE}", "redrive topic {topic!r}", _TOPIC,
    ),
    # First use: of the channel if one is named, else of the topic.
    Action.CREATE: Rule(lambda user, topic, channel: user.may_create(topic, channel), _yes, "create", "make topic {topic!r}", _TOPIC),
    Action.MANAGE_TOPIC: Rule(lambda user, topic, _: user.may_admin(topic), _publishes, "admin", "change topic {topic!r}", _TOPIC),
    Action.MANAGE_CHANNEL: Rule(
        lambda user, topic, _: user.may_admin(topic), lambda state, topic, channel: state.permits(SUBSCRIBE, topic, channel),
        "admin", "change channel {channel!r} of topic {topic!r}", _CHANNEL,
    ),
    Action.CONFIGURE: Rule(lambda user, *_: user.is_broker_admin, _yes, 'admin = ["*"]', "change the configuration"),
    # What belongs to no topic: processes, the audit log, and every order that is in no table.
    Action.ADMINISTER: Rule(lambda user, *_: user.is_broker_admin, _no, 'admin = ["*"]', "change the broker"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever was authenticated: the name, and the policy that it was authenticated by. A name "" is nobody in particular.

    `permission_count` and `identity_url` are what NSQ's AUTH answers. A count of 0 refuses AUTH.
    """

    name: str
    policy: Policy
    permission_count: int = 0
    identity_url: str = ""

    @property
    def identity(self) -> str:
        return self.name

    def may(self, action: Action, topic: str = "", channel: str = "") -> bool:
        return self.policy.may(self, action, topic, channel)

    def require(self, action: Action, topic: str = "", channel: str = "", what: str = "") -> None:
        """`Refused` E_FORBIDDEN where it may not. `what` replaces the action's own words."""
        if not self.may(action, topic, channel):
            rule = RULES[action]
            raise forbidden(self, what or rule.what.format(topic=topic, channel=channel), rule.needs)


class Policy(ABC):
    """Answers "may this principal do this action on this topic and channel?"."""

    @abstractmethod
    def may(self, principal: Principal, action: Action, topic: str = "", channel: str = "") -> bool: ...


class AccessPolicy(Policy):
    """By the access file. Also finds its principals."""

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
        return None if user is None else Principal(user.name, self, len(user.publish) + len(user.subscribe))


class AuthServerPolicy(Policy):
    """By what an auth server answered of one principal."""

    def __init__(self, state: AuthState) -> None:
        self._state = state

    def may(self, principal: Principal, action: Action, topic: str = "", channel: str = "") -> bool:
        return RULES[action].auth_server(self._state, topic, channel)


class FixedPolicy(Policy):
    """These actions, whoever asks and wherever."""

    def __init__(self, *actions: Action) -> None:
        self._actions = frozenset(actions)

    def may(self, principal: Principal, action: Action, topic: str = "", channel: str = "") -> bool:
        return action in self._actions


EVERYBODY: Final = Principal("", FixedPolicy(*Action))  # where nobody is asked who they are
NOBODY: Final = Principal("", FixedPolicy(Action.OPEN))  # whoever is not known
LOOKING: Final = Principal("", FixedPolicy(Action.OPEN, Action.SEE, Action.SEE_SOME, Action.SEE_ALL))  # ... beside an auth server


def granted(state: AuthState) -> Principal:
    """Return the principal that an auth server's answer names."""
    return Principal(state.identity, AuthServerPolicy(state), state.permission_count, state.identity_url)


def forbidden(principal: Principal, what: str, needs: str) -> Refused:
    return Refused(E_FORBIDDEN, f"{principal.name or 'this client'} may not {what}: that needs {needs} in the broker's access file")


# Links and messages of ZeroMQ's clients

LINKS: Final[Mapping[str, Action]] = {
    "supervisor": Action.SEE_SOME,  # for whoever may do anything at all: each message on it is checked
    "topic": Action.PUBLISH,
    "stage": Action.PUBLISH,
    "reader": Action.READ,
    "channel": Action.CONSUME,
}
ORDERS: Final[Mapping[str, Action]] = {
    "list": Action.SEE_SOME,
    "overview": Action.SEE_SOME,
    "chunks": Action.SEE,
    "delayed count": Action.SEE,
    "peek": Action.CONSUME,  # these two show bodies, or which messages there are
    "delayed list": Action.READ,
    REDRIVE: Action.REDRIVE,  # besides, publish of the target
    **dict.fromkeys(
        ("create", "delete", "pause", "unpause", "empty", "configure", "close", "open", "seek", "delayed cancel"), Action.MANAGE_TOPIC
    ),
}


def check_open(principal: Principal, link: p.Open) -> None:
    """`Refused` E_FORBIDDEN where the principal may not open the link; so all below."""
    action = LINKS.get(link.kind)
    if action is None:
        raise forbidden(principal, f"open a link of kind {link.kind!r}", "more than there is")
    principal.require(action, link.topic, link.channel)
    if action is Action.CONSUME:
        check_dead_letters(principal, link.topic, link.channel, link.settings)


def check_message(principal: Principal, message: p.Wire) -> None:
    """Check what comes on a link to the supervisor."""
    if isinstance(message, p.Manage):
        _check_order(principal, message.action, message.topic, message.channel, message.options)
    elif isinstance(message, p.Stats):
        principal.require(Action.SEE if message.topic else Action.SEE_SOME, message.topic)
    elif isinstance(message, p.Lookup):
        _check_order(principal, "create" if message.create else "chunks", message.topic, message.channel, message.settings)
    elif not isinstance(message, p.Beat | p.Bye):
        raise forbidden(principal, f"say {type(message).__name__}", "more than there is")


def _check_order(principal: Principal, order: str, topic: str, channel: str, options: Mapping[str, object]) -> None:
    exact = f"delayed {options.get('do')}" if order == "delayed" else order
    action = ORDERS.get(exact, Action.ADMINISTER)
    what = {Action.SEE: "", Action.SEE_SOME: "", Action.ADMINISTER: exact[:40]}.get(action, f"{exact} topic {topic!r}")
    principal.require(action, topic, channel, what)
    if action is Action.REDRIVE:
        _check_target(principal, options.get("to"))
    if channel and order in ("create", "configure"):
        check_dead_letters(principal, topic, channel, options)


def _check_target(principal: Principal, topic: object, what: str = "", needs: str = "publish") -> None:
    """A topic that bodies are copied to; anything at all may stand in its place."""
    if not (isinstance(topic, str) and principal.may(Action.PUBLISH, topic)):
        raise forbidden(principal, what or f"publish to topic {topic!r:.70}", needs)


def check_dead_letters(principal: Principal, topic: str, channel: str, settings: Mapping[str, object]) -> None:
    """A channel copies bodies to its dead-letter topic in the name of whoever set that."""
    dead = settings.get(DEAD_LETTER_TOPIC)
    if not dead:
        return
    what = f"have dead letters of channel {channel!r} of topic {topic!r} sent to topic {dead!r:.70}"
    _check_target(principal, dead, what, f"publish to topic {dead!r:.70}")
    if not principal.may(Action.CONSUME, topic, channel):
        raise forbidden(principal, what, "subscribe to the channel")


# First use

NOT_CREATED: Final = "first use may not make it: that needs create in the broker's access file, or have its admin make it"
TOPIC_TOO: Final = "topic"
CHANNEL_ONLY: Final = "channel"


def first_use(principal: Principal, topic: str) -> str:
    """Return what may be made, for `Lookup.by`: a user may be permitted to make channels of topics that are there, and no topics."""
    return TOPIC_TOO if principal.may(Action.CREATE, topic) else CHANNEL_ONLY


# NSQ's clients

COMMANDS: Final[Mapping[str, Action]] = {PUBLISH: Action.PUBLISH, SUBSCRIBE: Action.CONSUME}


def may_command(principal: Principal, permission: str, topic: str, channel: str) -> bool:
    """`permission` as NSQ has it: to publish is asked without a channel, to subscribe with one."""
    action = COMMANDS.get(permission)
    return action is not None and bool(channel) == (action is Action.CONSUME) and principal.may(action, topic, channel)


# HTTP

Actions = tuple[Action, ...]


def _all(actions: Actions | Action, method: str, *paths: str) -> dict[tuple[str, str], Actions]:
    return {(method, path): (actions,) if isinstance(actions, Action) else actions for path in paths}


PATHS: Final[Mapping[tuple[str, str], Actions]] = {
    # The console's files hold nothing; /ping says OK or not, and more only to those who may see it.
    **_all(Action.OPEN, "GET", "/ping", "/", "/console/{name:path}"),
    **_all(Action.SEE, "GET", "/info", "/stats", "/metrics", "/lookup", "/topics", "/channels", "/nodes", "/config/{option}"),
    **_all(Action.CONFIGURE, "PUT", "/config/{option}"),
    **_all(Action.PUBLISH, "POST", "/pub", "/mpub", "/api/topic/publish"),
    **_all(Action.MANAGE_TOPIC, "POST", *(f"/topic/{one}" for one in ("create", "delete", "empty", "pause", "unpause", "tombstone"))),
    **_all(Action.MANAGE_CHANNEL, "POST", *(f"/channel/{one}" for one in ("create", "delete", "empty", "pause", "unpause"))),
    # The console's
    **_all(Action.SEE, "GET", "/api/overview", "/api/live", "/api/history", "/api/histories", "/api/topic", "/api/channel", "/api/chunks"),
    **_all(Action.SEE, "GET", "/api/alarms", "/api/preview", "/api/jobs"),
    **_all(Action.READ, "GET", "/api/messages", "/api/body", "/api/delayed"),
    **_all(Action.CONSUME, "GET", "/api/peek"),
    **_all(Action.ADMINISTER, "GET", "/api/processes", "/api/audit"),
    **_all(
        Action.MANAGE_TOPIC, "POST",
        *(f"/api/topic/{one}" for one in ("create", "configure", "pause", "unpause", "empty", "close", "open", "delete")),
        "/api/delayed/cancel",
    ),
    **_all((Action.MANAGE_TOPIC, Action.REDRIVE), "POST", "/api/redrive"),
    **_all(
        Action.MANAGE_CHANNEL, "POST",
        *(f"/api/channel/{one}" for one in ("create", "configure", "pause", "unpause", "empty", "seek", "delete")),
    ),
    **_all(Action.KNOWN, "POST", "/api/job/stop"),  # the handler looks at the job's topic
}  # fmt: skip


def actions_of(method: str, path: str) -> Actions:
    """Return what the path asks; `path` as the table of paths has it. A path without a row cannot be served."""
    try:
        return PATHS[method, path]
    except KeyError:
        raise AssertionError(f"{method} {path} has no entry in policy.py: say what it asks of its caller") from None


# What of an answer is shown

_Answer = TypeVar("_Answer", bound=Mapping[str, object])
UNWELL: Final = "a topic is not well; who may view it is told which"
_OF_PROCESSES: Final = ("kind", "state", "private_bytes", "restarts")  # what sums are made of


def visible(data: _Answer, principal: Principal) -> _Answer:
    """Return the answer to Stats, or to Manage's `list` and `overview`, with only the rows of topics that the principal may see.

    Answers are told apart by their form, so that a gateway need not remember what was asked: those without `topics` stay as they are.
    Whoever may see every topic does not see by that what is the broker's own: the rows of processes, and who is told of alarms (a
    webhook's address may be a secret).
    """
    if "topics" not in data or principal.may(Action.ADMINISTER):
        return data
    found: dict[str, Any] = dict(data)
    if "processes" in found:
        found["processes"] = [{name: row[name] for name in _OF_PROCESSES if name in row} for row in found["processes"]]
    if "alarm_receivers" in found:
        found["alarm_receivers"] = []
    if isinstance(alarms := found.get("alarms"), Mapping):  # of an overview
        found["alarms"] = {which: [] if which == "receivers" else _of_topics(rows, principal) for which, rows in alarms.items()}
    if principal.may(Action.SEE_ALL):
        return cast("_Answer", found)
    found.pop("disk", None)
    found.pop("gateways", None)
    topics = found["topics"]
    if isinstance(topics, Mapping):
        found["topics"] = {name: row for name, row in topics.items() if principal.may(Action.SEE, name)}
    else:
        found["topics"] = [row for row in topics if principal.may(Action.SEE, row["topic_name"])]
    for which in ("alarms", "recent_alarms"):
        if isinstance(rows := found.get(which), list | tuple):
            found[which] = _of_topics(rows, principal)
    if "producers" in found:
        found["producers"] = _producers(found["producers"], principal)
    if found.get("health", "OK") != "OK":
        found["health"] = UNWELL
    if isinstance(broker := found.get("broker"), Mapping):
        hidden = {"disk_full": ""} if "disk_full" in broker else {}
        found["broker"] = {**broker, **hidden, "alarms": 0, **({} if broker.get("health", "OK") == "OK" else {"health": UNWELL})}
    return cast("_Answer", found)


def _of_topics(rows: Any, principal: Principal) -> list[Any]:
    return [row for row in rows if principal.may(Action.SEE, row["topic"])]


def _producers(rows: Any, principal: Principal) -> list[Any]:
    found = []
    for row in rows:
        counts = [one for one in row.get("pub_counts", ()) if principal.may(Action.SEE, one["topic"])]
        if counts:
            found.append({**row, "pub_counts": counts})
    return found
