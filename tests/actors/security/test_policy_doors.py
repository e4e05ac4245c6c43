"""Tests of every gateway and every action by one table: a gateway's own mapping permits exactly the
users whom the policy permits.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from starlette.requests import Request
from support.admin_examples import EXAMPLES

from zsq.actors.gateways.http.web import authority
from zsq.actors.gateways.http.web.permissions import PATHS
from zsq.actors.gateways.http.web.responses import ApiError
from zsq.actors.gateways.nsq.permissions import COMMANDS
from zsq.actors.gateways.nsq.permits import Permits
from zsq.actors.gateways.shared.auth import AccessAuthenticator, Who
from zsq.actors.gateways.shared.auth_policy import LOOKING, granted
from zsq.actors.gateways.zeromq import ALLOWED as KINDS
from zsq.actors.security.access import Access, token_hash
from zsq.actors.security.complaints import Complaints
from zsq.actors.security.policy import (
    EVERYBODY,
    LINKS,
    NOBODY,
    RULES,
    AccessPolicy,
    Principal,
    check_message,
    check_open,
    visible,
)
from zsq.transport.errors import E_FORBIDDEN, Refused
from zsq.transport.nsq.permissions import parse_state
from zsq.transport.wire import protocol as p
from zsq.transport.wire.actions import Action
from zsq.transport.wire.admin_codec import manage_of
from zsq.transport.wire.admin_requests import (
    REQUESTS,
    ROW_OF,
    AddScheduleRequest,
    AdminRequest,
    RedriveRequest,
    RequestRow,
    RunScheduleRequest,
    SetScheduleRequest,
    SilenceAlarmRequest,
)

Lists = dict[str, list[str]]
ALL = {name: ["*"] for name in ("publish", "subscribe", "admin", "view")}
OTHERS: Lists = {name: ["u", "t2"] for name in ("publish", "subscribe", "admin", "view")}
NOT_ALL: Lists = ALL | {"admin": ["t", "t*"]}

# For each action: the smallest rules that permit it for topic t and channel c, and rules that
# permit everything else that the file can express, but not this action.
BY_FILE: dict[Action, tuple[Lists, Lists | None]] = {
    Action.OPEN: ({}, None),
    Action.KNOWN: ({}, None),
    Action.SEE: ({"view": ["t"]}, OTHERS),
    Action.SEE_SOME: ({"view": ["u"]}, {"create": ["*"]}),
    Action.SEE_ALL: ({"view": ["*"]}, ALL | {"admin": ["t*"], "view": ["t*"]}),
    Action.PUBLISH: ({"publish": ["t"]}, ALL | {"publish": ["u", "t2"]}),
    Action.CONSUME: ({"subscribe": ["t/c"]}, ALL | {"subscribe": ["t/d", "u"]}),
    Action.READ: ({"subscribe": ["t"]}, ALL | {"subscribe": ["t/c", "t/*", "u"]}),
    Action.REDRIVE: ({"subscribe": ["t/redrive"]}, ALL | {"subscribe": ["t/c", "u"]}),
    Action.CREATE: ({"create": ["t/c", "t"]}, ALL | {"admin": ["u"], "create": ["u"]}),
    Action.MANAGE_TOPIC: ({"admin": ["t"]}, ALL | {"admin": ["u", "t2"]}),
    Action.MANAGE_CHANNEL: ({"admin": ["t"]}, ALL | {"admin": ["u", "t2"]}),
    Action.CONFIGURE: ({"admin": ["*"]}, NOT_ALL),
    Action.ADMINISTER: ({"admin": ["*"]}, NOT_ALL),
}
# The same for an auth server: (permission, topic, channel pattern). None means that no user is
# permitted.
Row = tuple[str, str, str]
BY_SERVER: dict[Action, tuple[list[Row] | None, list[Row] | None]] = {
    **dict.fromkeys(
        (
            Action.OPEN,
            Action.KNOWN,
            Action.SEE,
            Action.SEE_SOME,
            Action.SEE_ALL,
            Action.CREATE,
            Action.CONFIGURE,
        ),
        ([], None),
    ),
    **dict.fromkeys(
        (Action.PUBLISH, Action.MANAGE_TOPIC),
        ([("publish", "t", ".*")], [("subscribe", ".*", ".*"), ("publish", "u", ".*")]),
    ),
    **dict.fromkeys(
        (Action.CONSUME, Action.MANAGE_CHANNEL),
        ([("subscribe", "t", "c")], [("publish", ".*", ".*"), ("subscribe", "t", "d")]),
    ),
    Action.READ: ([("subscribe", "t", ".*")], [("publish", ".*", ".*"), ("subscribe", "t", "c")]),
    Action.REDRIVE: (
        [("subscribe", "t", "redrive")],
        [("publish", ".*", ".*"), ("subscribe", "t", "c")],
    ),
    Action.ADMINISTER: (None, [("publish", ".*", ".*"), ("subscribe", ".*", ".*")]),
}


def by_file(lists: Lists) -> Principal:
    rows = "".join(f"{key} = {json.dumps(value)}\n" for key, value in lists.items())
    found = AccessPolicy(
        Access.parse(f'[users.a]\ntokens = ["{token_hash("a")}"]\n{rows}')
    ).by_token("a")
    assert found is not None
    return found


def by_server(rows: list[Row]) -> Principal:
    given = [
        {"permissions": [permission], "topic": topic, "channels": [channel]}
        for permission, topic, channel in rows
    ]
    return granted(
        parse_state(json.dumps({"ttl": 9, "identity": "me", "authorizations": given}).encode())
    )


def allowed_by_file(*actions: Action) -> Principal:
    lists: Lists = {}
    for action in actions:
        for name, entries in BY_FILE[action][0].items():
            lists[name] = lists.get(name, []) + entries
    return by_file(lists)


def refused_by_file(action: Action) -> Principal:
    lists = BY_FILE[action][1]
    return NOBODY if lists is None else by_file(lists)


def is_permitted(check: Any, *arguments: Any) -> bool:
    """Return False if the check is refused because of a missing permission. Every other refusal is
    an error of the test.
    """
    try:
        check(*arguments)
    except Refused as error:
        if error.code != E_FORBIDDEN or "in the broker's access file" not in error.text:
            raise
        return False
    except ApiError as error:
        if (error.status, error.message) != (403, "UNAUTHORIZED"):
            raise
        return False
    return True


# The policy


def test_the_table_has_every_action() -> None:
    assert BY_FILE.keys() == BY_SERVER.keys() == RULES.keys() == set(Action)
    used = {
        *LINKS.values(),
        *(row.action for row in REQUESTS),
        *COMMANDS.values(),
        *(action for actions in PATHS.values() for action in actions),
    }
    assert set(Action) - used == {Action.CREATE, Action.SEE_ALL}, (
        "these two are asked by first use and by what is shown of a list"
    )


@pytest.mark.parametrize("action", Action)
def test_an_access_file_permits_exactly_its_actions(action: Action) -> None:
    may, may_not = allowed_by_file(action), refused_by_file(action)
    assert may.may(action, "t", "c")
    assert is_permitted(may.require, action, "t", "c")
    assert is_permitted(may_not.require, action, "t", "c") == (action is Action.OPEN)
    assert not by_file({}).may(action, "t", "c") or action in (
        Action.OPEN,
        Action.KNOWN,
        Action.CREATE,
    )


@pytest.mark.parametrize("action", Action)
def test_an_auth_server_permits_exactly_its_actions(action: Action) -> None:
    may, may_not = BY_SERVER[action]
    assert may is None or by_server(may).may(action, "t", "c")
    assert may_not is None or not by_server(may_not).may(action, "t", "c")


@pytest.mark.parametrize("action", Action)
def test_without_rules_all_is_permitted_and_unknown_users_may_nothing(action: Action) -> None:
    assert EVERYBODY.may(action, "t", "c")
    assert NOBODY.may(action, "t", "c") == (action is Action.OPEN)
    assert LOOKING.may(action, "t", "c") == (
        action in (Action.OPEN, Action.SEE, Action.SEE_SOME, Action.SEE_ALL)
    )


def test_a_principal_is_valid_only_with_the_policy_that_made_it() -> None:
    """A gateway authenticates again for each request, so a principal of an old policy has no rights
    in a new one.
    """
    old = allowed_by_file(Action.PUBLISH)
    assert not AccessPolicy(Access.parse("")).may(old, Action.PUBLISH, "t")
    assert not AccessPolicy(Access.parse('[anonymous]\npublish = ["*"]')).may(
        NOBODY, Action.PUBLISH, "t"
    )


# ZeroMQ


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_link_opens_only_with_its_permission(kind: str) -> None:
    link = p.Open(1, kind, "t", "c", False)
    assert is_permitted(check_open, allowed_by_file(LINKS[kind]), link)
    assert not is_permitted(check_open, refused_by_file(LINKS[kind]), link)
    assert not is_permitted(check_open, NOBODY, link)


def request_of_row(row: RequestRow) -> AdminRequest[Any]:
    """Return a request of this row about topic "t", or about the broker."""
    example = EXAMPLES[row.kind]
    if isinstance(example, RedriveRequest):  # one for a single channel needs more
        example = dataclasses.replace(example, to_channel="")
    return dataclasses.replace(example, topic=example.topic and "t")


@pytest.mark.parametrize("row", REQUESTS, ids=lambda row: row.kind.__name__)
def test_each_request_is_permitted_only_with_its_permission(row: RequestRow) -> None:
    request = request_of_row(row)
    message = manage_of(request)
    target = (Action.PUBLISH,) if request.target is not None else ()
    assert is_permitted(check_message, allowed_by_file(row.action, *target), message)
    assert not is_permitted(check_message, refused_by_file(row.action), message)
    assert not is_permitted(check_message, NOBODY, message)


def test_a_change_of_the_whole_broker_needs_its_admin() -> None:
    message = manage_of(SilenceAlarmRequest())
    assert not is_permitted(check_message, allowed_by_file(Action.MANAGE_TOPIC), message)
    assert is_permitted(check_message, allowed_by_file(Action.ADMINISTER), message)


@pytest.mark.parametrize("kind", [AddScheduleRequest, SetScheduleRequest, RunScheduleRequest])
def test_the_broker_publishes_by_schedule_only_for_a_user_who_may_publish(
    kind: type[AdminRequest[Any]],
) -> None:
    message = manage_of(request_of_row(ROW_OF[kind]))
    assert not is_permitted(check_message, allowed_by_file(Action.MANAGE_TOPIC), message)
    assert not is_permitted(check_message, allowed_by_file(Action.PUBLISH), message)
    assert is_permitted(
        check_message, allowed_by_file(Action.MANAGE_TOPIC, Action.PUBLISH), message
    )


def test_the_list_of_schedules_has_only_topics_that_the_user_may_see() -> None:
    rows = ({"topic": "t", "name": "a"}, {"topic": "u", "name": "b"}, {"topic": "t#3", "name": "c"})
    found = visible({"schedules": rows}, allowed_by_file(Action.SEE), "schedule list")
    assert [row["name"] for row in found["schedules"]] == ["a", "c"]
    assert visible({"schedules": rows}, EVERYBODY, "schedule list")["schedules"] == rows


def test_each_request_to_the_supervisor_needs_its_action() -> None:
    asked: list[tuple[p.Wire, Action]] = [
        (p.Stats(1, "t", ""), Action.SEE),
        (p.Stats(1, "", ""), Action.SEE_SOME),
        (p.Lookup(1, "t", "c", False), Action.SEE),
        (p.Lookup(1, "t", "c", True), Action.MANAGE_TOPIC),
    ]
    for message, action in asked:
        assert is_permitted(check_message, allowed_by_file(action), message)
        assert not is_permitted(check_message, refused_by_file(action), message)
    assert is_permitted(check_message, NOBODY, p.Bye())
    assert not is_permitted(check_message, EVERYBODY, p.Done(1, {}))


# NSQ


@pytest.mark.parametrize("permission", COMMANDS)
def test_each_nsq_command_is_permitted_only_with_its_permission(permission: str) -> None:
    action = COMMANDS[permission]
    channel = "c" if action is Action.CONSUME else ""
    for secret, principal, may in (
        ("a", allowed_by_file(action), True),
        ("a", refused_by_file(action), False),
        ("b", allowed_by_file(action), False),
        ("", allowed_by_file(action), False),
    ):
        assert isinstance(principal.policy, AccessPolicy)
        permits = Permits(AccessAuthenticator(principal.policy), Complaints())
        who = Who("", False, "", secret)
        said: list[str] = []
        permits.permitted(who, "", permission, "t", channel, said.append)
        permits.permitted(who, "", permission, "t", "" if channel else "c", said.append)
        permits.permitted(who, "", "admin", "t", channel, said.append)
        assert said == ["" if may else "not permitted", "not permitted", "not permitted"]
        assert permits.still_permitted(who, permission, "t", channel) == may


# HTTP


def request(path: str) -> Request:
    return Request(
        {
            "type": "http",
            "method": "GET",
            "path": path,
            "query_string": b"topic=t&channel=c",
            "headers": [],
        }
    )


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_each_http_path_is_permitted_only_with_its_permissions(method: str, path: str) -> None:
    actions = PATHS[method, path]
    assert is_permitted(authority.check, actions, allowed_by_file(*actions), request(path))
    assert is_permitted(authority.check, actions, EVERYBODY, request(path))
    for action in actions:
        assert is_permitted(authority.check, actions, refused_by_file(action), request(path)) == (
            action is Action.OPEN
        )
    assert is_permitted(authority.check, actions, NOBODY, request(path)) == (
        actions == (Action.OPEN,)
    )


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_each_http_path_needs_its_grants_of_the_auth_server(method: str, path: str) -> None:
    actions = PATHS[method, path]
    enough = [BY_SERVER[action][0] for action in actions]
    if None not in enough:
        assert is_permitted(
            authority.check,
            actions,
            by_server([row for rows in enough for row in rows or ()]),
            request(path),
        )
    for action in actions:
        if (rows := BY_SERVER[action][1]) is not None:
            assert not is_permitted(authority.check, actions, by_server(rows), request(path))
