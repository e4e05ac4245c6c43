"""Tests of the access file: what it permits, what it refuses, and that no error message contains a
secret.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zsq.actors.security.access import Access, AccessError, User, token_hash
from zsq.transport.names import NamePattern

KEY = "5n]1POKkdiw{v{vUK1P(k#p0gh0&%[zMekJt7Q(B"
OTHER = "}rR%bq}cY.E<gM[)9{uD-Lis0e8YpOFVP}[0}PtR"
FILE = f"""
[users.etl]
curve = ["{KEY}"]
tokens = ["{token_hash("open sesame")}"]
publish = ["clicks", "orders.*"]
subscribe = ["clicks", "orders.*/archive", "logs/*"]
admin = ["orders.*"]

[users.root]
admin = ["*"]

[anonymous]
view = ["pub*"]
"""


@pytest.fixture(scope="module")
def access() -> Access:
    return Access.parse(FILE)


def etl(access: Access) -> User:
    found = access.by_curve(KEY)
    assert found is not None
    return found


def test_a_user_is_found_by_its_key_or_its_token(access: Access) -> None:
    assert access.by_token("open sesame") is etl(access)
    assert etl(access).name == "etl"
    for token in ("", "open", token_hash("open sesame"), "\ud800"):
        assert access.by_token(token) is None
    assert access.by_curve(OTHER) is None
    assert access.anonymous is not None
    assert access.anonymous.name == "anonymous"
    assert Access.parse("").anonymous is None


@pytest.mark.parametrize(
    ("topic", "channel", "permitted"),
    [
        ("clicks", "", "publish subscribe view"),
        ("clicks", "any", "publish subscribe view"),
        ("orders.eu", "archive", "publish subscribe admin view"),
        ("orders.eu", "archive2", "publish admin view"),
        # Permission for one channel does not permit reading the topic by offset.
        ("orders.eu", "", "publish admin view"),
        ("logs", "any", "subscribe view"),
        ("logs", "", "view"),
        ("old-clicks", "", ""),
        ("clicks2", "", ""),
        ("orders", "archive", ""),
        ("", "", ""),
    ],
)
def test_each_topic_and_channel_has_exactly_its_permissions(
    access: Access, topic: str, channel: str, permitted: str
) -> None:
    user = etl(access)
    found = {
        "publish": user.may_publish(topic),
        "subscribe": user.may_subscribe(topic, channel),
        "admin": user.may_admin(topic),
        "view": user.may_view(topic),
    }
    assert {name for name, may in found.items() if may} == set(permitted.split())


def test_actions_without_a_topic_need_permission_for_everything(access: Access) -> None:
    root = access.users["root"]
    assert root.is_broker_admin
    assert root.sees_all
    assert not etl(access).is_broker_admin
    assert not etl(access).sees_all
    assert access.anonymous is not None
    assert not access.anonymous.sees_all
    assert etl(access).may_something
    assert not User("nobody").may_something


@given(st.text("ab*.", min_size=1, max_size=8), st.text("ab.", max_size=12))
@example("ab*ba", "aba")  # the same characters must not match both the beginning and the end
@example("a*b*a", "aba")
@example("a*b*ba", "aba")
def test_a_pattern_is_of_the_whole_name(pattern: str, name: str) -> None:
    expected = (
        re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), name) is not None
    )
    assert NamePattern(pattern).matches(name) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "at the top: x is unknown; use only users, anonymous"),
        ("[users.a]\npublic = []", "users.a: public is unknown"),
        ("[anonymous]\ntokens = []", "anonymous: tokens is unknown"),
        ("[users.anonymous]", "into the table [anonymous]"),
        ('[users."a b"]', "name must be 1 to 64"),
        ("users = 3", "users must be a table"),
        ("[users]\na = 3", "users.a must be a table"),
        ('[users.a]\npublish = "all"', "users.a.publish must be a list"),
        ("[users.a]\npublish = [1]", "users.a.publish must be a list"),
        ('[users.a]\npublish = ["ok", "orders.+"]', "entry 2, 'orders.+', is not a topic pattern"),
        ('[users.a]\npublish = [""]', "entry 1"),
        ('[users.a]\npublish = ["a/b"]', "entry 1"),
        ('[users.a]\nsubscribe = ["a/b/c"]', "is not a channel pattern"),
        ('[users.a]\nsubscribe = ["a/"]', "is not a channel pattern"),
        ('[users.a]\ncurve = ["SECRET"]', "users.a.curve: entry 1 is not a public key"),
        (f'[users.a]\ncurve = ["{"#" * 40}"]', "users.a.curve: entry 1 is not a public key"),
        ('[users.a]\ntokens = ["SECRET"]', "users.a.tokens: entry 1 is not sha256:"),
        (
            f'[users.a]\ncurve = ["{KEY}"]\n[users.b]\ncurve = ["{KEY}"]',
            "entry 1 is also in users.a",
        ),
        (
            f'[users.a]\ntokens = ["{token_hash("x")}"]\n[users.b]\ntokens = ["{token_hash("x")}"]',
            "entry 1 is also in users.a",
        ),
        ("[users.a", "not valid TOML"),
        ("x = " + "[" * 5_000, "not valid TOML"),
        ("[users.a]\npublish = [" + '"x",' * 1_001 + "]", "has 1001 entries; the limit is 1000"),
        (f'[users.a]\npublish = ["{"x" * 130}"]', "entry 1"),
        (
            "\n".join(f"[users.u{number}]" for number in range(10_001)),
            "users has 10001 entries; the limit is 10000",
        ),
    ],
)
def test_an_access_file_with_an_unknown_entry_is_refused_completely(text: str, said: str) -> None:
    with pytest.raises(AccessError, match=re.escape(said)) as caught:
        Access.parse(text, "access.toml")
    assert str(caught.value).startswith("access.toml")
    assert "SECRET" not in str(caught.value)
    assert KEY not in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="cannot be read: No such file"):
        Access.load(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(AccessError, match="not valid UTF-8 at byte 0"):
        Access.load(tmp_path / "binary")
    (tmp_path / "large").write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    with pytest.raises(AccessError, match="larger than"):
        Access.load(tmp_path / "large")
    (tmp_path / "good").write_text(FILE)
    assert set(Access.load(tmp_path / "good").users) == {"etl", "root"}


def test_no_text_of_the_access_rules_contains_a_hash_or_a_key(access: Access) -> None:
    assert token_hash("open sesame") not in repr(access)


def test_create_bounds_first_use_and_nothing_else() -> None:
    users = Access.parse("""
[users.free]
publish = ["*"]
[users.some]
publish = ["*"]
admin = ["own.*"]
create = ["mine.*", "t/tmp-*"]
[users.none]
create = []
""").users
    assert users["free"].may_create("t")
    assert users["free"].may_create("t", "c")
    some = users["some"]
    may = [("mine.a", ""), ("mine.a", "c"), ("t", "tmp-1"), ("own.a", ""), ("own.a", "c")]
    assert [
        place for place in [*may, ("t", ""), ("t", "c"), ("u", "tmp-1")] if some.may_create(*place)
    ] == may
    assert not users["none"].may_create("t")
    assert not some.may_subscribe("t", "tmp-1")
    only = Access.parse('[users.x]\ncreate = ["*"]').users["x"]
    assert not only.may_something, "it permits nothing else"
    with pytest.raises(AccessError, match=r"users\.x\.create: entry 1"):
        Access.parse('[users.x]\ncreate = ["a/b/c"]')
