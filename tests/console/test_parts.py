"""Tests of the console's parts in a browser without a broker: functions of its modules, and a
thousand channels that must not make the page slow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.browser import Window

from zsq.actors.gateways.http.console.files import SETTINGS, settings_module

ROOT: Final = Path(__file__).resolve().parents[2] / "apps/console"
HOST: Final = "http://console.test"
KINDS: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
TOPICS: Final = 100
CHANNELS: Final = 10  # channels per topic
# This script replaces the page's stream: `push(name, data)` sends the page an event of the broker.
STREAM: Final = """
const encoder = new TextEncoder();
const waiting = [];
let control = null;
window.push = (name, data) => {
  const bytes = encoder.encode(`event: ${name}\\ndata: ${JSON.stringify(data)}\\n\\n`);
  if (control) control.enqueue(bytes); else waiting.push(bytes);
};
const real = window.fetch;
window.fetch = (path, options) => {
  if (!String(path).startsWith('/api/live')) return real(path, options);
  window.streams = (window.streams ?? 0) + 1;
  options.signal.addEventListener('abort', () => { control?.error(new Error('aborted')); control = null; });
  const body = new ReadableStream({ start(one) { control = one; waiting.splice(0).forEach((bytes) => one.enqueue(bytes)); } });
  return Promise.resolve(new Response(body, { headers: { 'content-type': 'text/event-stream' } }));
};
"""


FORMAT: Final = """async ([name, values]) => {
  const format = await import('/console/base/format.js');
  return values.map((one) => format[name](one).text.replaceAll('\\u2009', ' '));
}"""


@pytest.fixture
def window(browser: Any) -> Iterator[Window]:
    """Serve the console's files from disk. The API returns only what a test defines."""
    made = Window(browser, HOST)

    def serve(route: Any) -> None:
        path = route.request.url.removeprefix(HOST).split("?")[0].split("#")[0]
        if path.startswith("/api/"):
            empty = {
                "topics": {},
                "channels": {},
                "series": {},
                "step_s": 5,
                "end_ms": 0,
                "now": [],
                "recent": [],
                "receivers": [],
            }
            route.fulfill(body=json.dumps(empty), content_type="application/json")
            return
        if path == f"/console/{SETTINGS}":  # the gateway generates this file
            route.fulfill(body=settings_module(), content_type=KINDS[".js"])
            return
        file = ROOT / ("index.html" if path == "/" else path.removeprefix("/console/"))
        route.fulfill(path=file, content_type=KINDS[file.suffix])

    made.page.route(f"{HOST}/**", serve)
    made.page.add_init_script(STREAM)
    yield made
    complaints = made.complaints
    made.close()
    assert complaints == []


def test_an_alarm_without_a_number_says_its_sentence(window: Window) -> None:
    page = window.open("#/")
    said = """async (alarm) => (await import("/console/view/parts.js")).alarmText(alarm)"""
    health = {"kind": "health", "value": None, "threshold": 0, "text": "orders: state store lost"}
    assert page.evaluate(said, health) == "state store lost"
    age = {"kind": "age_s", "value": 90, "threshold": 60}
    assert page.evaluate(said, age).startswith("oldest unfinished is ")


def test_each_figure_is_shown_short_and_with_its_unit(window: Window) -> None:
    page = window.open("#/")
    cases: dict[str, list[tuple[float | None, str]]] = {
        "count": [
            (0, "0"),
            (9999, "9,999"),
            (12_345, "12.3k"),
            (999_999, "1.00M"),
            (4_560_000, "4.56M"),
            (None, "–"),
        ],
        "rate": [
            (0, "0"),
            (0.01, "<0.1"),
            (0.4, "0.4"),
            (37.21, "37.2"),
            (1240, "1,240"),
            (12_400, "12.4k"),
        ],
        "bytes": [
            (0, "0 B"),
            (1023, "1,023 B"),
            (1024, "1.00 KiB"),
            (1048575, "1.00 MiB"),
            (5 * 2**30, "5.00 GiB"),
        ],
        "duration": [
            (0, "0"),
            (2e-5, "20.0 µs"),
            (0.85, "850 ms"),
            (1.26, "1.3 s"),
            (12, "12 s"),
            (200, "3 m 20 s"),
            (3600, "1 h"),
            (273_600, "3 d 4 h"),
        ],
    }
    for name, rows in cases.items():
        said = page.evaluate(FORMAT, [name, [value for value, _ in rows]])
        assert said == [text for _, text in rows], name


def test_sizes_and_times_that_people_write_are_parsed(window: Window) -> None:
    page = window.open("#/")
    said = page.evaluate(
        "async () => { const f = await import('/console/base/format.js');"
        " return [['2.5 s', '10m', '7d', '90', 'soon', ''].map(f.parseDuration), ['1GiB', '64 "
        "MiB', '1024', 'x'].map(f.parseBytes)]; }"
    )
    assert said == [[2.5, 600, 604_800, 90, None, None], [2**30, 64 * 2**20, 1024, None]]


def test_addresses_come_back_from_their_links(window: Window) -> None:
    page = window.open("#/")
    said = page.evaluate(
        "async () => { const r = await import('/console/base/router.js');"
        " return ['a#ephemeral', '__proto__', 'a/b', '%', 'ü?x=1'].map((name) => "
        "r.parse(r.link('topics', name, { q: 'a&b' }))); }"
    )
    assert [one["parts"] for one in said] == [
        ["topics", name] for name in ("a#ephemeral", "__proto__", "a/b", "%", "ü?x=1")
    ]
    assert all(one["query"] == {"q": "a&b"} for one in said)
    assert page.evaluate(
        "async () => (await import('/console/base/router.js')).parse('#/%E0%A4%A').parts"
    ) == ["?"]


def test_events_are_read_however_the_stream_is_cut(window: Window) -> None:
    """The same events must come out however the bytes of the stream are divided."""
    page = window.open("#/")
    stream = (
        'event: snapshot\ndata: {"a":1}\n\n: keep\n\nevent: changes\r\ndata: {"b":\r\ndata: '
        "2}\r\n\r\nevent: again\n\n"
    )
    said = page.evaluate(
        """async (stream) => {
          const { split } = await import('/console/base/live.js');
          const all = [];
          for (let size = 1; size < 40; size += 1) {
            let rest = '';
            const found = [];
            for (let at = 0; at < stream.length; at += size) {
              const cut = split(rest + stream.slice(at, at + size));
              rest = cut.rest;
              found.push(...cut.events);
            }
            all.push(JSON.stringify(found));
          }
          return [...new Set(all)];
        }""",
        stream,
    )
    assert [json.loads(one) for one in said] == [
        [
            {"name": "snapshot", "data": '{"a":1}'},
            {"name": "changes", "data": '{"b":\n2}'},
            {"name": "again", "data": ""},
        ]
    ]


def test_trails_hold_mean_rates_and_largest_depths(window: Window) -> None:
    """A point of a chart holds the mean of the rates and the largest depth of its time. A page that
    was hidden for long must load its data again. For a time without new values, the chart repeats
    the last one.
    """
    page = window.open("#/")
    said = page.evaluate(
        """async () => {
          const { Trails } = await import('/console/base/trails.js');
          const trails = new Trails();
          trails.load({ t: { in: [1, 2, 3], depth: [5, 5, 5] } }, 5, 10000);
          trails.sample('t', { in: 10, depth: 10 });
          trails.sample('t', { in: 20, depth: 2 });
          const seen = () => [[...trails.values('t', 'in')], [...trails.values('t', 'depth')]];
          const now = seen();
          const kept = trails.advance(15000);
          const then = seen();
          trails.advance(20000);
          return [now, kept, then, trails.values('t', 'in'), trails.advance(100000)];
        }"""
    )
    assert said == [
        [[1, 2, 3, 15], [5, 5, 5, 10]],
        True,
        [[2, 3, 15], [5, 5, 10]],
        [3, 15, 15],
        False,
    ]


def snapshot() -> dict[str, Any]:
    channel = {
        "health": "OK",
        "paused": False,
        "depth": 5,
        "in_flight": 1,
        "deferred": 0,
        "oldest_ms": 1000,
        "consumers": 1,
        "out": 3.0,
        "drain_s": 2,
        "may": "as",
    }
    topic = {
        "health": "OK",
        "state": "up",
        "closed": "",
        "in": 5.0,
        "out": 3.0,
        "backlog": 6,
        "in_flight": 1,
        "oldest_ms": 1000,
        "log_bytes": 10,
        "may": "asp",
    }
    topics = {
        f"topic-{t:03d}": {
            **topic,
            "channel_count": CHANNELS,
            "consumers": CHANNELS,
            "channels": {f"channel-{c}": dict(channel) for c in range(CHANNELS)},
        }
        for t in range(TOPICS)
    }
    return {"now_ms": 90_000, "broker": {"alarms": 0, "may": {"admin": True}}, "topics": topics}


def all_change(number: int) -> dict[str, Any]:
    channels = {f"channel-{c}": {"depth": number + c, "out": number} for c in range(CHANNELS)}
    return {
        "now_ms": 91_000 + number,
        "topics": {f"topic-{t:03d}": {"in": number, "channels": channels} for t in range(TOPICS)},
    }


def cpu_ms_of(window: Window, script: str) -> float:
    """Return the processor time of the page's main thread until the result is painted. Other work
    on this machine does not count.
    """
    session = window.page.context.new_cdp_session(window.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def worked() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration")) * 1000

    before = worked()
    window.page.evaluate(
        f"async () => {{ {script}; await new Promise((done) => requestAnimationFrame(() => "
        f"setTimeout(done))); }}"
    )
    spent = worked() - before
    session.detach()
    return spent


@pytest.mark.parametrize(
    ("place", "rows", "words"), [("#/", 100, "100 topics"), ("#/channels", 150, "1,000 channels")]
)
def test_a_thousand_channels_stay_smooth(window: Window, place: str, rows: int, words: str) -> None:
    """If one of a thousand channels changes, only the cells of that channel and of the clock
    change. The rest of the table stays. All rows appear as far as the user scrolls.
    """
    page = window.open(place)
    page.evaluate("(data) => push('snapshot', data)", snapshot())
    window.until(lambda: page.locator("tbody tr").count() == rows, "the rows")
    window.sees(words)
    page.locator("tbody tr").first.hover()  # the pointer keeps the rows in place
    touched = page.evaluate(
        """async () => {
          let count = 0;
          const rows = new Set();
          const watch = new MutationObserver((list) => {
            for (const one of list) {
              const row = one.target.parentElement?.closest('tr') ?? one.target.closest?.('tr');
              if (one.type === 'childList' && one.target.tagName === 'TBODY') count += 1000;
              if (row && one.type === 'characterData') rows.add(row);
            }
          });
          await new Promise((done) => setTimeout(done, 1100)); // sparklines that begin
          watch.observe(document.querySelector('table'), { subtree: true, childList: true, characterData: true });
          push('changes', { topics: { 'topic-001': { in_flight: 77, channels: { 'channel-1': { in_flight: 77 } } } } });
          await new Promise((done) => setTimeout(done, 400));
          watch.disconnect();
          return [count, rows.size, [...rows].some((row) => row.textContent.includes('77'))];
        }"""
    )
    assert touched[0] == 0, "no row was taken out or put in"
    if place == "#/":
        assert touched[2], "the one that changed shows it"
    if rows < 1000 and place == "#/channels":
        for _ in range(12):
            page.locator("tbody tr").last.scroll_into_view_if_needed()
            page.wait_for_timeout(60)
        window.until(lambda: page.locator("tbody tr").count() > 450, "more rows while one scrolls")
    spent = [
        cpu_ms_of(window, f"push('changes', {json.dumps(all_change(round))})") for round in range(7)
    ]
    assert sorted(spent)[3] < 250, (
        f"{spent} ms of processor for an event that changes all: it comes once a second"
    )


def names(window: Window) -> list[str]:
    return [str(one) for one in window.page.locator("tbody a.name").all_inner_texts()]


def test_rows_hold_still_under_the_pointer(window: Window) -> None:
    """The order of the rows follows the figures a few seconds late, but it does not change while
    the pointer is over a row.
    """
    page = window.page
    page.clock.install()
    window.open("#/")
    page.evaluate("(data) => push('snapshot', data)", snapshot())
    page.get_by_role("button", name="Published/s").click()
    before = names(window)
    page.locator("tbody tr").nth(3).hover()
    page.evaluate("push('changes', { topics: { 'topic-050': { in: 999 } } })")
    page.clock.run_for(10_000)
    page.evaluate("push('changes', { topics: { 'topic-051': { in: 998 } } })")
    page.clock.run_for(1_000)
    assert names(window) == before
    page.mouse.move(5, 5)
    page.clock.run_for(5_000)
    page.evaluate("push('changes', { topics: { 'topic-052': { in: 997 } } })")
    page.clock.run_for(1_000)
    window.until(
        lambda: names(window)[:3] == ["topic-050", "topic-051", "topic-052"], "the new order"
    )


HIDE: Final = """(hidden) => {
  Object.defineProperty(document, 'hidden', { get: () => hidden, configurable: true });
  document.dispatchEvent(new Event('visibilitychange'));
}"""


def test_a_hidden_page_closes_its_stream_after_a_while(window: Window) -> None:
    page = window.page
    page.clock.install()
    window.open("#/")
    page.evaluate("(data) => push('snapshot', data)", snapshot())
    page.locator("tbody tr").first.wait_for()
    page.evaluate(HIDE, True)
    page.clock.run_for(30_000)
    page.evaluate("push('changes', {})")
    page.clock.run_for(31_000)
    assert page.locator(".link-state").get_attribute("data-state") == "away"
    assert page.evaluate("streams") == 1
    page.evaluate(HIDE, False)
    window.until(lambda: page.evaluate("streams") == 2, "a new stream")
    page.evaluate("(data) => push('snapshot', data)", snapshot())
    window.until(lambda: page.locator(".link-state").get_attribute("data-state") == "live", "live")


@pytest.mark.parametrize("begun", [True, False])
def test_a_silent_stream_is_given_up(window: Window, begun: bool) -> None:
    """A working stream sends something every 15 s at least. After 40 s without data the connection
    is lost, even if the socket has not noticed it.
    """
    page = window.page
    pending: set[str] = set()
    page.on("request", lambda request: pending.add(request.url))
    for event in ("requestfinished", "requestfailed"):
        page.on(event, lambda request: pending.discard(request.url))
    page.clock.install()
    window.open("#/")
    if begun:
        page.evaluate("(data) => push('snapshot', data)", snapshot())
        page.locator("tbody tr").first.wait_for()
    window.until(lambda: page.evaluate("window.streams") == 1, "the stream")

    def pass_time(ms: int) -> None:
        """Move the clock in small steps. A request that waits for its answer would time out."""
        for _ in range(ms // 500):
            window.until(lambda: not pending, "all answers")
            page.clock.run_for(500)

    pass_time(30_000)
    assert page.evaluate("streams") == 1
    pass_time(11_000)

    def has_another_stream() -> bool:
        pass_time(500)
        return bool(page.evaluate("streams") == 2)

    window.until(has_another_stream, "another stream")
