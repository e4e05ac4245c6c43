"""Patterns: the routing keys of topic exchanges. Pure.

In a pattern, the word `*` stands for one word that is not empty, and `#` for any number of words.
An implementation with a regular expression, as in Kombu's own exchange, takes exponential time for
patterns with several `#`. This one reads each word of a key once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

ANY_WORD: Final = "*"
ANY_WORDS: Final = "#"


class TopicPattern:
    """The states of a pattern's words, as the bits of numbers.

    Bit i of `states` is set if the words of the pattern before word i match those of the key that
    were read. `_hashes` has the bits of the words `#`, and so on.
    """

    __slots__ = ("_end", "_hashes", "_literals", "_stars")

    def __init__(self, pattern: str) -> None:
        self._hashes = self._stars = 0
        self._literals: dict[str, int] = {}
        bit, after_hash = 1, False
        for word in pattern.split("."):
            if word == ANY_WORDS:
                if after_hash:
                    continue  # `#.#` is `#`
                self._hashes |= bit
            elif word == ANY_WORD:
                self._stars |= bit
            else:
                self._literals[word] = self._literals.get(word, 0) | bit
            after_hash = word == ANY_WORDS
            bit <<= 1
        self._end = bit

    def matches(self, key: str) -> bool:
        """Return True if the pattern matches a routing key."""
        states = self._skip_hashes(1)
        for word in key.split("."):
            passing = self._literals.get(word, 0) | (self._stars if word else 0)
            states = self._skip_hashes((states & passing) << 1 | states & self._hashes)
        return bool(states & self._end)

    def _skip_hashes(self, states: int) -> int:
        """Add the states that are reached if `#` stands for no word."""
        return states | (states & self._hashes) << 1


@lru_cache(1000)
def pattern_of(routing_key: str) -> TopicPattern:
    """Return the pattern that a queue is bound with. The newest ones are kept."""
    return TopicPattern(routing_key)
