"""Patterns of names, as an auth server writes them: the common part of Go's and Python's regular expressions, matched whole. Pure.

Why not `re`: it goes back and tries again, and a pattern that somebody wrote without malice, `([a-z]+.?)+x`, then takes hours for
one name that a stranger chose. Go's regexp, which nsqd uses, has no such patterns: it walks all ways at once. So does this: the
pattern becomes a list of steps (Thompson's construction), and a name is walked character by character with the set of steps that
are possible, so the time is at most characters times steps.

What there is: characters, `.`, `[a-z]`, `[^a]`, `\\d \\w \\s` and their opposites, `|`, groups, `* + ? {m} {m,} {m,n}` (a `?` behind them
changes nothing for a whole match), `^ $ \\A \\z`. Names are ASCII, so are classes. Anything else is refused: to take it for something
that it is not could grant what was never meant.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

PATTERN_CHARS_MAX: Final = 256
STEPS_MAX: Final = 1000  # after counted repeats are written out
DEPTH_MAX: Final = 20

_ASCII: Final = frozenset(map(chr, range(128)))
_DIGITS: Final = frozenset("0123456789")
_WORD: Final = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPACE: Final = frozenset("\t\n\f\r ")
_CLASSES: Final = {
    "d": _DIGITS,
    "D": _ASCII - _DIGITS,
    "w": _WORD,
    "W": _ASCII - _WORD,
    "s": _SPACE,
    "S": _ASCII - _SPACE,
}  # fmt: skip


class BadPattern(ValueError):
    """The pattern is not one of ours; the text says what in it is not."""


# What a pattern is made of ...


class _Of(NamedTuple):
    chars: frozenset[str]


class _Edge(NamedTuple):
    end: bool  # of the name; else its beginning


class _Row(NamedTuple):
    parts: tuple[_Node, ...]


class _Either(NamedTuple):
    ways: tuple[_Node, ...]


class _Repeat(NamedTuple):
    what: _Node
    least: int
    most: int | None


_Node = _Of | _Edge | _Row | _Either | _Repeat


# ... and the steps it becomes: a character of a set, an edge, or a fork; behind the last one the name must be over.


class _Fork(NamedTuple):
    ways: tuple[int, ...]


_Step = _Of | _Edge | _Fork


class Pattern:
    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_CHARS_MAX:
            raise BadPattern(f"it has {len(text)} characters, more than {PATTERN_CHARS_MAX}")
        self.text = text
        self._steps: list[_Step] = []
        self._work = 0
        self._emit(_Reader(text).read())

    def matches(self, name: str) -> bool:
        """Whether the whole name is of this pattern."""
        here = self._reached([0], 0, len(name))
        for at, char in enumerate(name):
            following = [step + 1 for step in here if step < len(self._steps) and char in self._steps[step].chars]  # type: ignore[union-attr]
            if not following:
                return False
            here = self._reached(following, at + 1, len(name))
        return len(self._steps) in here

    def _reached(self, steps: list[int], at: int, end: int) -> set[int]:
        """The steps that take a character (or the end of all) which can be reached from these without one."""
        reached: set[int] = set()
        seen: set[int] = set()
        while steps:
            number = steps.pop()
            if number in seen:
                continue
            seen.add(number)
            step = self._steps[number] if number < len(self._steps) else None
            if isinstance(step, _Fork):
                steps += step.ways
            elif isinstance(step, _Edge):
                if at == (end if step.end else 0):
                    steps.append(number + 1)
            else:
                reached.add(number)
        return reached

    def _emit(self, node: _Node) -> None:
        self._work += 1  # also counts what becomes no step, as the empty group in (()){1000}
        if len(self._steps) > STEPS_MAX or self._work > 4 * STEPS_MAX:
            raise BadPattern(f"it takes more than {STEPS_MAX} steps")
        if isinstance(node, _Of | _Edge):
            self._steps.append(node)
        elif isinstance(node, _Row):
            for part in node.parts:
                self._emit(part)
        elif isinstance(node, _Either):
            self._emit_either(node)
        else:
            self._emit_repeat(node)

    def _emit_either(self, node: _Either) -> None:
        fork = self._hole()
        starts: list[int] = []
        ends: list[int] = []
        for way in node.ways:
            starts.append(len(self._steps))
            self._emit(way)
            ends.append(self._hole())
        self._steps[fork] = _Fork(tuple(starts))
        for end in ends:
            self._steps[end] = _Fork((len(self._steps),))

    def _emit_repeat(self, node: _Repeat) -> None:
        for _ in range(node.least):
            self._emit(node.what)
        if node.most is None:
            fork = self._hole()
            self._emit(node.what)
            self._steps.append(_Fork((fork,)))
            self._steps[fork] = _Fork((fork + 1, len(self._steps)))
            return
        forks = []
        for _ in range(node.most - node.least):
            forks.append(self._hole())
            self._emit(node.what)
        for fork in forks:
            self._steps[fork] = _Fork((fork + 1, len(self._steps)))

    def _hole(self) -> int:
        self._steps.append(_Fork(()))
        return len(self._steps) - 1


class _Reader:
    """From text to nodes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def read(self) -> _Node:
        node = self._either()
        if self._at < len(self._text):
            raise BadPattern("a ) without its (")
        return node

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._next()
        if not char:
            raise BadPattern("it ends too soon")
        self._at += 1
        return char

    def _either(self) -> _Node:
        ways = [self._row()]
        while self._next() == "|":
            self._at += 1
            ways.append(self._row())
        return ways[0] if len(ways) == 1 else _Either(tuple(ways))

    def _row(self) -> _Node:
        parts: list[_Node] = []
        while self._next() not in {"", "|", ")"}:
            parts.append(self._repeated(self._atom()))
        return _Row(tuple(parts))

    def _repeated(self, node: _Node) -> _Node:
        sign = self._next()
        if sign not in {"*", "+", "?", "{"}:
            return node
        self._at += 1
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(sign) or self._counts()
        if self._next() == "?":
            self._at += 1
        if self._next() in {"*", "+", "?", "{"}:
            raise BadPattern("a repeat of a repeat")
        return _Repeat(node, least, most)

    def _counts(self) -> tuple[int, int | None]:
        inside, closed, _ = self._text[self._at :].partition("}")
        first, comma, second = inside.partition(",")
        if not closed or not first.isdecimal() or (second and not second.isdecimal()) or not inside.isascii() or len(inside) > 9:
            raise BadPattern("a { that counts nothing")
        self._at += len(inside) + 1
        least = int(first)
        most = (int(second) if second else None) if comma else least
        if least > STEPS_MAX or (most is not None and not least <= most <= STEPS_MAX):
            raise BadPattern(f"{{{inside}}} cannot be counted")
        return least, most

    def _atom(self) -> _Node:
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return _Of(self._set())
        if char == ".":
            return _Of(_ASCII - {"\n"})
        if char in "^$":
            return _Edge(char == "$")
        if char in "*+?{":
            raise BadPattern(f"a {char} behind nothing")
        if char == "\\":
            if self._next() in {"A", "z"}:
                return _Edge(self._take() == "z")
            return _Of(self._escaped())
        return _Of(frozenset(char))

    def _group(self) -> _Node:
        if self._next() == "?":
            if self._text[self._at : self._at + 2] != "?:":
                raise BadPattern("a group with (? that is not (?:")
            self._at += 2
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise BadPattern(f"groups in more than {DEPTH_MAX} groups")
        node = self._either()
        if self._next() != ")":
            raise BadPattern("a ( without its )")
        self._at += 1
        self._depth -= 1
        return node

    def _escaped(self) -> frozenset[str]:
        char = self._take()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in _WORD - {"_"} or char not in _ASCII:
            raise BadPattern(f"\\{char}")
        return frozenset(char)

    def _set(self) -> frozenset[str]:
        opposite = self._next() == "^"
        self._at += opposite
        found: set[str] = set()
        first = True
        while (char := self._take()) != "]" or first:
            first = False
            if char == "[" and self._next() in {":", ".", "="}:
                raise BadPattern(f"[{self._next()} in a set")
            some = self._escaped() if char == "\\" else frozenset(char)
            if self._next() == "-" and self._text[self._at + 1 : self._at + 2] not in {"]", ""}:
                self._at += 1
                last = self._take()
                to = self._escaped() if last == "\\" else frozenset(last)
                if len(some) != 1 or len(to) != 1 or min(some) > min(to) or min(to) not in _ASCII:
                    raise BadPattern(f"a range that is none, up to {last!r}")
                some = frozenset(map(chr, range(ord(min(some)), ord(min(to)) + 1)))
            found |= some
        return _ASCII - found if opposite else frozenset(found)


@lru_cache(maxsize=1024)
def compiled(text: str) -> Pattern:
    """One for each text: auth servers give the same few patterns to everybody."""
    return Pattern(text)
