"""Tests that changes appear without a reload, that a lost connection is reported and restored, and
that the console asks for a token.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support.broker import Broker
from support.browser import Window

import zsq

WindowOf = Callable[..., Window]
ADMIN: Final = "a-token-of-an-admin"
VIEWER: Final = "a-token-of-a-viewer"
READER: Final = "a-token-of-a-reader"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start a broker with an access file, which asks clients for a token."""
    folder = tmp_path_factory.mktemp("guarded")
    hashes = [hashlib.sha256(token.encode()).hexdigest() for token in (ADMIN, VIEWER, READER)]
    access = folder / "access.toml"
    access.write_text(
        f'[users.ops]\ntokens = ["sha256:{hashes[0]}"]\npublish = ["*"]\nsubscribe = ["*"]\n'
        'admin = ["*"]\n'
        f'[users.looker]\ntokens = ["sha256:{hashes[1]}"]\nview = ["clicks"]\n'
        f'[users.reader]\ntokens = ["sha256:{hashes[2]}"]\nsubscribe = ["letters"]\n'
    )
    broker = Broker(folder / "data", "--access", str(access), "--no-listen", http=True)
    broker.extra = tuple(broker.extra)
    try:
        yield broker.start()
    finally:
        broker.close()


def test_published_messages_appear_without_a_reload(window: Window, broker: Broker) -> None:
    window.open("#/")
    window.sees("No topic yet")
    window.sees("echo 'hello' | zsq pub clicks")
    with zsq.Producer(broker.ipc) as producer, zsq.Admin(broker.ipc) as admin:
        producer.publish("clicks", b"one")
        window.row("clicks").wait_for()
        window.wait_cell("clicks", "backlog", "1")
        window.page.evaluate("window.same = document.querySelector('tbody tr')")
        for _ in range(4):
            producer.publish("clicks", b"more")
        window.wait_cell("clicks", "backlog", "5")
        window.until(
            lambda: window.page.locator(".link-state").get_attribute("data-state") == "live", "live"
        )
        window.until(
            lambda: (
                len(window.page.locator("tr .c-backlog .spark-line").get_attribute("d") or "") > 12
            ),
            "a line",
        )
        admin.create_channel("clicks", "archive")
        window.wait_cell("clicks", "channel_count", "1")
        assert window.page.evaluate("window.same === document.querySelector('tbody tr')"), (
            "the row is the same one, changed in place"
        )
        admin.delete_topic("clicks", force=True)
        window.page.locator("tbody tr").wait_for(state="detached")
        window.sees("No topic yet")


def test_a_page_whose_topic_goes_says_so(window: Window, broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic("brief")
        window.open("#/topics/brief")
        window.wait_figure("messages", "0")
        admin.delete_topic("brief", force=True)
        window.sees("There is no topic brief")
        window.page.get_by_role("button", name="Delete").wait_for(state="hidden")
        admin.create_topic("brief")
        admin.create_channel("brief", "c")
        window.open("#/topics/brief/channels/c")
        window.wait_figure("depth", "0")
        admin.delete_channel("brief", "c")
        window.sees("There is no channel c of brief")
        for name in ("Pause", "Settings", "Seek", "Empty", "Delete"):
            window.page.get_by_role("button", name=name).wait_for(state="hidden")


def test_times_grow_with_the_clock(window: Window, broker: Broker) -> None:
    with zsq.Producer(broker.ipc) as producer:
        producer.publish("aging", b"x")
    window.open("#/topics/aging")
    window.until(lambda: window.figure("oldest").endswith("s"), "an age")
    before = window.figure("oldest")
    window.until(
        lambda: window.figure("oldest") != before, "the age to grow though nothing happens"
    )


def test_a_lost_connection_is_said_and_mended(window_of: WindowOf, tmp_path: Path) -> None:
    with Broker(tmp_path / "data", http=True) as broker:
        with zsq.Producer(broker.ipc) as producer:
            producer.publish("clicks", b"one")
        window = window_of(broker)
        window.page.clock.install()
        page = window.open("#/")
        window.wait_cell("clicks", "backlog", "1")
        broker.stop()
        page.locator(".banner").get_by_text("Not connected:").wait_for()
        page.locator(".banner").get_by_text("The page shows the state of").wait_for()
        # The page tries once more. After that it does not try again by itself.
        with page.expect_event("requestfailed", lambda request: "/api/live" in request.url):
            page.clock.pause_at(time.time() + 20)
        assert window.cell("clicks", "backlog") == "1", (
            "what was known stays, and is said to be old"
        )
        broker.start()
        with zsq.Producer(broker.ipc) as producer:
            producer.publish("clicks", b"two")
        with page.expect_request("**/api/live*"):
            window.press("Try now")
        page.clock.resume()
        page.locator(".banner").first.wait_for(state="hidden")
        window.wait_cell("clicks", "backlog", "2")
        assert not page.locator("main.stale").count()
        # The jump of the clock makes the page ask for its charts while the broker is away.
        assert all("The broker was not reached" in one for one in window.complaints)
        window.complaints.clear()


def test_a_page_says_that_the_broker_is_away_and_not_that_its_topic_is_gone(
    window_of: WindowOf, tmp_path: Path
) -> None:
    with Broker(tmp_path / "data", http=True) as broker:
        with zsq.Producer(broker.ipc) as producer, zsq.Admin(broker.ipc) as admin:
            producer.publish("clicks", b"one")
            producer.publish("orders", b"one")
            admin.create_channel("orders", "c")
        window = window_of(broker)
        page = window.open("#/topics/clicks")
        window.wait_figure("messages", "1")
        broker.stop()
        page.locator(".banner").get_by_text("Not connected:").wait_for()
        for place in ("#/topics/orders", "#/topics/orders/channels/c"):
            page.evaluate(f"location.hash = '{place}'")
            window.sees("The broker has not answered yet.")
            page.get_by_text("There is no").first.wait_for(state="hidden")
        started = time.monotonic()
        broker.start()
        # The page connects by itself, soon after the broker is back.
        window.wait_figure("depth", "1")
        assert time.monotonic() - started < 12
        page.get_by_text("The broker has not answered yet.").wait_for(state="hidden")
        window.complaints.clear()


def test_a_draft_survives_a_click_outside_its_dialog(window: Window, broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic("drafts")
    page = window.open("#/topics/drafts")
    window.press("Publish")
    body = window.dialog().locator("[name=body]")
    body.fill("a long draft")
    box = body.bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 12)
    page.mouse.down()
    page.mouse.move(5, box["y"] + 12)  # as when the text is selected out of the field
    page.mouse.up()
    page.mouse.click(5, 5)
    assert body.input_value() == "a long draft"
    assert body.is_visible()


def test_a_token_is_asked_for_and_kept(window_of: WindowOf, guarded: Broker) -> None:
    with zsq.Admin(guarded.ipc) as admin:
        admin.create_topic("clicks")
        admin.create_topic("secret")
    window = window_of(guarded)
    asked: list[Any] = []
    window.page.on("request", lambda request: asked.append(request))
    page = window.open("#/")
    window.dialog().locator("input").fill("wrong")
    window.dialog().get_by_role("button", name="Continue").click()
    window.dialog().get_by_text("Enter another token.").wait_for()
    page.keyboard.press("Escape")
    window.agree("Continue", ADMIN)
    window.row("secret").wait_for()
    assert page.evaluate("sessionStorage.getItem('zsq.token')") == ADMIN
    assert page.evaluate("localStorage.length") == 0
    assert not [request.url for request in asked if ADMIN in request.url]
    page.reload()
    window.row("secret").wait_for()
    assert page.locator("dialog").count() == 0


def test_a_user_who_may_only_read_cannot_act_on_messages(
    window_of: WindowOf, guarded: Broker
) -> None:
    with zsq.Producer(guarded.ipc) as producer:
        producer.publish("letters", b"one")
    window = window_of(guarded)
    page = window.open("#/topics/letters/messages")
    window.agree("Continue", READER)
    page.get_by_label("Select message 0", exact=True).check()
    for name, need in (
        ("Skip selected", "admin on this topic"),
        ("Edit and send again", "publish"),
    ):
        button = page.get_by_role("button", name=name, exact=True)
        assert button.is_disabled()
        assert button.get_attribute("title") == f"Your token does not permit this. It needs {need}."
    assert page.get_by_role("button", name="Copy body", exact=True).is_enabled()


def test_a_user_who_may_only_view_is_told_so(window_of: WindowOf, guarded: Broker) -> None:
    with zsq.Admin(guarded.ipc) as admin:
        for topic in ("clicks", "secret"):
            admin.create_topic(topic)
    window = window_of(guarded)
    page = window.open("#/topics/clicks")
    window.agree("Continue", VIEWER)
    window.wait_figure("messages", "0")
    for name in ("Publish", "Pause", "Empty", "Delete"):
        button = page.get_by_role("button", name=name, exact=True)
        assert button.is_disabled()
        assert "does not permit" in str(button.get_attribute("title"))
    page.get_by_role("link", name="Messages").click()
    window.sees("It needs the permission subscribe")
    page.get_by_role("link", name="ZSQ: all topics").click()
    window.row("clicks").wait_for()
    assert page.locator("tbody tr").count() == 1, "others are not shown"
    page.get_by_role("link", name="Alarms").click()
    window.sees("No alarm is raised")
    page.get_by_text("No receivers").wait_for(state="hidden")
    page.get_by_role("link", name="Processes").click()
    window.sees("Your token does not permit this")
