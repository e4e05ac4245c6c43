"""Topic choice: which topics a consumer reads: one, several by their names, or those of a pattern.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ...errors import E_BAD_ARGUMENT, E_BAD_NAME, UsageError
from ...names import (
    EPHEMERAL_SUFFIX,
    NAME_CHARS_MAX,
    PATTERN,
    NamePattern,
    check_name,
    is_ephemeral,
)

TOPICS_MAX: Final = 1_000  # the most topics of one consumer, because each one costs a connection
DEAD_SUFFIX: Final = ".dead"
CAPTION_CHARS_MAX: Final = 100


class TopicChoice(NamedTuple):
    """The topics of a consumer: either `names`, or those that match `pattern`.

    The dead letters of a consumer must not come back to it, so a pattern matches no dead-letter
    topic unless it ends as their names do. `never` is the name of one that has another name.
    """

    names: tuple[str, ...]
    pattern: NamePattern | None = None
    never: str = ""

    @property
    def text(self) -> str:
        """The pattern, or all names with commas between them."""
        return ",".join(self.names) if self.pattern is None else self.pattern.text

    @property
    def caption(self) -> str:
        """The text, shortened for logs and errors."""
        if len(self.text) <= CAPTION_CHARS_MAX:
            return self.text
        return f"{self.names[0]} and {len(self.names) - 1} more topics"

    def matching(self, names: Iterable[str]) -> list[str]:
        """Return the names of topics that the pattern matches, sorted."""
        pattern = self.pattern
        if pattern is None:
            return []
        dead, ephemeral = (pattern.text.endswith(end) for end in (DEAD_SUFFIX, EPHEMERAL_SUFFIX))
        return sorted(
            name
            for name in names
            if pattern.matches(name)
            and name != self.never
            and (dead or not name.endswith(DEAD_SUFFIX))
            and (ephemeral or not is_ephemeral(name))
        )


def topic_choice(topics: str | Sequence[str], never: str = "") -> TopicChoice:
    """Return the choice that these names, or this name or pattern, make.

    Raises `UsageError` (E_BAD_NAME, or E_BAD_ARGUMENT for a list that cannot be used).
    """
    if isinstance(topics, str) and "*" in topics:
        if len(topics) > NAME_CHARS_MAX or not PATTERN.fullmatch(topics):
            text = (
                f"topic pattern {topics[:80]!r} is not legal: use 1 to {NAME_CHARS_MAX} of the "
                "characters A-Z a-z 0-9 . _ - and *, which stands for any characters"
            )
            raise UsageError(E_BAD_NAME, text)
        return TopicChoice((), NamePattern(topics), never)
    if not isinstance(topics, list | tuple):
        return TopicChoice((check_name(topics),))  # type: ignore[arg-type]
    for name in topics:
        if isinstance(name, str) and "*" in name:
            text = f"topic pattern {name[:80]!r} is in a list: give the pattern alone, or names"
            raise UsageError(E_BAD_ARGUMENT, text)
        check_name(name)
    if not 1 <= len(topics) <= TOPICS_MAX:
        text = f"a consumer receives from 1 to {TOPICS_MAX:,} topics, not from {len(topics):,}"
        raise UsageError(E_BAD_ARGUMENT, text)
    if len(set(topics)) != len(topics):
        twice = next(name for index, name in enumerate(topics) if name in topics[:index])
        raise UsageError(E_BAD_ARGUMENT, f"topic {twice!r} is twice in the list")
    return TopicChoice(tuple(topics))
