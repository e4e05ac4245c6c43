"""Tests of what an operator needs in an incident: dead letters by their error, actions on many
channels at once, and alarms that somebody looks after.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support import zsq_command
from support.broker import Broker, wait_for
from support.browser import Window

import zsq


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(
        tmp_path_factory.mktemp("incidents") / "data",
        *("--alarm-hold", "0.2s", "--alarm-dead-letters", "99", "--alarm-total-dead-letters", "6"),
        http=True,
    ) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[zsq.Admin]:
    with zsq.Admin(broker.ipc) as found:
        yield found


def letters(broker: Broker, admin: zsq.Admin, topic: str, *errors: str) -> None:
    """Let a message die with each of these errors."""
    admin.create_topic(topic)
    admin.create_channel(topic, "c", max_attempts=1, alarm_dead_letters=5)
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many(topic, [b"%d" % number for number in range(len(errors))])
    with zsq.Consumer(topic, "c", url=broker.ipc) as consumer:
        for _ in errors:
            message = consumer.receive(20)
            assert message is not None
            message.requeue(0, error=errors[int(message.body)])
    wait_for(lambda: len(dead(broker, f"{topic}.c.dead")) > 0, 20, "the dead-letter topic")
    wait_for(
        lambda: sum(one["count"] for one in dead(broker, f"{topic}.c.dead")) == len(errors),
        20,
        "all dead letters",
    )


def dead(broker: Broker, topic: str) -> list[dict[str, Any]]:
    url = f"http://127.0.0.1:{broker.http}/api/dead-letters"
    answer = httpx.get(url, params={"topic": topic})
    return list(answer.json()["groups"]) if answer.status_code == 200 else []


def test_dead_letters_are_grouped_by_error_counted_and_raise_an_alarm(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    many = [f"Traceback\n  in load\nKeyError: user {number}" for number in range(6)]
    letters(broker, admin, "poison", *many, "TimeoutError: no answer")
    window.open("#/")
    window.wait_figure("dead", "7")
    window.sees("7 dead letters (alarm above 5)")  # of the channel
    window.sees("7 dead letters (alarm above 6)")  # of the broker
    window.open("#/topics/poison.c.dead/errors")
    window.sees("of all 7 dead letters")
    window.wait_cell("KeyError: user #", "count", "6")
    window.wait_cell("TimeoutError: no answer", "count", "1")
    assert window.cell("TimeoutError: no answer", "from") == "poison / c"
    window.press("TimeoutError: no answer")
    page = window.page
    page.get_by_role("heading", name="TimeoutError: no answer").wait_for()
    found = page.get_by_role("table", name="Dead letters with this error").locator("tbody tr")
    assert found.count() == 1
    assert found.first.locator(".c-error").inner_text() == "TimeoutError: no answer"
    assert "group=" in page.url
    window.press("Redrive")
    window.agree("Redrive")
    window.sees("Redrive is done: 7 of 7 sent")
    window.open("#/topics/poison.c.dead/errors")
    window.sees("None waits to be sent back.")
    window.open("#/")
    window.wait_figure("dead", "0")


def test_only_the_newest_of_very_many_dead_letters_are_read(broker: Broker) -> None:
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many(
            "huge.dead",
            [b""] * 3_000,
            headers=[{"zsq-dead-error": f"E{'ab'[number > 2_500]}"} for number in range(3_000)],
        )
        producer.publish_many("large.dead", [bytes(1_000_000)] * 60)
    found = read(broker, "huge.dead")
    assert (found["read"], found["from"], found["all"]) == (1_000, 2_000, False)
    assert {one["error"]: one["count"] for one in found["groups"]} == {"Eb": 499, "Ea": 501}
    found = read(broker, "large.dead")
    assert 30 <= found["read"] < 60, "the bound of bytes"
    assert found["from"] + found["read"] == found["head"] == 60, "the newest ones"


def read(broker: Broker, topic: str) -> dict[str, Any]:
    url = f"http://127.0.0.1:{broker.http}/api/dead-letters"
    answer = httpx.get(url, params={"topic": topic}, timeout=30)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_many_channels_are_paused_emptied_and_deleted_and_a_failure_names_the_channel(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    admin.create_topic("many")
    for channel in ("a", "b", "c", "d"):
        admin.create_channel("many", channel)
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many("many", [b"m"] * 3)
    page = window.open("#/topics/many/channels")
    window.wait_cell("d", "depth", "3")
    for channel in ("a", "b"):
        page.get_by_label(f"Select many/{channel}").check()
    window.sees("2 channels selected")
    bar = page.get_by_role("group", name="Selected channels")
    bar.get_by_role("button", name="Pause", exact=True).click()
    window.sees("many/a, many/b")
    window.agree("Pause 2 channels")
    window.sees("2 channels are paused.")
    page.get_by_label("State", exact=True).select_option("paused")
    window.until(lambda: page.locator("tbody tr").count() == 2, "only the paused channels")
    assert "state=paused" in page.url
    assert not bar.is_visible()

    page.get_by_label("Select all channels that are shown").check()
    window.sees("2 channels selected")
    bar.get_by_role("button", name="Empty", exact=True).click()
    window.sees("In all: 6 messages waiting.")
    window.sees("many/a: 3 messages waiting")
    dialog = window.dialog()
    assert dialog.get_by_role("button", name="Empty 2 channels").is_disabled()
    admin.delete_channel("many", "b", force=True)  # by somebody else, while the dialog is open
    dialog.locator("input").first.fill("empty 2 channels")
    dialog.get_by_role("button", name="Empty 2 channels").click()
    window.sees("1 of 2 channels are emptied. These are not:")
    window.sees("many/b: ")
    depths = {
        one["channel_name"]: one["depth"] for one in admin.stats("many")["topics"][0]["channels"]
    }
    assert depths == {"a": 0, "c": 3, "d": 3}

    window.open("#/channels?q=many")
    page.get_by_label("Select many/c").focus()
    page.get_by_label("Select many/c").locator("xpath=ancestor::tr").locator("a").first.focus()
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("x")
    window.sees("2 channels selected")
    bar = page.get_by_role("group", name="Selected channels")
    bar.get_by_role("button", name="Delete", exact=True).click()
    window.agree("Delete 2 channels", "delete 2 channels")
    window.sees("2 channels are deleted.")
    left = [one["channel_name"] for one in admin.stats("many")["topics"][0]["channels"]]
    assert len(left) == 1


def test_topics_are_filtered_by_their_state(window: Window, admin: zsq.Admin) -> None:
    for topic in ("still", "held"):
        admin.create_topic(topic)
        admin.create_channel(topic, "c")
    admin.pause("held")
    page = window.open("#/?state=paused")
    window.row("held").wait_for()
    window.until(lambda: not window.row("still").count(), "the other topic to be left out")
    page.get_by_label("Select held").check()
    page.get_by_role("group", name="Selected topics").get_by_role("button", name="Unpause").click()
    window.sees("held is unpaused.")
    window.sees("Nothing is in the state “paused”.")
    page.get_by_label("State", exact=True).select_option("idle")
    window.row("still").wait_for()


def test_a_schedule_is_created_changed_and_run(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    admin.create_topic("reports")
    page = window.open("#/schedules")
    window.press("New schedule")
    dialog = window.dialog()
    dialog.locator("[name=schedule]").fill("nightly")
    dialog.locator("[name=topic]").fill("reports")
    dialog.locator("[name=cron]").fill("0 3 * *")
    dialog.locator("[name=body]").fill("work")
    dialog.get_by_role("button", name="Create").click()
    window.sees("has 4 fields, not 5")
    dialog.locator("[name=cron]").fill("0 3 * * *")
    dialog.locator("[name=timezone]").fill("Europe/Berlin")
    window.agree("Create")
    window.sees("The schedule nightly is added. It is due in ")
    window.wait_cell("nightly", "cron", "0 3 * * *")
    window.press("Run now")
    window.agree("Run now")
    window.sees("The message of nightly is published.")
    with zsq.Reader("reports", url=broker.ipc) as reader:
        assert reader.message(0).body == b"work"
    window.press("Edit")
    dialog = window.dialog()
    assert dialog.locator("[name=timezone]").input_value() == "Europe/Berlin"
    dialog.locator("[name=cron]").fill("30 4 * * *")
    dialog.locator("[name=missed]").select_option("skip")
    window.agree("Save")
    window.wait_cell("nightly", "cron", "30 4 * * *")
    (row,) = admin.schedule_list()
    assert (row["missed"], row["body_bytes"], row["published_count"]) == ("skip", 4, 0)
    done = [one["options"].get("do") for one in admin.audit() if one["action"] == "schedule"]
    assert done[:3] == ["set", "run", "add"]
    page.get_by_role("button", name="Remove").click()
    window.agree("Remove the schedule")


def test_an_alarm_is_acknowledged_and_silenced_also_over_a_restart(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    admin.create_topic("loud")
    for channel in ("a", "b"):
        admin.create_channel("loud", channel, alarm_depth=1)
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many("loud", [b"m"] * 5)
    page = window.open("#/alarms")
    raised = page.get_by_role("region", name="Raised now").locator("li")
    first, second = raised.filter(has_text="loud / a"), raised.filter(has_text="loud / b")
    first.wait_for()
    second.wait_for()
    window.until(lambda: page.title() == "(2) Alarms · ZSQ", "the number in the title")
    first.get_by_role("button", name="Acknowledge").click()
    window.sees("acknowledged")
    window.until(lambda: page.title() == "(1) Alarms · ZSQ", "one alarm less")
    second.get_by_role("button", name="Silence").click()
    window.agree("Silence")
    window.sees("silenced")
    window.until(lambda: page.title() == "Alarms · ZSQ", "no alarm")
    assert "(acknowledged by " in zsq_command.run_text("--url", broker.ipc, "alarms").stdout
    assert broker.stop() == 0
    broker.start()
    wait_for(lambda: len(silenced(admin)) == 2, 60, "the silences after the restart")
    assert [bool(one["until_ns"]) for one in silenced(admin)] == [False, True]
    done = zsq_command.run_text("--url", broker.ipc, "alarms", "unack", "loud")
    assert done.returncode == 0, done.stderr
    assert silenced(admin) == []
    first.wait_for()
    window.until(lambda: page.title() == "(2) Alarms · ZSQ", "both alarms again")
    for channel in ("a", "b"):
        admin.delete_channel("loud", channel, force=True)


def silenced(admin: zsq.Admin) -> list[dict[str, Any]]:
    rows = sorted(admin.stats()["alarms"], key=lambda row: str(row["channel"]))
    return [row["silence"] for row in rows if "silence" in row]


def test_a_consumer_is_disconnected(window: Window, broker: Broker, admin: zsq.Admin) -> None:
    admin.create_topic("stuck")
    with zsq.Producer(broker.ipc) as producer:
        producer.publish("stuck", b"m")
    with zsq.Consumer("stuck", "c", url=broker.ipc, label="hangs") as consumer:
        assert consumer.receive(20) is not None
        window.open("#/topics/stuck/channels/c")
        window.row("hangs").get_by_role("button", name="Disconnect").click()
        window.sees("A client that still runs subscribes again by itself.")
        window.agree("Disconnect")
        window.sees("hangs is disconnected.")
        again = consumer.receive(20)
        assert again is not None, "it has subscribed again"
        again.finish(sync=True)


def test_orders_filters_and_choices_are_in_the_address(
    window: Window, broker: Broker, admin: zsq.Admin
) -> None:
    admin.create_topic("kept")
    for channel in ("ab", "bc"):
        admin.create_channel("kept", channel)
    with zsq.Producer(broker.ipc) as producer:
        producer.publish_many("kept", [b"m0", b"m1", b"m2"])
    page = window.open("#/topics/kept")
    for title, span in (("30 days", "30d"), ("1 day", "1d"), ("5 min", "5m")):
        with page.expect_response(f"**/api/history?*span={span}*") as said:
            window.press(title)
        assert said.value.ok, said.value.text()
    page = window.open("#/topics/kept/channels?q=a")
    window.row("ab").wait_for()
    assert page.get_by_label("Filter channels").input_value() == "a"
    assert not window.row("bc").count()
    page.get_by_label("Filter channels").fill("bc")
    window.row("bc").wait_for()
    assert page.url.endswith("?q=bc")
    for place, column, title in (
        ("#/processes", "Restarts", "Processes"),
        ("#/topics/kept/chunks", "Size", "Chunks of kept"),
        ("#/topics/kept/channels/ab", "Finished", "Consumers of ab"),
    ):
        window.open(place)
        table = page.get_by_role("table", name=title, exact=True)
        with zsq.Consumer("kept", "ab", url=broker.ipc):
            button = table.get_by_role("button", name=column, exact=True)
            button.click()
            assert "sort=-" in page.url
            page.reload()
            header = table.locator("th[aria-sort=descending]")
            header.wait_for()
            assert header.inner_text().startswith(column)
    window.open("#/topics/kept/search?text=m")
    page.locator("tbody tr button", has_text="1").click()
    assert page.url.endswith("at=1")
    page.reload()
    page.locator(".message[data-offset='1']").wait_for()
    assert page.url.endswith("at=1")


def test_a_dialog_that_was_left_tells_what_became_of_its_request(
    window: Window, admin: zsq.Admin
) -> None:
    admin.create_topic("left")
    admin.create_channel("left", "c")
    page = window.open("#/topics/left/channels/c")
    window.press("Pause")
    dialog = window.dialog()
    held: list[Any] = []
    page.route("**/api/channel/pause*", lambda route: held.append(route))
    dialog.get_by_role("button", name="Pause", exact=True).click()
    window.until(lambda: held, "the request")
    page.evaluate("location.hash = '#/channels'")
    dialog.wait_for(state="detached")
    held[0].continue_()
    window.sees("Done, after its dialog was closed: Pause left/c.")
