"""Tests of when a scan worker reports, in virtual time."""

from __future__ import annotations

from zsq.actors.scan.scan_rounds import LATE, MISSED, Result, ScanOrders, Who
from zsq.actors.settings import options

MS = 1_000_000
NOW = 100_000 * MS
SOON = NOW + options.SCAN_SOON_MS * MS + 1
OVER = NOW + options.SCAN_ANSWER_MS * MS + 1
LOOP: Who = ((b"loop",), 1)
OTHER: Who = ((b"loop",), 2)
AGAIN: Who = ((b"its successor",), 1)
ABC = [(1, "ipc://a"), (2, "ipc://b"), (3, "ipc://c")]


def told(orders: ScanOrders, now_ns: int) -> list[tuple[Who, list[Result]]]:
    return orders.reports(now_ns)


def test_a_worker_reports_as_soon_as_all_have_answered() -> None:
    orders = ScanOrders()
    scans = orders.begin(LOOP, ABC, NOW)
    assert [endpoint for _, endpoint in scans] == ["ipc://a", "ipc://b", "ipc://c"]
    assert orders.wait_ms(NOW) == options.SCAN_SOON_MS + 1
    for number, _ in scans:
        assert told(orders, NOW) == []
        orders.answered(number, number == scans[1][0], 7)
    assert told(orders, NOW) == [(LOOP, [(1, 0, 7), (2, 1, 7), (3, 0, 7)])]
    assert (len(orders), told(orders, OVER)) == (0, [])


def test_a_late_channel_is_reported_as_late_and_again_when_it_answers() -> None:
    orders = ScanOrders()
    (a, _), (b, _), (c, _) = orders.begin(LOOP, ABC, NOW)
    orders.answered(b, False, 7)
    assert told(orders, SOON - 1) == []
    assert told(orders, SOON) == [(LOOP, [(2, 0, 7), (1, LATE, 0), (3, LATE, 0)])]
    assert told(orders, SOON) == [], "once"
    assert orders.wait_ms(SOON) == options.SCAN_ANSWER_MS - options.SCAN_SOON_MS
    orders.answered(c, True, 8)
    assert told(orders, SOON + MS) == [(LOOP, [(3, 1, 8)])]
    assert told(orders, OVER) == [(LOOP, [(1, MISSED, 0)])]
    assert len(orders) == 0
    orders.answered(a, True, 9)
    assert told(orders, OVER + MS) == [(LOOP, [(1, 1, 9)])], "after all"
    orders.answered(a, True, 9)
    assert told(orders, OVER + MS) == []


def test_a_late_turn_reports_a_missed_scan_at_once() -> None:
    orders = ScanOrders()
    orders.begin(LOOP, ABC[:1], NOW)
    assert told(orders, OVER) == [(LOOP, [(1, MISSED, 0)])]


def test_only_the_newest_missed_scan_of_a_channel_is_remembered() -> None:
    """A channel that hangs for days must not need more memory than one scan."""
    orders = ScanOrders()
    ((first, _),) = orders.begin(LOOP, ABC[:1], NOW)
    told(orders, OVER)
    ((second, _),) = orders.begin(OTHER, ABC[:1], OVER)
    told(orders, OVER + OVER)
    assert len(orders._scans) == len(orders._missed) == 1
    orders.answered(first, True, 7)
    orders.answered(second, True, 8)
    assert told(orders, OVER + OVER) == [(OTHER, [(1, 1, 8)])]
    assert len(orders._scans) == len(orders._missed) == 0


def test_an_order_of_the_loop_s_successor_has_the_same_number() -> None:
    orders = ScanOrders()
    ((first, _),) = orders.begin(LOOP, ABC[:1], NOW)
    ((second, _),) = orders.begin(AGAIN, ABC[1:2], NOW)
    orders.answered(first, True, 7)
    orders.answered(second, False, 8)
    assert told(orders, NOW) == [(LOOP, [(1, 1, 7)]), (AGAIN, [(2, 0, 8)])]


def test_no_answer_is_expected_from_removed_channels() -> None:
    orders = ScanOrders()
    orders.begin(OTHER, ABC[:1], NOW)
    told(orders, OVER)
    (a, _), (b, _), (c, _) = orders.begin(LOOP, ABC, OVER)
    orders.hang_up("ipc://a")
    orders.hang_up("ipc://x")
    orders.answered(a, True, 7)
    orders.answered(b, False, 7)
    orders.answered(c, False, 7)
    assert told(orders, OVER) == [(LOOP, [(1, MISSED, 0), (2, 0, 7), (3, 0, 7)])]
    assert len(orders._scans) == len(orders._missed) == 0
