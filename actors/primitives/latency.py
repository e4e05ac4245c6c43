"""Latencies: how long messages took, as percentiles over the last ten minutes. No I/O.

A window is a row of sketches, each for a slot of time. A sketch is a DDSketch: a histogram with
logarithmic bins. Each percentile is accurate to 1%, and sketches can be added. A slot that is too
old is removed as a whole, so the window covers 10 to 10.5 minutes. A window without messages takes
no memory for sketches.

One `add` takes any number of messages. Latencies are limited to the range from a microsecond to 400
days, so a sketch has at most 1,560 bins. It stores 4 bytes for each bin from the lowest to the
highest bin in use. For latencies from a millisecond to an hour, these are 760 bins and 3 KB.

Other processes receive the bins and add them up, because percentiles of percentiles mean nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import DenseStore

from ...transport.reports import Latency
from ...transport.units import NS_PER_S

WINDOW_S: Final = 600  # NSQ's e2e-processing-latency-window-time
SLOT_S: Final = 30
QUANTILES: Final = (0.5, 0.9, 0.95, 0.99, 1.0)
RECENT: Final = (0.5, 0.95, 0.99)
ACCURACY: Final = 0.01
LATENCY_NS_MIN: Final = 1_000
LATENCY_NS_MAX: Final = 400 * 86_400 * NS_PER_S
COUNT_MAX: Final = 0xFFFF_FFFF  # limit of a bin in a slot of time; further messages are not counted
_MAPPING: Final = LogarithmicMapping(ACCURACY)

# Keys of the sketch's mapping, and the number of messages of each key.
Bins = tuple[Sequence[int], Sequence[int]]


def bin_of(latency_ns: int) -> int:
    """Return the key of the bin for this latency."""
    key: int = _MAPPING.key(min(max(latency_ns, LATENCY_NS_MIN), LATENCY_NS_MAX))
    return key


class _Counts:
    """The number of messages in each bin, as an array.

    ddsketch's own store has a float object for each bin, which takes eight times the memory.
    """

    __slots__ = ("bins", "first")

    def __init__(self, key: int) -> None:
        self.first = key
        self.bins = array("I", (0,))

    def add(self, key: int, messages: int) -> None:
        at = key - self.first
        if at < 0:
            self.bins = array("I", bytes(4 * -at)) + self.bins
            self.first, at = key, 0
        elif at >= len(self.bins):
            self.bins = self.bins + array("I", bytes(4 * (at + 1 - len(self.bins))))
        self.bins[at] = min(self.bins[at] + messages, COUNT_MAX)


class LatencyWindow:
    """The latencies of the last ten minutes.

    `now_ns` must always come from the same clock. If that clock is adjusted, the latencies that are
    then outside the window are dropped.
    """

    __slots__ = ("_slot_ns", "_slots", "_stores")

    def __init__(self, slot_s: int = SLOT_S) -> None:
        self._slot_ns = slot_s * NS_PER_S
        self._slots = WINDOW_S // slot_s
        self._stores: list[tuple[int, _Counts]] = []

    def add(self, latency_ns: int, messages: int, now_ns: int) -> None:
        """Add messages that took this long each."""
        self.add_bin(bin_of(latency_ns), messages, now_ns)

    def add_bin(self, key: int, messages: int, now_ns: int) -> None:
        """Add messages to a bin that the caller already knows."""
        slot = now_ns // self._slot_ns
        if not self._stores or self._stores[-1][0] != slot:
            self.expire(now_ns)
            self._stores.append((slot, _Counts(key)))
        self._stores[-1][1].add(key, messages)

    def expire(self, now_ns: int) -> None:
        """Drop slots that are too old."""
        slot = now_ns // self._slot_ns
        if self._stores and not (
            slot - self._slots <= self._stores[0][0] and self._stores[-1][0] <= slot
        ):
            self._stores = [
                store for store in self._stores if slot - self._slots <= store[0] <= slot
            ]

    def bins(self, now_ns: int) -> Bins:
        """Return all bins in the window."""
        self.expire(now_ns)
        bins: dict[int, int] = {}
        for _, store in self._stores:
            for key, messages in enumerate(store.bins, store.first):
                if messages:
                    bins[key] = bins.get(key, 0) + messages
        return tuple(bins), tuple(bins.values())

    def recent(self, now_ns: int) -> tuple[int, ...]:
        """Return the `RECENT` percentiles of the latest messages in nanoseconds, or ().

        The latest messages are those of this slot of time and the one before.
        """
        slot = now_ns // self._slot_ns
        stores = [store for at, store in self._stores[-2:] if slot - 1 <= at <= slot]
        if not stores:
            return ()
        first = min(store.first for store in stores)
        counts = [0] * (max(store.first + len(store.bins) for store in stores) - first)
        for store in stores:
            for at, messages in enumerate(store.bins, store.first - first):
                counts[at] += messages
        values, below, total = [], 0, sum(counts)
        at = -1
        for quantile in RECENT:
            while below <= quantile * (total - 1):
                at += 1
                below += counts[at]
            values.append(round(_MAPPING.value(first + at)))
        return tuple(values)


def merged(windows: Iterable[Bins]) -> Latency:
    """Return NSQ's `e2e_processing_latency` of all these windows together.

    It contains the number of messages, and the percentiles in nanoseconds.
    """
    store = DenseStore()
    for keys, weights in windows:
        for key, messages in zip(keys, weights, strict=True):
            store.add(key, messages)
    sketch = BaseDDSketch(_MAPPING, store, DenseStore(), 0.0)
    count = round(sketch.count)
    quantiles = QUANTILES if count else ()
    return {
        "count": count,
        "percentiles": [
            {"quantile": quantile, "value": round(sketch.get_quantile_value(quantile) or 0)}
            for quantile in quantiles
        ],
    }
