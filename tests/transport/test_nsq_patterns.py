"""Patterns of names: the same answers as `re.fullmatch` gives, no pattern that takes long, and what is refused."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zsq.transport.nsq.patterns import DEPTH_MAX, PATTERN_CHARS_MAX, STEPS_MAX, BadPattern, Pattern, compiled

NAMES = st.text("ab.-_0#", max_size=9)
CHARS = st.sampled_from(["a", "b", "0", r"\.", ".", "-", "[ab]", "[^a]", "[a-b0-9]", r"\d", r"\w", r"[\w.-]", "#", "[]a]", "[a-]"])


def grown(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = parts.map(lambda text: f"({text})") | parts.map(lambda text: f"(?:{text})")
    repeated = st.tuples(group | CHARS, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,3}", "*?", "+?"])).map("".join)
    return (
        repeated
        | group
        | st.lists(parts, max_size=3).map("".join)
        | st.lists(parts, min_size=1, max_size=3).map("|".join).map(lambda text: f"({text})")
    )


PATTERNS = st.recursive(CHARS | st.sampled_from(["^", "$", ""]), grown, max_leaves=8)


@given(text=PATTERNS, names=st.lists(NAMES, max_size=5))
@settings(max_examples=300)
def test_as_fullmatch_says(text: str, names: list[str]) -> None:
    pattern, reference = Pattern(text), re.compile(text, re.ASCII)
    for name in [*names, "", "a"]:
        assert pattern.matches(name) == bool(reference.fullmatch(name)), name


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        (".*", ["", "orders", "a#ephemeral"], []),
        ("orders", ["orders"], ["old-orders", "orders2", "", "Orders"]),
        ("^orders$", ["orders"], ["old-orders"]),
        (r"\Aorders\z", ["orders"], ["orders2"]),
        ("orders_.*", ["orders_", "orders_eu"], ["orders", "x_orders_eu"]),
        (r"eu\.orders", ["eu.orders"], ["euxorders"]),
        ("a|b", ["a", "b"], ["ab", ""]),
        ("a|", ["a", ""], ["b"]),
        ("^a|b$", ["a", "b"], ["ax", "xb"]),
        ("[a-c]{2,3}", ["ab", "abc"], ["a", "abca"]),
        ("(a|bc)+[0-9]?", ["a", "abca7"], ["", "7", "ab"]),
        ("a$b", [], ["ab", "a$b"]),
        ("", [""], ["a"]),
    ],
)
def test_whole_names(text: str, yes: list[str], no: list[str]) -> None:
    assert [name for name in yes + no if compiled(text).matches(name)] == yes


BAD = ["(", ")", "(a", "a)", "[a", "[", "[]", "*", "+a", "?", "{2}", "a**", "a{2}{3}", "a{", "a{x}", "a{,3}", "a{3,2}", "a{9999}", "\\"]
BAD += ["(?i)a", "(?=a)", "(?P<x>a)", "[[:alpha:]]", r"\b", r"\1", r"\pL", r"\x41", "[b-a]", r"[\w-z]", "a|*", "a{1,2,3}", "\\é"]


@pytest.mark.parametrize("text", BAD)
def test_refused(text: str) -> None:
    with pytest.raises(BadPattern):
        Pattern(text)


def test_sizes() -> None:
    assert Pattern("a" * PATTERN_CHARS_MAX).matches("a" * PATTERN_CHARS_MAX)
    with pytest.raises(BadPattern, match="characters"):
        Pattern("a" * (PATTERN_CHARS_MAX + 1))
    assert Pattern("(" * DEPTH_MAX + "a" + ")" * DEPTH_MAX).matches("a")
    with pytest.raises(BadPattern, match="groups"):
        Pattern("(" * (DEPTH_MAX + 1) + "a" + ")" * (DEPTH_MAX + 1))
    assert Pattern("(a{500}){2}").matches("a" * STEPS_MAX)
    with pytest.raises(BadPattern, match=f"{STEPS_MAX} steps"):
        Pattern("(a{500}){2}aa")
    with pytest.raises(BadPattern, match="cannot be counted"):
        Pattern(f"a{{{STEPS_MAX + 1},}}")
    for text in ("(a{1000}){1000}", "((a{99}){99}){99}", "((((){1000}){1000}){1000}){1000}", "(((){0,1000}){1000}){1000}"):
        with pytest.raises(BadPattern, match=f"{STEPS_MAX} steps"):
            Pattern(text)


@pytest.mark.parametrize(
    "text", ["([a-z]+.?)+x", "(a*)*b", "((((a*)*)*)*)*b", "(a|a)*b", "(a|aa)+b", ".*.*.*.*.*.*.*.*b", "(a?){500}b", "(.{0,60}){5}b"]
)
def test_no_name_takes_long(text: str) -> None:
    pattern = Pattern(text)
    began = time.process_time()
    assert not pattern.matches("a" * 64)
    assert time.process_time() - began < 1
