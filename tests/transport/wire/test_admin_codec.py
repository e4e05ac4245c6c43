"""Tests of administrative requests on the wire: what the decoder refuses, and that each request
arrives as it was sent.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.admin_examples import EXAMPLES

from zsq.transport.errors import E_BAD_ARGUMENT, E_BAD_COMMAND, UsageError
from zsq.transport.wire import admin_requests as r
from zsq.transport.wire.admin_codec import manage_of, request_of, row_of
from zsq.transport.wire.codec import decode, encode
from zsq.transport.wire.protocol import Manage

NUMBERED: Any = {5: True}


@pytest.mark.parametrize("row", r.REQUESTS, ids=lambda row: row.kind.__name__)
def test_each_request_arrives_as_it_was_sent(row: r.RequestRow) -> None:
    sent = EXAMPLES[row.kind]
    message = decode(encode(manage_of(sent)))
    assert isinstance(message, Manage)
    assert request_of(message) == sent
    assert row_of(message) == row


def test_an_option_with_its_default_value_is_not_sent() -> None:
    assert manage_of(r.DeleteRequest("t", force=False)).options == {}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Manage(1, "list", "t", "", {}), "list is about the broker"),
        (Manage(1, "close", "t", "c", {}), "close is for a topic, and not for a channel"),
        (Manage(1, "seek", "t", "", {"offset": 0}), "seek is for a channel: name one"),
        (Manage(1, "delete", "t", "", {"forec": True}), "no option 'forec'; its options are force"),
        (Manage(1, "pause", "t", "", NUMBERED), "no option 5; it has none"),
        (Manage(1, "create", "t", "c", NUMBERED), "no option 5"),
        (Manage(1, "delete", "t", "", {"force": 1}), "must be true or false, not 1"),
        (Manage(1, "overview", "", "", {"since": "1"}), "must be a whole number, not '1'"),
        (Manage(1, "overview", "", "", {"since": True}), "must be a whole number, not True"),
        (Manage(1, "alarm", "", "", {"do": "ack", "seconds": "1"}), "must be a number, not '1'"),
        (Manage(1, "close", "t", "", {"to": "all"}), "must be publishers or consumers, not 'all'"),
        (
            Manage(1, "schedule", "t", "", {"do": "set", "name": "n", "headers": {1: 2}}),
            "must be a map of texts",
        ),
        (Manage(1, "create", "t", "", {"brokers": (1, "2")}), "a list, each item a whole number"),
        (Manage(1, "create", "t", "", {"brokers": 5}), "a list, each item a whole number"),
        (Manage(1, "redrive", "t", "", {"to": "u", "origin": ("t",)}), "a list of 3 items"),
        (Manage(1, "schedule", "t", "", {"do": "run"}), "schedule run needs option `name`"),
        (Manage(1, "schedule", "t", "", {"do": "set", "name": "n", "tag": 5}), "must be a text"),
        (
            Manage(1, "schedule", "t", "", {"do": "set", "name": "n", "key": b"x"}),
            "no option 'key'",
        ),
        (Manage(1, "schedule", "t", "", {"do": ["add"]}), "`do` of schedule must be one of add,"),
        (Manage(1, "delayed", "t", "", {}), "must be one of cancel, count, list, not None"),
        (Manage(1, "seek", "t", "c", {}), "seek needs either offset or time_ns"),
        (Manage(1, "seek", "t", "c", {"offset": 1, "time_ns": 1}), "seek needs either"),
        (Manage(1, "skip", "t", "c", {"do": "messages", "offsets": ()}), "give 1 to 1,000 offsets"),
        (Manage(1, "skip", "t", "c", {"do": "preview", "offsets": (-1,)}), "from 0 on, not"),
    ],
)
def test_a_request_that_is_not_valid_is_refused_with_the_reason(message: Manage, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refusal:
        request_of(message)
    assert refusal.value.code == E_BAD_ARGUMENT


@pytest.mark.parametrize(
    ("action", "options"),
    [
        ("skip", {"do": "messages", "offsets": (1,) * 65_000}),
        ("skip", {"do": "messages", "offsets": (-1,) * 65_000}),
        ("delayed", {"do": (1,) * 65_000}),
        ("disconnect", {"consumer": (1,) * 65_000}),
    ],
    ids=["valid offsets", "offsets that are not valid", "do", "consumer"],
)
def test_a_long_list_is_refused_at_less_cost_than_it_was_decoded(
    action: str, options: dict[str, Any]
) -> None:
    """A gateway looks at the form of a request before the permission of its client."""
    frame = encode(Manage(1, action, "t", "c" if action != "delayed" else "", options))
    decoding, checking = [], []
    for _ in range(5):
        begin = time.perf_counter()
        message = decode(frame)
        decoded = time.perf_counter()
        assert isinstance(message, Manage)
        with pytest.raises(UsageError):
            request_of(message)
        decoding.append(decoded - begin)
        checking.append(time.perf_counter() - decoded)
    assert min(checking) < 3 * min(decoding)


def test_an_action_has_one_spelling_only() -> None:
    message = Manage(1, "delayed count", "t", "", {})
    assert row_of(message) is None
    with pytest.raises(UsageError, match="unknown action 'delayed count'"):
        request_of(message)


def test_an_unknown_action_is_refused_as_a_bad_command() -> None:
    with pytest.raises(UsageError, match="unknown action 'walk'; use the same version") as refusal:
        request_of(Manage(1, "walk", "t", "", {}))
    assert refusal.value.code == E_BAD_COMMAND
    assert row_of(Manage(1, "walk", "t", "", {})) is None


_ACTIONS = sorted({row.name.partition(" ")[0] for row in r.REQUESTS})
_VARIANTS = [row.name.partition(" ")[2] for row in r.REQUESTS if " " in row.name]
_OPTIONS = ["offset", "offsets", "to", "origin", "brokers", "settings", "topic", "request", "body"]
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(
    st.sampled_from(_ACTIONS),
    st.sampled_from(["", "t"]),
    st.sampled_from(["", "c"]),
    st.dictionaries(st.sampled_from(_OPTIONS) | st.text(), _VALUES, max_size=4),
    st.sampled_from(_VARIANTS) | _VALUES,
)
def test_any_options_give_a_request_or_a_usage_error(
    action: str, topic: str, channel: str, options: dict[Any, Any], do: object
) -> None:
    message = Manage(1, action, topic, channel, {**options, "do": do})
    try:
        request = request_of(message)
    except UsageError:
        return
    assert request_of(manage_of(request)) == request or "nan" in repr(request)
