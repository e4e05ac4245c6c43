"""Tests of when a process returns memory to the system: after work, when it is quiet. It does not
do so under load, nor with each pulse of an idle process.
"""

from __future__ import annotations

from zsq.actors.runtime.process import BUSY_NS, Trimming

S = 1_000_000_000


def trims(events: dict[int, str], until_s: int, step_s: int = 1) -> list[int]:
    """Return the seconds at which memory is to be returned, if this is checked every `step_s`
    seconds.
    """
    trimming = Trimming(0)
    return [
        second
        for second in range(step_s, until_s, step_s)
        if trimming.due(
            second * S,
            worked=events.get(second) == "blocks",
            stirred=events.get(second) in ("blocks", "word"),
        )
    ]


def test_an_idle_process_returns_memory_only_after_its_start() -> None:
    assert trims({}, 1_000, 10) == [10]
    assert trims({}, 1_000) == [1, 2, 3, 4, 5, 6], "until nothing lets go of anything any more"


def test_memory_is_trimmed_again_after_new_work() -> None:
    """It is not enough to return memory once in the life of a process. Even an actor that never
    receives blocks, such as the scan loop, needs memory from time to time.
    """
    assert trims({100: "word"}, 1_000, 10) == [10, 110]
    assert trims({100: "blocks", 500: "blocks"}, 1_000, 10) == [10, 110, 510]


def test_memory_is_not_trimmed_under_load() -> None:
    assert trims(dict.fromkeys(range(1, 301), "blocks"), 301) == []


def test_now_and_then_where_something_small_comes_all_the_time() -> None:
    found = trims(dict.fromkeys(range(1, 301), "word"), 301)
    assert found == [second for second in range(1, 301) if second * S % BUSY_NS == 0]
