"""Tests of every action of the console, done as a user does it: the dialog says what the action
will lose, and afterwards the broker has done it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.broker import Broker, wait_for
from support.browser import Window

import zsq


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[zsq.Admin]:
    with zsq.Admin(broker.ipc) as found:
        yield found


def filled(broker: Broker, admin: zsq.Admin, topic: str, *channels: str, count: int = 3) -> None:
    """Create a topic with messages. Each test uses its own topic, so that tests do not disturb each
    other.
    """
    admin.create_topic(topic)
    for channel in channels:
        admin.create_channel(topic, channel)
    with zsq.Producer(broker.ipc) as producer:
        for number in range(count):
            producer.publish(topic, b"m%d" % number)


def channel_of(admin: zsq.Admin, topic: str, channel: str) -> dict[str, Any]:
    [found] = [
        one for one in admin.stats(topic)["topics"][0]["channels"] if one["channel_name"] == channel
    ]
    return dict(found)


def test_to_empty_what_is_empty_asks_for_no_name(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "nothing", "c", count=0)
    window.open("#/topics/nothing")
    window.press("Empty")
    window.sees("Nothing waits in the topic itself")
    window.dialog().locator("label.field").wait_for(state="hidden")
    assert window.dialog().get_by_role("button", name="Empty").is_disabled()


def test_a_topic_is_created_and_published_to(window: Window, admin: zsq.Admin) -> None:
    page = window.open("#/")
    window.press("New topic")
    window.dialog().locator("input").first.fill("bad name")
    window.dialog().get_by_role("button", name="Create").click()
    assert page.locator("dialog[open]").count() == 1, "a name that cannot be is not sent"
    window.agree("Create", "orders")
    window.page.get_by_role("heading", name="orders", exact=True).wait_for()
    window.press("Publish")
    window.dialog().locator("[name=body]").fill("hello")
    window.agree("Publish")
    window.wait_figure("messages", "1")
    window.press("Publish")
    window.dialog().locator("[name=body]").fill("a\n\nb\nc")
    window.dialog().locator("input[type=checkbox]").check()
    window.agree("Publish")
    window.wait_figure("messages", "4")
    window.press("Publish")
    window.dialog().locator("[name=body]").fill("later")
    window.dialog().locator("input[name=delay]").fill("soon")
    window.dialog().get_by_role("button", name="Publish").click()
    window.sees("Enter a delay: a number with s, m, h or d, such as 30s.")
    window.dialog().locator("input[name=delay]").fill("30m")
    window.agree("Publish")
    window.sees("Published: it is on disk, and delayed.")
    window.wait_figure("delayed", "1")
    assert admin.delayed_count("orders")["messages"] == 1


def test_a_message_is_published_with_key_tag_headers_and_delay(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "parcels", count=0)
    window.open("#/topics/parcels")
    window.press("Publish")
    dialog = window.dialog()
    dialog.locator("[name=body]").fill("caf\u00e9")
    dialog.locator("[name=key]").fill("customer 7")
    dialog.locator("[name=tag]").fill("eu")
    dialog.locator("[name=headers]").fill("trace")
    dialog.get_by_role("button", name="Publish").click()
    window.sees("“trace” is not a header. Write “name: value”, one header per line.")
    dialog.locator("[name=headers]").fill("trace: a:b\n\n__proto__: x\nempty:")
    window.agree("Publish")
    window.sees("Published: it is on disk, at offset 0.")
    with zsq.Reader("parcels", url=broker.ipc) as reader:
        found = reader.message(0)
    assert (found.body, found.key, found.tag) == ("caf\u00e9".encode(), b"customer 7", "eu")
    assert found.headers == {"trace": "a:b", "__proto__": "x", "empty": ""}
    window.press("Publish")
    dialog = window.dialog()
    dialog.locator("[name=body]").fill("a\nb\n")
    dialog.locator("input[type=checkbox]").check()
    dialog.locator("[name=tag]").fill("later")
    dialog.locator("[name=delay]").fill("400d")
    dialog.get_by_role("button", name="Publish").click()
    window.sees("(366 days)")
    dialog.locator("[name=delay]").fill("365d")
    window.agree("Publish")
    window.wait_figure("delayed", "2")
    listed = admin.delayed_list("parcels")
    assert [(bytes(one["body"]), one["tag"]) for one in listed] == [
        (b"a", b"later"),
        (b"b", b"later"),
    ]
    assert all(abs(one["due_ns"] / 1e9 - time.time() - 365 * 86_400) < 600 for one in listed)


def test_a_topic_is_paused_unpaused_and_emptied(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "held")
    window.open("#/topics/held")
    window.press("Pause")
    window.sees("Publishers continue.")
    window.agree("Pause")
    window.page.locator(".pill", has_text="paused").wait_for()
    window.press("Unpause")
    window.page.locator(".pill", has_text="paused").wait_for(state="detached")
    window.press("Empty")
    window.sees("3 messages")
    assert window.dialog().get_by_role("button", name="Empty").is_disabled(), (
        "only after its name is typed"
    )
    window.agree("Empty", "held")
    window.wait_figure("backlog", "0")
    assert admin.stats("held")["topics"][0]["depth"] == 0


def test_retention_is_changed_and_a_wrong_value_is_refused(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "kept")
    window.open("#/topics/kept/keeping")
    window.sees("1.00 GiB")
    window.press("Change")
    dialog = window.dialog()
    dialog.locator("[name=keep_time_s]").fill("a week")
    dialog.get_by_role("button", name="Save").click()
    window.sees("“a week” is not a valid value for “Finished: time kept”.")
    dialog.locator("[name=keep_time_s]").fill("7d")
    dialog.locator("[name=keep_bytes]").fill("none")
    window.agree("Save")
    window.sees("7 d")
    retention = admin.stats("kept")["topics"][0]["settings"]
    assert (retention["keep_time_s"], retention["keep_bytes"]) == (7 * 86400, -1)


def test_a_topic_is_deleted_only_after_confirmation(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "old", "archive")
    window.open("#/topics/old")
    window.press("Delete")
    window.sees("This cannot be undone.")
    window.sees("3 messages")
    window.page.keyboard.press("Escape")
    window.page.locator("dialog").wait_for(state="detached")
    assert window.page.evaluate("document.activeElement.textContent") == "Delete", (
        "the focus goes back where it was"
    )
    window.press("Delete")
    window.agree("Delete for good", "old")
    window.sees("old is deleted.")
    window.row("orders").or_(window.page.locator(".empty")).first.wait_for()
    assert "old" not in admin.topics()


def test_a_channel_is_created_configured_and_deleted(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "work", "first")
    window.open("#/topics/work")
    window.press("New channel")
    window.dialog().get_by_role("radio", name="earliest").check()
    window.agree("Create", "second")
    window.page.get_by_role("heading", name="second", exact=True).wait_for()
    window.wait_figure("depth", "3")
    window.press("Settings")
    window.dialog().locator("[name=max_attempts]").fill("5")
    window.dialog().locator("[name=alarm_age_s]").fill("15m")
    window.agree("Save")
    window.page.get_by_role("link", name="Settings and counters").click()
    window.sees("15 m")
    window.sees("work.second.dead")
    window.sees("since the channel was created")
    settings = channel_of(admin, "work", "second")["settings"]
    assert (settings["max_attempts"], settings["alarm_age_s"]) == (5, 900)
    window.press("Delete")
    window.sees("3 messages")
    window.agree("Delete for good", "work/second")
    window.row("first").wait_for()
    window.page.locator("tbody").get_by_text("second", exact=True).wait_for(state="detached")


def test_a_channel_is_paused_moved_and_emptied(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "moved", "c")
    window.open("#/topics/moved/channels/c")
    window.wait_figure("depth", "3")
    window.press("Pause")
    window.agree("Pause")
    window.page.locator(".pill", has_text="paused").wait_for()
    assert channel_of(admin, "moved", "c")["paused"] is True
    window.press("Unpause")
    window.page.locator(".pill", has_text="paused").wait_for(state="detached")
    window.press("Seek")
    window.dialog().get_by_role("radio", name="latest").check()
    window.sees("3 messages are skipped for this channel.")
    window.dialog().get_by_label("Type moved/c to confirm").fill("moved/c")
    window.agree("Seek")
    window.wait_figure("depth", "0")
    window.press("Seek")
    window.dialog().get_by_role("radio", name="to an offset").check()
    window.dialog().get_by_label("Offset", exact=True).fill("1")
    window.sees("2 messages are delivered again, including finished ones.")
    window.agree("Seek")
    window.sees("moved/c continues at offset 1.")
    window.wait_figure("depth", "2")
    window.press("Empty")
    window.sees("2 messages")
    window.agree("Empty", "moved/c")
    window.wait_figure("depth", "0")
    assert channel_of(admin, "moved", "c")["depth"] == 0


def test_a_dialog_closes_with_its_page_and_names_its_topic(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    """Two topics have a channel of the same name. The wrong one must not be emptied."""
    filled(broker, admin, "html", "archive")
    filled(broker, admin, "binary", "archive")
    page = window.open("#/topics/html/channels/archive")
    page.get_by_role("heading", name="archive", exact=True).wait_for()
    page.evaluate("location.hash = '#/topics/binary/channels/archive'")
    page.get_by_role("link", name="binary", exact=True).wait_for()
    for button in ("Empty", "Seek", "Settings", "Delete"):
        window.press(button)
        assert "binary/archive" in window.dialog().get_by_role("heading").inner_text()
        page.go_back()
        page.locator("dialog").wait_for(state="detached")
        page.get_by_role("link", name="html", exact=True).wait_for()
        page.go_forward()
        page.get_by_role("link", name="binary", exact=True).wait_for()
    window.press("Empty")
    window.dialog().locator("input").fill("archive")
    assert window.dialog().get_by_role("button", name="Empty").is_disabled()
    window.agree("Empty", "binary/archive")
    window.wait_figure("depth", "0")
    assert channel_of(admin, "html", "archive")["depth"] == 3


def test_an_action_is_refused_when_more_is_affected_than_its_dialog_has_shown(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "grows", "c")
    window.open("#/topics/grows/channels/c")
    window.press("Empty")
    window.sees("3 messages waiting")
    with zsq.Producer(broker.ipc) as producer:
        producer.publish("grows", b"one more")
    dialog = window.dialog()
    dialog.locator("input").fill("grows/c")
    dialog.get_by_role("button", name="Empty").click()
    window.sees("the dialog showed 3 messages, and now 4 are affected. Nothing was done.")
    window.sees("4 messages waiting")
    assert channel_of(admin, "grows", "c")["depth"] == 4
    admin.delete_topic("grows", force=True)
    filled(broker, admin, "grows", "c", count=2)
    dialog.get_by_role("button", name="Empty").click()
    window.sees("the topic was deleted and created again after this dialog was opened.")
    window.sees("2 messages waiting")
    assert dialog.get_by_role("button", name="Empty").is_disabled(), "it must be typed again"
    window.agree("Empty", "grows/c")
    wait_for(lambda: channel_of(admin, "grows", "c")["depth"] == 0, what="the empty channel")


def test_a_seek_says_its_effect_before_it_can_be_done(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "sought", "c")
    window.open("#/topics/sought/channels/c")
    window.press("Seek")
    dialog = window.dialog()
    window.sees("Choose a position to see what the seek does.")
    assert (
        dialog.get_by_role("radio").evaluate_all("all => all.filter(one => one.checked).length")
        == 0
    )
    seek = dialog.get_by_role("button", name="Seek")
    assert seek.is_disabled()
    dialog.get_by_role("radio", name="to an offset").check()
    offset = dialog.get_by_label("Offset", exact=True)
    assert offset.bounding_box()["width"] > 200
    offset.fill("500")
    window.sees("offset 500 is beyond the end of the topic, offset 3;")
    assert seek.is_disabled()
    dialog.get_by_role("radio", name="to a time").check()
    assert dialog.get_by_label("Time", exact=True).bounding_box()["width"] > 200
    dialog.get_by_label("Time", exact=True).fill("2090-01-01T00:00:00")
    window.sees("this time has not come yet; to skip all waiting messages, take latest.")
    assert seek.is_disabled()
    dialog.get_by_role("radio", name="earliest").check()
    window.sees("From offset 0 to 0.")
    window.until(seek.is_enabled, "a seek without a loss needs no typed name")
    dialog.get_by_role("radio", name="latest").check()
    window.sees("3 messages are skipped for this channel.")
    assert seek.is_disabled()
    dialog.get_by_label("Type sought/c to confirm").fill("sought/c")
    window.agree("Seek")
    window.wait_figure("depth", "0")


def test_one_or_all_delayed_messages_are_cancelled(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "timers", count=0)
    with zsq.Producer(broker.ipc) as producer:
        for number in range(3):
            producer.publish("timers", b"wake %d" % number, delay=3600 + 60 * number)
    window.open("#/topics/timers/delayed")
    window.row("wake 1").get_by_role("button").click()
    window.sees("It will not be published")
    window.agree("Cancel the message")
    window.page.get_by_text("wake 1", exact=True).wait_for(state="detached")
    assert admin.delayed_count("timers")["messages"] == 2
    window.press("Cancel all")
    window.agree("Cancel all of them", "timers")
    window.sees("Nothing is delayed")
    assert admin.delayed_count("timers")["messages"] == 0


def test_a_topic_is_closed_drained_and_deleted_step_by_step(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "retired", "c")
    window.open("#/topics/retired/removal")
    window.page.locator("li.now").get_by_role("button", name="Close to publishers").click()
    window.agree("Close to publishers")
    window.page.locator("li.now", has_text="Let it drain").wait_for()
    window.page.locator("li.now").get_by_text("3 ").first.wait_for()
    with pytest.raises(zsq.Refused), zsq.Producer(broker.ipc) as producer:
        producer.publish("retired", b"no more")
    with zsq.Consumer("retired", "c", url=broker.ipc) as consumer:
        for _ in range(3):
            message = consumer.receive(timeout=10)
            assert message is not None
            message.finish()
    window.page.locator("li.now").get_by_role("button", name="Close to consumers").click()
    window.page.locator("li.now", has_text="Delete it").wait_for()
    window.page.locator("li.now").get_by_role("button", name="Delete it").click()
    window.agree("Delete it", "retired")
    window.sees("retired is deleted.")
    assert "retired" not in admin.topics()


def test_dead_letters_are_sent_back_to_their_channel(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    admin.create_topic("jobs")
    admin.create_channel("jobs", "c", max_attempts=1)
    with zsq.Producer(broker.ipc) as producer:
        producer.publish("jobs", b"fails")
    with zsq.Consumer("jobs", "c", url=broker.ipc) as consumer:
        message = consumer.receive(timeout=10)
        assert message is not None
        message.requeue(0, error="<b>broken</b>\n  in line 7\nno \u202elive")
        wait_for(
            lambda: channel_of(admin, "jobs", "c")["dead_letter_count"] == 1, what="the dead letter"
        )
    window.open("#/topics/jobs/channels/c")
    window.wait_figure("dead", "1")
    window.sees("1 dead letter waits in")
    window.page.get_by_role("link", name="jobs.c.dead").click()
    page = window.page
    trace = page.get_by_label("Error", exact=True)
    assert trace.inner_text().split("\n") == ["<b>broken</b>", "  in line 7", "no ⟨U+202E⟩live"]
    body = page.get_by_label("Body", exact=True)
    assert trace.bounding_box()["y"] < body.bounding_box()["y"]
    stored = page.locator("dt", has_text="zsq-dead-time").locator("xpath=following-sibling::dd[1]")
    assert ":" in stored.inner_text(), "a time, and not nanoseconds"
    window.press("Redrive")
    window.agree("Redrive")
    window.sees("Redrive is done: 1 of 1 sent (1 to jobs / c).")
    window.open("#/topics/jobs/channels/c")
    window.wait_figure("depth", "1")
    window.wait_figure("dead", "1")
    for _ in range(2):  # when the second answer comes, the page shows the first one
        with window.page.expect_response("**/api/preview*"):
            pass
    assert not window.page.get_by_text("1 dead letter waits in").is_visible()


def select(window: Window, *offsets: int) -> None:
    for offset in offsets:
        window.page.get_by_label(f"Select message {offset}", exact=True).check()


def test_chosen_messages_of_a_channel_are_skipped(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "poison", "c", "other", count=5)
    page = window.open("#/topics/poison/channels/c/held")
    skip = page.get_by_role("button", name="Skip selected")
    select(window, 1, 3)
    window.sees("2 messages selected")
    skip.click()
    window.sees("Skip 2 messages of poison/c?")
    window.sees("2 messages (offsets 1, 3) count as finished for channel c")
    admin.skip("poison", "c", [3])
    window.agree("Skip")
    window.sees("poison/c has skipped 1 message.")
    page.get_by_label("Select message 1", exact=True).wait_for(state="detached")
    assert skip.is_disabled(), "nothing is selected"
    assert (admin.unfinished("poison", "c"), admin.unfinished("poison", "other")) == (3, 5)
    page = window.open("#/topics/poison/search")
    page.locator("[name=text]").fill("m2")
    window.press("Search")
    select(window, 2)
    window.press("Skip selected")
    assert window.dialog().get_by_role("button", name="Skip").is_disabled()
    window.dialog().get_by_label("Channel", exact=True).select_option("other")
    window.sees("1 messages (offset 2) count as finished for channel other")
    window.agree("Skip")
    window.sees("poison/other has skipped 1 message.")
    assert admin.unfinished("poison", "other") == 4
    audit = [one for one in admin.audit(count=10, topic="poison") if one["action"] == "skip"]
    assert [one["channel"] for one in audit] == ["other", "c", "c"]


def test_an_ordered_channel_says_what_blocks_it(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    admin.create_topic("lines")
    admin.create_channel("lines", "c", ordered=True)
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many("lines", [b"%d" % n for n in range(9)], keys=[b"a", b"b", b"b"] * 3)
    with zsq.Consumer("lines", "c", url=broker.ipc) as consumer:
        for attempt in (1, 2, 2):
            message = consumer.receive(timeout=10)
            assert message is not None
            if message.key == b"b" and message.attempts == 1:
                message.requeue(0, error="first")
            elif message.key == b"b":
                assert attempt == 2
                message.requeue(600, error="no such <b>customer</b>")
        consumer.flush()
        wait_for(lambda: channel_of(admin, "lines", "c")["deferred_count"] == 1, what="the delay")
        [blocker] = channel_of(admin, "lines", "c")["blocked_by"]
        assert blocker == {
            "offset": 1, "waiting": 5, "attempts": 2, "error": "no such <b>customer</b>",
        }  # fmt: skip
        page = window.open("#/topics/lines/channels/c")
        window.sees("Blocked by offset 1: attempt 2 failed, and 5 messages of its key wait.")
        window.sees("Last error: no such <b>customer</b>")
        window.page.locator(".pill", has_text="ordered").first.wait_for()
        page.get_by_role("link", name="Held messages").first.click()
        first = page.locator("tbody tr").first
        first.locator("td.c-error").get_by_text("no such <b>customer</b>").wait_for()
        shown = {
            key: first.locator(f"td.c-{key}").inner_text() for key in ("offset", "blocks", "key")
        }
        assert shown == {"offset": "1", "blocks": "5", "key": "b"}
        select(window, 1)
        window.press("Skip selected")
        window.agree("Skip")
        message = consumer.receive(timeout=10)
        while message is not None and message.offset != 2:
            message.finish()
            message = consumer.receive(timeout=10)
        assert message is not None, "the channel goes on with the next message of the key"


def test_chosen_dead_letters_are_sent_back_discarded_or_edited(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    admin.create_topic("parts")
    admin.create_channel("parts", "c", max_attempts=1)
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many(
            "parts", [b"zero", b"one", b"two"], key=b"k", tag="t", headers={"n": 7, "raw": b"\xff"}
        )
    with zsq.Consumer("parts", "c", url=broker.ipc) as consumer:
        for _ in range(3):
            message = consumer.receive(timeout=10)
            assert message is not None
            message.reject("why")
    wait_for(lambda: channel_of(admin, "parts", "c")["dead_letter_count"] == 3, what="dead letters")
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = window.open("#/topics/parts.c.dead/messages")
    select(window, 0)
    window.press("Redrive selected")
    window.sees("Redrive 1 dead letter of parts.c.dead?")
    window.agree("Redrive")
    window.sees("Redrive is done: 1 of 1 sent (1 to parts / c).")
    select(window, 1)
    window.press("Discard selected")
    window.sees("1 dead letters (offset 1) are finished here without being sent back.")
    window.agree("Discard")
    window.sees("1 dead letter of parts.c.dead is discarded.")
    assert admin.unfinished("parts.c.dead", "redrive") == 1
    page.get_by_role("button", name="2", exact=True).click()
    window.press("Copy body")
    window.sees("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == "two"
    window.press("Edit and send again")
    window.sees("Send again to parts")
    window.sees("These headers stay as they are: raw.")
    dialog = window.dialog()
    assert dialog.locator("[name=headers]").input_value() == "n: 7\nzsq-channel: c"
    dialog.locator("[name=body]").fill("mended")
    window.agree("Send")
    window.sees("Published: it is on disk, at offset 4.")
    with zsq.Reader("parts", url=broker.ipc) as reader:
        found = reader.message(4)
    assert (found.body, found.key, found.tag, found.only_channel) == (b"mended", b"k", "t", "c")
    assert found.headers == {"n": 7, "raw": b"\xff"}


def test_a_large_body_is_cut_and_downloaded_whole(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "large", count=0)
    with zsq.Producer(broker.ipc) as producer:
        producer.publish("large", b"x" * 20_000)
    page = window.open("#/topics/large/messages")
    window.sees("The first 16.0\u2009KiB of 19.5\u2009KiB; download it to see the rest.")
    with page.expect_download() as saved:
        window.press("Download")
    assert saved.value.path().read_bytes() == b"x" * 20_000


def test_a_refused_action_shows_the_reason(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "shut")
    admin.close_topic("shut", to="publishers")
    window.open("#/topics/shut")
    window.press("Publish")
    window.dialog().locator("[name=body]").fill("no")
    window.dialog().get_by_role("button", name="Publish").click()
    window.dialog().get_by_text("Open the topic again to continue.").wait_for()
    assert window.dialog().locator("[name=body]").input_value() == "no", (
        "what was written is not lost"
    )


def test_the_audit_log_names_the_actions_of_the_console(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    filled(broker, admin, "seen")
    window.open("#/topics/seen")
    window.press("Pause")
    window.agree("Pause")
    window.open("#/audit")
    window.page.locator("tbody tr", has_text="pause").filter(has_text="seen").first.wait_for()
