"""Tests of the routing keys of topic exchanges: what they match, and that no key takes long."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.apps.integrations.kombu.patterns import TopicPattern

WORDS = st.lists(st.sampled_from(["a", "b", ""]), max_size=5)
PATTERNS = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=5)


def matches(pattern: list[str], key: list[str]) -> bool:
    """Return what the specification of AMQP says, by trying each number of words for `#`."""
    if not pattern:
        return not key
    first, *rest = pattern
    if first == "#":
        return any(matches(rest, key[count:]) for count in range(len(key) + 1))
    if not key:
        return False
    return first in (key[0], "*" if key[0] else None) and matches(rest, key[1:])


@settings(max_examples=2000)
@given(PATTERNS, WORDS)
def test_a_pattern_matches_what_the_specification_says(pattern: list[str], key: list[str]) -> None:
    # A text without a dot is one word, also the empty text.
    assert TopicPattern(".".join(pattern)).matches(".".join(key)) is matches(
        pattern or [""], key or [""]
    )


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "aXb", False),
        ("a.*", "a.b", True),
        ("a.*", "a.", False),
        ("a.*", "a.b.c", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("#", "", True),
        ("*", "", False),
        ("#.z", "x.y.z", True),
        ("#.z", "x.yz", False),
    ],
)
def test_the_keys_of_topic_exchanges(pattern: str, key: str, expected: bool) -> None:
    assert TopicPattern(pattern).matches(key) is expected


@pytest.mark.timeout(20)
def test_a_pattern_with_many_wildcards_takes_no_longer_than_others() -> None:
    """A regular expression needs seconds for six `#` and 55 words, and years for more."""
    assert not TopicPattern("#.#.#.#.#.#.x").matches(".".join(["w"] * 55))
    assert not TopicPattern(".".join(["#", "*"] * 60 + ["x"])).matches(".".join(["w"] * 5_000))
    assert TopicPattern(".".join(["#", "w"] * 60)).matches(".".join(["w"] * 5_000))
