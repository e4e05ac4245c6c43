"""Tests of how the console can be used: keyboard, narrow screens, dark theme, screen readers.
Hostile content must stay text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest
from support.broker import Broker
from support.browser import Window

import zsq

MARKUP: Final = '<img src=x onerror="alert(1)"><script>alert(2)</script></td></table>'
OF_A_TOPIC: Final = (
    "",
    "/messages",
    "/search?text=img",
    "/tail",
    "/chunks",
    "/delayed",
    "/producers",
    "/keeping",
    "/removal",
    "/channels/c",
    "/channels/c/held",
    "/channels/c/settings",
)
PLACES: Final = (
    "#/",
    "#/channels",
    "#/alarms",
    "#/processes",
    "#/audit",
    *(f"#/topics/hostile{place}" for place in OF_A_TOPIC),
)


@pytest.fixture(scope="module", autouse=True)
def hostile(broker: Broker) -> Iterator[None]:
    """Create bodies, keys, tags, headers, errors and names of consumers that contain markup, and
    topics named like properties of JavaScript objects.
    """
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        for name in ("__proto__", "constructor", "toString", "tail#ephemeral", "a" * 64):
            admin.create_topic(name)
        admin.create_topic("hostile")
        admin.create_channel("hostile", "c")
        admin.create_channel("__proto__", "__proto__")
        for body in (
            MARKUP.encode(),
            b'{"<b>": "</pre><img src=x onerror=alert(3)>"}',
            "\u202e\u0000 \u2028 ünïcode".encode(),
        ):
            producer.publish(
                "hostile",
                body,
                key=MARKUP.encode()[:60],
                tag="<b>tag</b>",
                headers={"<i>h</i>": MARKUP},
            )
        producer.publish("hostile", MARKUP.encode(), delay=3600)
        with zsq.Consumer(
            "hostile", "c", url=broker.ipc, ready=2, label="<u>worker</u>"
        ) as consumer:
            assert consumer.receive(timeout=10)
            yield


def settled(window: Window) -> None:
    """Wait until the page has its data and shows no placeholder any more."""
    window.until(
        lambda: window.page.locator(".link-state").get_attribute("data-state") == "live",
        "the stream",
    )
    window.until(lambda: window.page.locator("#page .skeleton:visible").count() == 0, "the data")
    window.page.wait_for_timeout(300)


def test_hostile_content_stays_text_everywhere(window: Window) -> None:
    """An alert, a script or an image that the content tried to load would be recorded as an error
    of the window. No part of the content may become an element.
    """
    page = window.open("#/")
    for place in PLACES:
        page.evaluate("place => { location.hash = place }", place)
        settled(window)
        assert (
            page.locator(
                "#page img, #page script, #page td b:not([title]):has-text('tag'), #page u, "
                "#page i:has-text('h')"
            ).count()
            == 0
        ), place
    page.evaluate("location.hash = '#/topics/hostile/messages'")
    page.locator("tbody tr").nth(2).click()
    article = page.get_by_role("article")
    article.filter(has_text="Message 0").wait_for()
    assert article.locator("pre").inner_text() == MARKUP
    assert "<i>h</i>" in article.inner_text()
    page.locator("tbody tr").nth(1).click()
    assert "</pre><img" in article.locator("pre").inner_text()
    page.evaluate("location.hash = '#/topics/hostile/channels/c'")
    window.row("<u>worker</u>").wait_for()
    page.evaluate("location.hash = '#/topics/hostile/delayed'")
    page.locator("tbody tr").filter(has_text="<img src=x").wait_for()


def test_topics_named_like_javascript_properties_are_shown(window: Window) -> None:
    page = window.open("#/")
    for name in ("__proto__", "constructor", "toString", "tail#ephemeral"):
        window.row(name).wait_for()
    window.row("tail#ephemeral").get_by_role("link").click()
    page.get_by_role("heading", name="tail#ephemeral").wait_for()
    window.wait_figure("messages", "0")
    window.open("#/topics/__proto__")
    window.row("__proto__").wait_for()
    assert page.evaluate("({}).health === undefined")


def test_pages_rows_and_filter_can_be_used_by_keyboard(window: Window) -> None:
    page = window.open("#/")
    window.row("hostile").wait_for()
    focused = "document.activeElement.textContent"
    page.keyboard.press("j")
    first = page.evaluate(focused)
    assert first == page.locator("tbody tr a.name").first.inner_text()
    page.keyboard.press("j")
    second = page.evaluate(focused)
    assert second not in (first, "")
    assert (
        page.evaluate("getComputedStyle(document.activeElement.closest('tr').cells[0]).boxShadow")
        != "none"
    ), "the row with the focus is marked"
    page.keyboard.press("ArrowUp")
    assert page.evaluate(focused) == first
    page.keyboard.press("/")
    page.keyboard.type("jd?[")
    assert page.get_by_label("Filter topics").input_value() == "jd?[", "who types gets letters"
    assert page.locator("dialog").count() == 0
    page.get_by_label("Filter topics").fill("host")
    window.until(lambda: page.locator("tbody tr").count() == 1, "the filter")
    assert "q=host" in page.url
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="hostile").wait_for()
    page.keyboard.press("]")
    page.locator(".tabs a[aria-current]", has_text="Messages").wait_for()
    page.keyboard.press("[")
    page.locator(".tabs a[aria-current]", has_text="Channels").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    window.row("constructor").wait_for()
    for key, heading in (
        ("a", "Alarms"),
        ("l", "Audit log"),
        ("p", "Processes"),
        ("c", "Channels"),
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.get_by_role("heading", name=heading, exact=True).wait_for()
    page.keyboard.press("?")
    window.dialog().get_by_text("next row").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")


def test_an_answer_that_comes_late_does_not_take_the_user_back(window: Window) -> None:
    """The address changes before the page does, and an answer for the old page comes between."""
    page = window.open("#/topics/hostile/messages")
    page.locator(".tabs a[aria-current]", has_text="Messages").wait_for()
    late = """async () => {
        const { replace } = await import("/console/base/router.js");
        location.hash = "#/alarms";
        replace("#/topics/hostile/messages");
    }"""
    page.evaluate(late)
    page.get_by_role("heading", name="Alarms", exact=True).wait_for()
    assert page.url.endswith("#/alarms")


def test_topics_can_be_filtered_and_sorted(window: Window) -> None:
    page = window.open("#/?q=host")
    window.until(lambda: page.locator("tbody tr").count() == 1, "the filter of the address")
    field = page.get_by_label("Filter topics")
    field.fill("nothing like it")
    window.sees("Nothing matches")
    field.press("Escape")
    window.until(lambda: page.locator("tbody tr").count() == 6, "all of them")
    page.get_by_role("button", name="Backlog").click()
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("Backlog")
    assert page.locator("tbody tr a.name").first.inner_text() == "hostile"
    page.get_by_role("button", name="Backlog").click()
    assert page.locator("tbody tr a.name").last.inner_text() == "hostile"


def test_back_returns_to_the_same_order_and_place_of_the_page(
    window_of: Callable[..., Window], broker: Broker
) -> None:
    """The order and the chosen message are in the address. Back also restores the scrolling."""
    window = window_of(broker, viewport={"width": 1200, "height": 300})
    page = window.open("#/?q=o")
    window.row("hostile").wait_for()
    page.get_by_role("button", name="Backlog").click()
    page.get_by_role("button", name="Backlog").click()
    assert page.url.endswith("#/?q=o&sort=backlog")
    page.evaluate("window.scrollTo(0, 180)")
    page.locator("tbody tr a.name", has_text="hostile").first.click()
    page.get_by_role("heading", name="hostile", exact=True).wait_for()
    assert page.evaluate("window.scrollY") == 0
    page.go_back()
    window.row("hostile").wait_for()
    scrolled = page.evaluate("window.scrollY")
    assert scrolled > 0
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Backlog")
    page.evaluate("location.hash = '#/topics/hostile/messages'")
    page.locator(".message").wait_for()
    page.locator("tbody tr button").last.click()
    chosen = page.locator(".message").get_attribute("data-offset")
    assert page.url.endswith(f"at={chosen}")
    page.evaluate("location.hash = '#/alarms'")
    page.get_by_role("heading", name="Alarms", exact=True).wait_for()
    page.go_back()
    page.locator(f".message[data-offset='{chosen}']").wait_for()


@pytest.mark.parametrize("width", [360, 390, 1024])
def test_a_schedule_can_be_paused_and_removed_on_a_narrow_screen(
    window_of: Callable[..., Window], broker: Broker, width: int
) -> None:
    name = "a-nightly-report-of-everything"
    with zsq.Admin(broker.ipc) as admin:
        admin.schedule_add("hostile", name, "0 3 * * *", b"report")
    window = window_of(broker, viewport={"width": width, "height": 740})
    page = window.open("#/schedules")
    cell = window.row(name).locator("td.c-name")
    assert cell.evaluate("one => one.scrollWidth <= one.clientWidth"), "the name is not cut"
    for button in ("Pause", "Remove"):
        box = window.row(name).get_by_role("button", name=button).bounding_box()
        assert box["x"] + box["width"] <= width
    window.row(name).get_by_role("button", name="Pause").click()
    window.row(name).get_by_role("button", name="Resume").wait_for()
    window.row(name).get_by_role("button", name="Remove").click()
    window.agree("Remove the schedule")
    window.sees("No schedule yet")
    for link in page.locator(".nav a:visible").all():
        box = link.bounding_box()
        assert box["x"] + box["width"] <= width
    page.evaluate("location.hash = '#/topics/hostile'")
    tabs = page.locator(".tabs").bounding_box()
    assert tabs["y"] < 800, "the charts do not push the tabs away"


@pytest.mark.parametrize("width", [360, 768])
def test_no_page_is_wider_than_a_narrow_screen(
    window_of: Callable[..., Window], broker: Broker, width: int
) -> None:
    window = window_of(broker, viewport={"width": width, "height": 740})
    page = window.open("#/")
    for place in PLACES:
        page.evaluate("place => { location.hash = place }", place)
        settled(window)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (
            f"{place} is wider than the screen"
        )
    page.evaluate("location.hash = '#/topics/hostile'")
    window.press("Delete")
    box = window.dialog().bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


def test_the_theme_follows_the_system_until_one_is_chosen(
    window_of: Callable[..., Window], broker: Broker
) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    bright = window_of(broker, color_scheme="light").open("#/").evaluate(paper)
    window = window_of(broker, color_scheme="dark")
    page = window.open("#/")
    dark = page.evaluate(paper)
    assert dark != bright
    page.get_by_label("Theme: system setting; switch").click()
    assert page.evaluate(paper) == bright
    page.reload()
    assert page.evaluate(paper) == bright, "what was chosen is kept"
    page.keyboard.press("d")
    assert page.evaluate(paper) == dark


def test_all_text_has_enough_contrast(window: Window) -> None:
    """Each text colour must have a contrast of 4.5 to 1 on each background, in the light and the
    dark theme. WCAG demands this for text.
    """
    page = window.open("#/")
    for theme in ("light", "dark"):
        found = page.evaluate(CONTRAST, theme)
        assert not {pair: ratio for pair, ratio in found.items() if ratio < 4.5}, theme


CONTRAST: Final = """theme => {
  document.documentElement.dataset.theme = theme;
  const probe = document.createElement('i');
  document.body.append(probe);
  const light = (name) => {
    probe.style.color = `var(--${name})`;
    const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map((one) => Number(one) / 255);
    const [r, g, b] = parts.map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pairs = [['on-accent', 'accent'], ['ink-2', 'sunk'], ['ink', 'accent-soft']];
  for (const ink of ['alarm', 'warn', 'held']) pairs.push([ink, `${ink}-soft`]);
  for (const ink of ['in', 'json-text', 'json-number', 'third']) pairs.push([ink, 'sunk']);
  const inks = ['ink', 'ink-2', 'ink-3', 'accent', 'warn', 'alarm'];
  for (const ink of inks) for (const ground of ['paper', 'panel', 'hover']) pairs.push([ink, ground]);
  const found = {};
  for (const [ink, ground] of pairs) {
    const [a, b] = [light(ink), light(ground)];
    found[`${ink} on ${ground}`] = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }
  return found;
}"""


NAMELESS: Final = """[...document.querySelectorAll('button, a, input, select, table')]
  .filter((one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length)).map((one) => one.outerHTML)"""
JUMPS: Final = """window.jumps = 0;
new PerformanceObserver((list) => list.getEntries().forEach((one) => { jumps += one.value; }))
  .observe({type: 'layout-shift', buffered: true})"""


def test_a_screen_reader_finds_landmarks_headings_and_names(window: Window) -> None:
    """The page has landmarks, one h1, a name for everything that can be pressed, and headers of
    columns.
    """
    page = window.open("#/")
    for place in PLACES:
        page.evaluate("place => { location.hash = place }", place)
        settled(window)
        assert page.locator("main h1").count() == 1, place
        assert page.get_by_role("banner").count() == 1
        assert page.get_by_role("main").count() == 1
        nameless = page.evaluate(NAMELESS)
        assert nameless == [], place
    assert (
        page.get_by_role("navigation", name="Pages").locator("[aria-current=page]").inner_text()
        == "Topics"
    )
    page.evaluate("location.hash = '#/'")
    table = page.get_by_role("table", name="Topics")
    table.wait_for()
    assert table.get_by_role("columnheader").count() == 10


def test_nothing_jumps_when_data_comes(window: Window) -> None:
    """The browser itself measures the layout shift while the first page and a topic's page are
    loaded.
    """
    window.page.add_init_script(JUMPS)
    for place in ("#/", "#/topics/hostile"):
        page = window.open(place)
        window.row("hostile" if place == "#/" else "c").wait_for()
        settled(window)
        assert page.evaluate("jumps") < 0.1, place
