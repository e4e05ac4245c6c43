"""Tests of the console's pages in a real browser with a real broker: each page shows the broker's
data.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.broker import Broker
from support.browser import Window

import zsq

BINARY = bytes(range(200, 232))


@pytest.fixture(scope="module", autouse=True)
def filled(broker: Broker) -> Iterator[None]:
    """Create a topic with two channels, of which one falls behind, delayed messages, an empty
    topic, and a consumer that holds a message.
    """
    with zsq.Admin(broker.ipc) as admin, zsq.Producer(broker.ipc) as producer:
        admin.create_topic("empty")
        admin.create_topic("clicks")
        for channel in ("archive", "slow"):
            admin.create_channel("clicks", channel)
        for number in range(60):
            producer.publish(
                "clicks",
                b'{"user": %d, "ok": true}' % number,
                key=b"k%d" % number,
                tag="eu",
                headers={"trace": f"t{number}"},
            )
        producer.publish("clicks", BINARY)
        producer.publish("clicks", b"plain text")
        producer.publish("clicks", b"later", delay=3600)
        with zsq.Consumer("clicks", "archive", url=broker.ipc, ready=20) as consumer:
            held = [consumer.receive(timeout=10) for _ in range(5)]
            assert all(held)
            yield


def test_the_topics_page_shows_backlog_and_consumers(window: Window) -> None:
    window.open("#/")
    window.wait_cell("clicks", "channel_count", "2")
    window.wait_cell("clicks", "backlog", "62")
    assert window.cell("clicks", "consumers") == "1"
    assert window.cell("empty", "backlog") == "0"
    window.wait_figure("backlog", "62")
    assert window.page.title().endswith("Topics · ZSQ"), "alarms may be before it"
    assert window.page.locator("thead th[aria-sort]").inner_text().startswith("Topic")


def test_the_channels_page_begins_with_the_fullest_channel(window: Window) -> None:
    window.open("#/channels")
    window.until(lambda: window.page.locator("tbody tr").count() == 2, "two channels")
    first = window.page.locator("tbody tr").first
    window.until(
        lambda: first.locator(".c-name").inner_text().startswith("clicks / slow"),
        "the fullest to come first",
    )


def test_a_topics_page_shows_figures_channels_and_charts(window: Window) -> None:
    window.open("#/topics/clicks")
    window.wait_figure("messages", "62")
    assert window.figure("offsets") == "0 – 62"
    assert window.figure("delayed") == "1"
    window.wait_cell("slow", "depth", "62")
    window.until(lambda: window.page.locator(".chart path.chart-line").count() == 4, "the charts")
    window.until(lambda: window.page.locator(".chart-grid text").count() >= 4, "the axes")
    words = window.page.locator(".chart:first-of-type .chart-grid text:not(.time)").evaluate_all(
        "(all) => all.map((one) => one.getBoundingClientRect().right)"
    )
    lines = window.page.locator(".chart:first-of-type path.chart-line").evaluate_all(
        "(all) => all.map((one) => one.ownerSVGElement.getBoundingClientRect().left + "
        "one.getCTM().e)"
    )
    assert max(words) < min(lines), "no line runs through the words of the axis"
    window.page.get_by_role("link", name="archive").click()
    window.page.get_by_role("heading", name="archive").wait_for()


def test_a_missing_topic_or_page_says_so(window: Window) -> None:
    window.open("#/topics/nothing")
    window.sees("There is no topic nothing")
    window.sees("echo 'hello' | zsq pub nothing")
    window.open("#/nowhere/at/all")
    window.sees("This page does not exist")


def test_the_chunks_page_shows_chunks_and_cursors(window: Window) -> None:
    window.open("#/topics/clicks/chunks")
    window.page.locator("button.chunk.active").wait_for()
    window.wait_cell("written to now", "messages", "62")
    assert "slow" in window.page.locator(".cursors").inner_text()
    assert "Offsets 0 to 62" in window.page.locator("button.chunk").get_attribute("aria-label")


def test_messages_are_shown_as_text_json_or_hex(window: Window) -> None:
    page = window.open("#/topics/clicks/messages")
    window.until(lambda: page.locator("tbody tr").count() == 62, "all messages")
    article = page.get_by_role("article")
    assert "plain text" in article.inner_text(), "the newest is shown whole"
    page.locator("tbody tr").nth(1).click()
    article.filter(has_text="Message 60").wait_for()
    assert "c8 c9 ca cb" in article.locator("pre").inner_text(), "what is no text is shown in hex"
    page.locator("tbody tr").nth(2).click()
    article.filter(has_text="Message 59").wait_for()
    assert '"user": 59,\n' in article.locator("pre").inner_text()
    assert "k59" in article.inner_text()
    assert "t59" in article.inner_text()
    article.get_by_role("button", name="Hex").click()
    assert (
        article.locator("pre").inner_text().startswith("000000  7b 22 75 73 65 72 22 3a  20 35 39")
    )
    with page.expect_download() as saved:
        article.get_by_role("button", name="Download").click()
    assert saved.value.path().read_bytes() == b'{"user": 59, "ok": true}'


@pytest.mark.parametrize(
    ("way", "value", "wanted"),
    [
        ("offset", "40", "Message 40"),
        ("id", "0000000000000007", "Message 7"),
        ("offset", "x", "Enter an offset: a whole number."),
        ("id", "7", "Enter an id: 16 hexadecimal digits."),
    ],
)
def test_each_offset_or_id_finds_its_message_or_is_refused(
    window: Window, way: str, value: str, wanted: str
) -> None:
    page = window.open("#/topics/clicks/messages")
    page.get_by_role("article").wait_for()
    page.get_by_label("Which messages").select_option(way)
    page.get_by_label("Offset, time or id").fill(value)
    window.press("Show")
    window.sees(wanted)


def test_messages_are_found_by_time(window: Window) -> None:
    page = window.open("#/topics/clicks/messages")
    page.get_by_role("article").wait_for()
    page.get_by_label("Which messages").select_option("time")
    window.press("Show")
    window.sees("Message 0")


def test_the_delayed_page_shows_when_a_message_is_due(window: Window) -> None:
    window.open("#/topics/clicks/delayed")
    window.row("later").wait_for()
    assert "in 59" in window.row("later").inner_text()


def test_the_pages_of_producers_keeping_and_removal_are_shown(window: Window) -> None:
    page = window.open("#/topics/clicks/producers")
    window.until(lambda: page.locator("tbody tr").count() == 1, "the producer")
    window.open("#/topics/clicks/keeping")
    window.sees("1.00 GiB")
    window.open("#/topics/clicks/removal")
    page.locator("li.now").filter(has_text="Close it to publishers").wait_for()


def test_a_channels_page_shows_what_waits_and_what_is_held(window: Window) -> None:
    page = window.open("#/topics/clicks/channels/archive")
    window.wait_figure("in_flight", "20")
    window.wait_figure("depth", "42")
    assert window.figure("consumers") == "1"
    window.until(
        lambda: "/ 20" in page.locator("tbody tr td.c-in_flight").inner_text(),
        "what the consumer holds",
    )
    page.get_by_role("link", name="Held messages").click()
    page.locator("tbody tr").filter(has_text="in flight").first.wait_for()
    assert page.locator("tbody tr").first.locator("td.c-state").inner_text() == "in flight"
    page.get_by_role("link", name="Settings and counters").click()
    page.get_by_text("finish_count").wait_for()
    window.open("#/topics/clicks/channels/nobody")
    window.sees("There is no channel nobody of clicks")


def test_the_alarms_page_shows_raised_and_recent_alarms(window: Window) -> None:
    page = window.open("#/")
    page.locator(".badge").filter(has_text="2").wait_for()
    page.get_by_role("navigation").get_by_text("Alarms").click()
    raised = page.get_by_label("Raised now").locator("li")
    window.until(lambda: raised.count() == 2, "both alarms")
    assert "messages waiting (alarm above 40)" in " ".join(raised.all_inner_texts())
    page.get_by_label("Recent").locator("li").first.wait_for()
    window.sees("No receivers")


def test_the_processes_page_shows_processes_and_the_audit_log(window: Window) -> None:
    page = window.open("#/processes")
    window.until(lambda: page.locator("tbody tr").count() > 8, "the processes")
    assert window.row("supervisor").locator("td.c-state").inner_text() == "up"
    assert int(window.row("supervisor").locator("td.c-pid").inner_text()) > 1
    page.get_by_label("Filter processes").fill("topic clicks")
    window.until(lambda: page.locator("tbody tr").count() == 1, "the filter")
    page.get_by_role("link", name="Audit log").click()
    page.locator("tbody tr").filter(has_text="create").first.wait_for()


def test_the_content_security_policy_permits_only_own_scripts(window: Window) -> None:
    answer = window.page.goto(window.url)
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "http:" not in policy


def test_an_alarm_is_marked_where_it_is(window: Window) -> None:
    page = window.open("#/")
    page.get_by_label("Alarms that are raised").locator("li").first.wait_for()
    window.row("clicks").locator(".pill.alarm").wait_for()
    page.locator("td.c-backlog b.alarm").wait_for()
    window.open("#/topics/clicks/channels/slow")
    page.locator(".note.alarm", has_text="62 messages waiting (alarm above 40)").wait_for()
    page.locator('[data-figure="depth"].alarm').wait_for()


def test_the_schedules_page_shows_when_each_is_due_and_pauses_one(
    window: Window, broker: Broker
) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.schedule_add("empty", "nightly", "0 3 * * *", b"report", timezone="Europe/Berlin")
        window.open("#/")
        window.page.get_by_role("link", name="Schedules").click()
        row = window.page.locator("tbody tr", has_text="nightly")
        row.locator("text=waiting").wait_for()
        assert "0 3 * * *" in row.inner_text()
        assert "in " in row.inner_text()
        row.get_by_role("button", name="Pause").click()
        row.locator("text=paused").wait_for()
        assert admin.schedule_list()[0]["state"] == "paused"
        row.get_by_role("button", name="Resume").click()
        row.locator("text=waiting").wait_for()
        row.get_by_role("button", name="Remove").click()
        window.page.get_by_role("button", name="Remove the schedule").click()
        window.page.locator("text=No schedule yet").wait_for()
        assert admin.schedule_list() == []
