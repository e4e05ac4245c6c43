"""Tests of an auth server's answer: what it permits, as in nsqd except that patterns must match
whole names, and what is refused.
"""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.transport.nsq.permissions import (
    AUTHORIZATIONS_MAX,
    PATTERN_CHARS_MAX,
    PATTERNS_MAX,
    PUBLISH,
    STEPS_MAX,
    SUBSCRIBE,
    TEXT_CHARS_MAX,
    TTL_S_MAX,
    AuthState,
    BadAuthorization,
    BadPattern,
    Pattern,
    parse_state,
)


def one(
    topic: str = ".*", channels: Any = (".*",), permissions: Any = (SUBSCRIBE, PUBLISH)
) -> dict[str, Any]:
    return {"topic": topic, "channels": list(channels), "permissions": list(permissions)}


def state(*authorizations: Any, **more: Any) -> AuthState:
    return parse_state(
        json.dumps({"ttl": 60, "authorizations": list(authorizations), **more}).encode()
    )


def test_identity_and_lifetime_come_from_the_auth_answer() -> None:
    found = state(one(), one(), identity="worker", identity_url="http://people/worker", ttl=3600)
    assert (found.identity, found.identity_url, found.ttl_s, found.permission_count) == (
        "worker",
        "http://people/worker",
        3600,
        2,
    )
    bare = parse_state(b'{"ttl": 1, "authorizations": null, "identity": null, "more": {}}')
    assert (bare.identity, bare.identity_url, bare.permission_count) == ("", "", 0)
    assert not bare.permits(PUBLISH, "t")
    assert state(ttl=TTL_S_MAX + 1).ttl_s == TTL_S_MAX


def test_publish_and_subscribe_are_permitted_separately() -> None:
    writer, reader = state(one(permissions=[PUBLISH])), state(one(permissions=[SUBSCRIBE]))
    assert writer.permits(PUBLISH, "t")
    assert not writer.permits(SUBSCRIBE, "t", "c")
    assert reader.permits(SUBSCRIBE, "t", "c")
    assert not reader.permits(PUBLISH, "t")
    assert not state(one(permissions=[])).permits(PUBLISH, "t")


def test_names_are_matched_whole() -> None:
    found = state(one("orders", ["billing", ""]))
    assert found.permits(PUBLISH, "orders")
    assert found.permits(SUBSCRIBE, "orders", "billing")
    for topic, channel in (
        ("old-orders", "billing"),
        ("orders2", "billing"),
        ("orders", "billing2"),
        ("orders", "re-billing"),
    ):
        assert not found.permits(SUBSCRIBE, topic, channel)
    assert not found.permits(PUBLISH, "orders#ephemeral")


def test_to_publish_a_channel_pattern_must_take_the_empty_name() -> None:
    """An authorization for one channel does not allow publishing. nsqd does the same."""
    assert not state(one("t", ["c"])).permits(PUBLISH, "t")
    assert not state(one("t", [])).permits(PUBLISH, "t")
    assert state(one("t", ["c", ".*"])).permits(PUBLISH, "t")


def test_one_authorization_must_permit_topic_channel_and_action() -> None:
    found = state(one("a", ["x"], [SUBSCRIBE]), one("b", [".*"], [PUBLISH]))
    assert found.permits(SUBSCRIBE, "a", "x")
    assert not found.permits(SUBSCRIBE, "b", "x")
    assert not found.permits(PUBLISH, "a")


def test_questions_that_make_no_sense_are_not_permitted() -> None:
    found = state(one())
    assert not found.permits(PUBLISH, "t", "c")
    assert not found.permits(SUBSCRIBE, "t", "")
    assert not found.permits("delete", "t", "c")


def test_cached_permissions_are_bounded_and_right() -> None:
    found = state(one("t[0-9]*5", [".*"]))
    for _ in range(2):
        for number in range(3000):
            assert found.permits(PUBLISH, f"t{number}") == (number % 10 == 5)
    assert len(found._known) <= 1024


BAD: list[tuple[bytes, str]] = [
    (b"", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b"[]", "not a JSON object"),
    (b"{}", "ttl"),
    (b'{"ttl": 0}', "ttl"),
    (b'{"ttl": -5}', "ttl"),
    (b'{"ttl": true}', "ttl"),
    (b'{"ttl": 60.5}', r"ttl must be a whole number of seconds above 0, not 60\.5"),
    (b'{"ttl": "60"}', "ttl"),
    (b'{"ttl": 60, "identity": 5}', "identity must be a string of at most"),
    (
        b'{"ttl": 60, "identity_url": "%s"}' % (b"x" * (TEXT_CHARS_MAX + 1)),
        "identity_url must be a string of at most",
    ),
    (b'{"ttl": 60, "authorizations": {"a": 1}}', "authorizations must be a list of at most 1000"),
    (b'{"ttl": 60, "authorizations": [5]}', "not an object"),
    (b'{"ttl": 60, "authorizations": [{"topic": 5}]}', "topic is not"),
    (b'{"ttl": 60, "authorizations": [{"channels": ".*"}]}', "channels is not a list"),
    (b'{"ttl": 60, "authorizations": [{"channels": [5]}]}', "channels is not a list of strings"),
    (
        b'{"ttl": 60, "authorizations": [{"permissions": [["publish"]]}]}',
        "permissions is not a list of strings",
    ),
    (
        b'{"ttl": 60, "authorizations": [{"permissions": ["publish", "admin"]}]}',
        "unknown permission 'admin'",
    ),
    (b'{"ttl": 60, "authorizations": [{"topic": "(a"}]}', r"topic pattern '\(a'"),
    (
        b'{"ttl": 60, "authorizations": [{"topic": "a", "channels": ["ok", "(?=x)"]}]}',
        "channel pattern",
    ),
    (b'{"ttl": 60, "authorizations": [{"topic": "%s"}]}' % (b"a" * 257), "257 characters"),
]


@pytest.mark.parametrize(("body", "text"), BAD)
def test_each_bad_auth_answer_is_refused_whole(body: bytes, text: str) -> None:
    with pytest.raises(BadAuthorization, match=text):
        parse_state(body)


def test_too_many_authorizations_or_patterns_are_refused() -> None:
    assert state(*[one()] * AUTHORIZATIONS_MAX).permission_count == AUTHORIZATIONS_MAX
    with pytest.raises(BadAuthorization, match="at most 1000"):
        state(*[one()] * (AUTHORIZATIONS_MAX + 1))
    with pytest.raises(BadAuthorization, match=r"has \d+ patterns; the limit is 5000"):
        state(one(channels=["a"] * PATTERNS_MAX))


KEYS = (
    st.sampled_from(
        ["ttl", "authorizations", "topic", "channels", "permissions", "identity", "identity_url"]
    )
    | st.text()
)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(
    said=JSON
    | st.fixed_dictionaries({"ttl": st.just(5), "authorizations": st.lists(JSON, max_size=3)})
)
def test_any_json_is_a_state_or_refused(said: Any) -> None:
    try:
        found = parse_state(json.dumps(said).encode())
    except BadAuthorization:
        return
    assert found.permits(PUBLISH, "t") in {True, False}


def test_patterns_that_take_too_many_steps_together_are_refused() -> None:
    """Each pattern is small enough, and there are not too many. But parsing and applying all of
    them would block the gateway for seconds.
    """
    patterns = [f"([a-z]|b?){{90}}{number}" for number in range(400)]
    costly = [one(pattern) for pattern in patterns]
    with pytest.raises(BadAuthorization, match=f"more than {STEPS_MAX} instructions"):
        parse_state(json.dumps({"ttl": 60, "authorizations": costly}).encode())
    many = [one(f"orders-{number}") for number in range(1000)]
    assert (
        parse_state(json.dumps({"ttl": 60, "authorizations": many}).encode()).permission_count
        == 1000
    )


NAMES = st.text("ab.-_0#", max_size=9)
CHARS = st.sampled_from(
    [
        "a",
        "b",
        "0",
        r"\.",
        ".",
        "-",
        "[ab]",
        "[^a]",
        "[a-b0-9]",
        r"\d",
        r"\w",
        r"[\w.-]",
        "#",
        "[]a]",
        "[a-]",
        "é",
    ]
)


def grown(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = parts.map(lambda text: f"({text})") | parts.map(lambda text: f"(?:{text})")
    repeated = st.tuples(
        group | CHARS, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,3}", "*?", "+?"])
    ).map("".join)
    return (
        repeated
        | group
        | st.lists(parts, max_size=3).map("".join)
        | st.lists(parts, min_size=1, max_size=3).map("|".join).map(lambda text: f"({text})")
    )


PATTERNS = st.recursive(CHARS | st.sampled_from(["^", "$", ""]), grown, max_leaves=8)


@given(text=PATTERNS, names=st.lists(NAMES, max_size=5))
@settings(max_examples=300)
def test_a_pattern_matches_what_fullmatch_matches(text: str, names: list[str]) -> None:
    pattern, reference = Pattern(text), re.compile(text, re.ASCII)
    for name in [*names, "", "a"]:
        assert pattern.matches(name) == bool(reference.fullmatch(name)), name


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        (".*", ["", "orders", "a#ephemeral"], ["é"]),
        ("orders", ["orders"], ["old-orders", "orders2", "", "Orders"]),
        ("^orders$", ["orders"], ["old-orders"]),
        (r"\Aorders\z", ["orders"], ["orders2"]),
        ("orders_.*", ["orders_", "orders_eu"], ["orders", "x_orders_eu"]),
        (r"eu\.orders", ["eu.orders"], ["euxorders"]),
        ("(?i)orders", ["orders", "Orders"], ["orders2"]),
        (r"\pL+", ["orders"], ["orders2"]),
        ("a|b", ["a", "b"], ["ab", ""]),
        ("a|é", ["a"], ["b", "é"]),
        ("a|", ["a", ""], ["b"]),
        ("^a|b$", ["a", "b"], ["ax", "xb"]),
        ("[a-c]{2,3}", ["ab", "abc"], ["a", "abca"]),
        ("(a|bc)+[0-9]?", ["a", "abca7"], ["", "7", "ab"]),
        ("a$b", [], ["ab", "a$b"]),
        ("", [""], ["a"]),
    ],
)
def test_patterns_of_go_match_whole_names(text: str, yes: list[str], no: list[str]) -> None:
    assert [name for name in yes + no if Pattern(text).matches(name)] == yes


BAD_PATTERNS = [
    "(",
    ")",
    "(a",
    "a)",
    "[a",
    "[",
    "[]",
    "*",
    "+a",
    "?",
    "{2}",
    "a**",
    "a{2}{3}",
    "a{3,2}",
    "a{9999}",
    "\\",
    "(?=a)",
    r"\1",
]
BAD_PATTERNS += [
    "[b-a]",
    "a|*",
    "\\é",
    "(a{1000}){1000}",
    "((a{99}){99}){99}",
    "((((){1000}){1000}){1000}){1000}",
    r"(\pL{50}){20}",
]


@pytest.mark.parametrize("text", [*BAD_PATTERNS, "a" * (PATTERN_CHARS_MAX + 1)])
def test_patterns_that_re2_refuses_or_that_are_too_large_are_refused(
    text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    began = time.process_time()
    with pytest.raises(BadPattern):
        Pattern(text)
    assert time.process_time() - began < 1
    assert capfd.readouterr().err == "", "RE2 writes into no log"


@pytest.mark.parametrize(
    "text",
    [
        "([a-z]+.?)+x",
        "(a*)*b",
        "((((a*)*)*)*)*b",
        "(a|a)*b",
        "(a|aa)+b",
        ".*.*.*.*.*.*.*.*b",
        "(a?){500}b",
        "(.{0,60}){5}b",
    ],
)
def test_no_name_takes_long(text: str) -> None:
    pattern = Pattern(text)
    began = time.process_time()
    assert not pattern.matches("a" * 64)
    assert time.process_time() - began < 1
