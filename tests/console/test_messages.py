"""Tests of the console's tabs with messages: decoded bodies, search, download and the live tail."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgpack
from support.broker import Broker, wait_for
from support.browser import Window

import zsq

SCRIPT = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def body_of(window: Window) -> Any:
    return window.page.locator(".body-view")


def test_bytes_are_published_and_shown_in_every_form(window: Window, broker: Broker) -> None:
    with zsq.Admin(broker.ipc) as admin:
        admin.create_topic("forms")
    window.open("#/topics/forms/messages")
    body = msgpack.packb({"name": SCRIPT, "list": [1, b"\xff"]})
    for form, text in (("Hex", "0"), ("Hex", body.hex(" "))):
        window.press("Publish")
        dialog = window.dialog()
        dialog.locator("[name=body]").fill(text)
        dialog.get_by_role("radio", name=form).check()
        dialog.get_by_role("button", name="Publish").click()
        if text == "0":
            window.sees("The body is not hex.")
            window.page.keyboard.press("Escape")
    window.page.locator(".toast a").click()
    shown = body_of(window)
    shown.get_by_text(SCRIPT).wait_for()
    assert json.loads(shown.inner_text()) == {"name": SCRIPT, "list": [1, {"$bytes": "ff"}]}
    assert window.page.locator(".body-view img, .body-view script").count() == 0
    window.press("JSON")
    window.sees("It is not UTF-8.")
    window.press("Avro")
    window.sees("Avro needs a schema.")
    window.page.get_by_label("Avro schema", exact=True).fill('{"type": "fixed"}')
    window.press("Use this schema")
    window.sees("A fixed has no name.")
    fixed = {"type": "fixed", "name": "all", "size": len(body)}
    window.page.get_by_label("Avro schema", exact=True).fill(json.dumps(fixed))
    window.press("Use this schema")
    window.until(lambda: body.hex() in shown.inner_text(), "the body by its schema")
    window.open("#/topics/forms/messages")
    window.until(lambda: "$bytes" in shown.inner_text(), "the schema to be kept")


def test_a_body_that_does_not_have_the_chosen_form_says_why(window: Window, broker: Broker) -> None:
    long = json.dumps({"rows": ["x" * 1_000] * 40, "last": SCRIPT})
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many("other", [b"\x01\x02\x03", long.encode()]).wait(20)
    page = window.open("#/topics/other/messages?offset=0")
    shown = body_of(window)
    window.press("MessagePack")
    window.sees("2 bytes follow after the first value")
    assert shown.get_attribute("data-kind") == "hex"
    window.row("1").click()
    window.press("JSON")
    window.sees("Only the first 16.0")
    window.sees("“Show more of it” loads the rest.")
    assert page.get_by_text("It is not JSON").count() == 0
    window.press("Show more of it")
    window.until(lambda: shown.get_attribute("data-kind") == "json", "the whole body as JSON")
    assert json.loads(shown.inner_text()) == json.loads(long)


def test_pages_of_messages_say_what_does_not_exist(window: Window, broker: Broker) -> None:
    def publish(*bodies: bytes) -> None:
        with zsq.Producer(broker.ipc) as producer:
            producer.publish_many("gone", bodies).wait(20)

    publish(b"a", b"b")
    page = window.open("#/topics/gone/messages?offset=7")
    window.sees("The topic ends at offset 2.")
    assert not page.get_by_text("Publish the first one").is_visible()
    window.open("#/topics/gone/search?from_ms=60000&to_ms=1000")
    window.sees("From must not be later than To.")
    nothing = page.get_by_text("Nothing found")
    assert not nothing.is_visible()
    page.locator("[name=from]").fill("")
    page.locator("[name=to]").fill("")
    page.locator("[name=text]").fill("none")
    window.press("Search")
    nothing.wait_for()
    page.locator("[name=field]").fill("=7")
    window.press("Search")
    window.sees("field must be PATH or PATH=VALUE")
    nothing.wait_for(state="hidden")
    page.locator("[name=field]").fill("")

    def created_again(route: Any) -> None:
        told = route.fetch().json()
        if "offset=" not in route.request.url:
            with zsq.Admin(broker.ipc) as admin:
                admin.delete_topic("gone", force=True)
            publish(b"new")
            told |= {"next_offset": 1, "done": False}
        route.fulfill(json=told)

    def deleted(route: Any) -> None:
        if "offset=" in route.request.url:
            text = "E_NOT_FOUND topic 'gone' does not exist"
            route.fulfill(status=404, json={"message": text})
        else:
            route.fulfill(json=route.fetch().json() | {"done": False})

    page.route("**/api/search?*", created_again)
    window.press("Search")
    window.sees("0 messages found. Searched to the end, offset 2")
    window.sees("1 message cannot be read.")
    page.unroute("**/api/search?*")
    page.route("**/api/search?*", deleted)
    window.press("Search")
    window.sees("topic 'gone' does not exist")
    assert page.locator("#page").get_by_text("messages found.").count() == 0
    assert not nothing.is_visible()


def test_messages_are_searched_downloaded_and_followed(window: Window, broker: Broker) -> None:
    def publish(*bodies: str) -> None:
        with zsq.Producer(broker.ipc) as producer:
            producer.publish_many("found", [one.encode() for one in bodies]).wait(20)

    publish(*(f'{{"n": {at}, "text": "{SCRIPT[:4]} Row {at % 300}"}}' for at in range(600)))
    page = window.open("#/topics/found/search")
    page.locator("[name=text]").fill("row 7")
    page.get_by_label("Ignore case").check()
    page.locator("[name=field]").fill("n=7")
    window.press("Search")
    window.sees("1 message found. Searched to the end, offset 600")
    assert '"n": 7' in body_of(window).inner_text()
    page.locator("[name=field]").fill("")
    page.locator("[name=text]").fill(SCRIPT[:4])
    window.press("Search")
    window.sees("200 messages found. More may follow after offset 200")
    window.press("Next")
    window.sees("200 messages found. More may follow after offset 400")
    with page.expect_download() as saved:
        window.press("Download lines")
    lines = saved.value.path().read_text().splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [*range(600)]

    def tails() -> float:
        metrics = httpx.get(f"http://127.0.0.1:{broker.http}/metrics").text
        [line] = [
            one for one in metrics.splitlines() if one.startswith("zsq_http_requests_active ")
        ]
        return float(line.split()[1])

    before = tails()
    page.get_by_role("link", name="Tail", exact=True).click()
    window.sees("Following.")
    wait_for(lambda: tails() > before, what="the tail to begin")
    publish("new one", SCRIPT)
    window.row(SCRIPT).wait_for()
    window.row("new one").wait_for()
    window.press("Stop")
    window.sees("Stopped. 2 messages shown.")
    wait_for(lambda: tails() <= before, what="the tail to end")
    with zsq.Admin(broker.ipc) as admin:
        assert admin.topics()["found"] == [], "nothing of this created a channel"
