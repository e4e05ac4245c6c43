"""Tests of the console's pages of the cluster, with two real brokers, of which one is killed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from support.broker import Broker
from support.browser import Window
from support.cluster import Cluster, running

import zsq

MARKUP: Final = '<img src=x onerror="alert(1)"><script>alert(2)</script>'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two brokers with a topic of four parts, two at each, and one message in each part."""
    with running(tmp_path_factory.mktemp("cluster")) as made:
        with zsq.Admin(made.url) as admin:
            admin.create_topic("clicks", parts=4, brokers=[0, 1])
            admin.create_channel("clicks", "archive")
            admin.close_topic("clicks#2")
        with zsq.Producer(made.url) as producer:
            for number in range(12):
                producer.publish("clicks", b"x", key=b"k%d" % number)
        yield made


@pytest.fixture
def window(window_of: Callable[..., Window], cluster: Cluster) -> Window:
    return window_of(cluster.brokers[0])


def panel(window: Window, name: str) -> Any:
    return window.page.get_by_role("region", name=name, exact=True)


def cells(window: Window, name: str, column: str) -> list[str]:
    """Return the cells of a column of a panel's table, without the spaces around them."""
    found = panel(window, name).locator(f"tbody td.c-{column}").all_inner_texts()
    return [str(one).strip() for one in found]


def test_the_page_shows_brokers_topics_and_parts(window: Window, cluster: Cluster) -> None:
    page = window.open("#/cluster")
    window.until(lambda: cells(window, "Brokers", "role") == ["primary"] * 2, "both brokers")
    assert cells(window, "Brokers", "number") == ["0 this one", "1"]
    assert cells(window, "Brokers", "places") == [one.tcp for one in cluster.brokers]
    assert cells(window, "Brokers", "parts") == ["2", "2"]
    assert cells(window, "Brokers", "epoch") == ["1", "1"]
    window.until(lambda: cells(window, "Topics with parts", "messages") == ["12"], "all messages")
    # the reports of channels come later
    window.until(lambda: cells(window, "Topics with parts", "backlog") == ["12"], "the backlog")
    assert cells(window, "Parts", "name") == [f"clicks#{number}" for number in range(4)]
    assert cells(window, "Parts", "broker") == ["0", "1", "0", "1"]
    states = cells(window, "Parts", "state")
    assert states == ["up, open", "up, open", "up, closed", "up, open"]
    assert sum(int(one) for one in cells(window, "Parts", "head")) == 12
    assert all(one.startswith("archive ") for one in cells(window, "Parts", "channels"))
    assert page.title() == "Cluster · ZSQ"


def test_the_page_is_reached_by_its_link_and_by_keys(window: Window) -> None:
    page = window.open("#/")
    page.get_by_role("navigation").get_by_role("link", name="Cluster").click()
    page.get_by_role("heading", name="Cluster", exact=True).wait_for()
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.locator('[data-figure="backlog"]').wait_for()
    page.keyboard.press("g")
    page.keyboard.press("k")
    page.get_by_role("heading", name="Cluster", exact=True).wait_for()
    panel(window, "Topics with parts").get_by_role("link", name="clicks").focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="clicks", exact=True).wait_for()
    page.get_by_role("main").focus()
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="Cluster", exact=True).wait_for()


@pytest.mark.parametrize("place", ["#/topics/clicks", "#/cluster/clicks"])
def test_the_page_of_a_topic_with_parts_shows_them(window: Window, place: str) -> None:
    window.open(place)
    window.wait_figure("parts", "4")
    assert window.figure("brokers") == "2"
    window.wait_figure("messages", "12")
    assert "1 closed" in window.page.locator('[data-figure="parts"]').inner_text()
    assert cells(window, "Parts", "name") == [f"clicks#{number}" for number in range(4)]
    window.until(lambda: cells(window, "Channels", "depth") == ["12"], "the sum of the channel")
    window.wait_figure("backlog", "12")
    assert window.page.title() == "clicks · ZSQ"


def test_the_page_of_a_part_leads_to_its_topic(window: Window) -> None:
    page = window.open("#/topics/clicks%230")
    page.get_by_role("navigation", name="Breadcrumbs").get_by_role("link", name="clicks").click()
    window.wait_figure("parts", "4")


def test_a_part_of_this_broker_is_opened_and_that_of_another_one_is_not(window: Window) -> None:
    page = window.open("#/cluster")
    window.until(lambda: len(cells(window, "Parts", "name")) == 4, "the parts")
    links = panel(window, "Parts").get_by_role("link").all_inner_texts()
    assert links == ["clicks#0", "clicks#2"]
    page.get_by_label("Filter parts").fill("closed")
    window.until(lambda: cells(window, "Parts", "name") == ["clicks#2"], "the filter")
    panel(window, "Parts").get_by_role("link", name="clicks#2").click()
    page.get_by_role("heading", name="clicks#2", exact=True).wait_for()


def test_a_topic_that_does_not_exist_anywhere_is_missing(window: Window) -> None:
    window.open("#/topics/nothing")
    window.sees("There is no topic nothing")
    window.open("#/cluster/nothing")
    window.sees("There is no topic nothing with parts")


def hostile() -> dict[str, Any]:
    """Return a report in which every text is markup."""
    place = {"url": MARKUP, "role": MARKUP, "epoch": 1, "why": MARKUP}
    broker = {
        "number": 0, "uuid": "u", "me": True, "addresses": [MARKUP], "state": "up", "role": MARKUP, "epoch": 1, "health": MARKUP,
        "lag_s": 61.0, "standbys": 1, "parts": 1, "why": MARKUP, "handover": f"zsq handover --url '{MARKUP}'", "places": [place],
    }  # fmt: skip
    part = {
        "part": 0, "name": MARKUP, "broker": 0, "state": MARKUP, "closed": False, "to": None,
        "start": 0, "head": 1, "messages": 1, "backlog": 1,
        "lag_s": None, "channels": {MARKUP: 1},
    }  # fmt: skip
    topic = {
        "topic": MARKUP, "uuid": "t", "parts": [part], "answered": 1, "closed_count": 0, "messages": 1, "backlog": 1,
        "channels": {MARKUP: 1},
    }  # fmt: skip
    return {
        "is_cluster": True,
        "brokers": [broker],
        "topics": [topic],
        "directory": 1,
        "trouble": MARKUP,
    }


@pytest.mark.parametrize("place", ["#/cluster", "#/cluster/x"])
def test_hostile_texts_of_other_brokers_stay_text(window: Window, place: str) -> None:
    """The window reports an alert as a failure."""
    page = window.page
    page.route(
        "**/api/cluster*",
        lambda route: route.fulfill(body=json.dumps(hostile()), content_type="application/json"),
    )
    window.open(place)
    panel(window, "Parts").get_by_text(MARKUP).first.wait_for()
    assert page.locator("#page img, #page script").count() == 0


def test_the_command_that_hands_over_is_shown_and_the_lag(window: Window) -> None:
    report = hostile()
    report["brokers"][0] |= {"handover": "zsq handover --url tcp://a:1,tcp://b:1"}
    page = window.page
    page.route(
        "**/api/cluster*",
        lambda route: route.fulfill(body=json.dumps(report), content_type="application/json"),
    )
    window.open("#/cluster")
    found = panel(window, "Hand over broker 0")
    found.get_by_text("zsq handover --url tcp://a:1,tcp://b:1", exact=True).wait_for()
    assert "nothing is lost" in found.inner_text()
    assert found.get_by_role("button", name="Copy the command").count() == 1
    assert cells(window, "Brokers", "lag_s") == ["1\u2009m 1\u2009s"]


def test_a_cluster_without_topics_says_how_to_create_one(window: Window) -> None:
    window.page.route(
        "**/api/cluster*",
        lambda route: route.fulfill(
            body=json.dumps(hostile() | {"topics": []}), content_type="application/json"
        ),
    )
    window.open("#/cluster")
    window.sees("No topic with parts yet")
    window.sees("zsq topic create clicks --parts 4")


def test_an_error_is_shown_and_the_old_values_stay(window: Window) -> None:
    page = window.open("#/cluster")
    window.until(lambda: len(cells(window, "Brokers", "role")) == 2, "both brokers")
    page.route(
        "**/api/cluster*",
        lambda route: route.fulfill(status=503, body='{"message": "E_TIMEOUT the broker is busy"}'),
    )
    window.sees("the broker is busy")
    assert len(cells(window, "Brokers", "role")) == 2


def test_the_page_fits_a_narrow_screen(window_of: Callable[..., Window], cluster: Cluster) -> None:
    window = window_of(cluster.brokers[0], viewport={"width": 360, "height": 700})
    page = window.open("#/cluster")
    window.until(lambda: len(cells(window, "Brokers", "role")) == 2, "both brokers")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_broker_that_was_killed_is_shown_as_not_answering(
    window: Window, cluster: Cluster
) -> None:
    """This test comes last, because it kills a broker."""
    page = window.open("#/cluster")
    window.until(lambda: cells(window, "Brokers", "role") == ["primary"] * 2, "both brokers")
    cluster.brokers[1].signal_all(signal.SIGKILL)
    wanted = ["primary", "not answering"]
    window.until(lambda: cells(window, "Brokers", "role") == wanted, "the broker to be away")
    window.sees("1 without a primary that answers")
    window.until(
        lambda: (
            cells(window, "Parts", "state")
            == ["up, open", "not answering, open", "up, closed", "not answering, open"]
        ),
        "its parts",
    )
    assert cells(window, "Topics with parts", "parts") == ["2 of 4"]
    page.goto(f"{window.url}/#/cluster/clicks")
    window.until(
        lambda: "of 2 parts" in page.locator('[data-figure="messages"]').inner_text(),
        "the sums of the other parts",
    )


def test_a_broker_without_a_cluster_says_how_to_begin_one(
    window_of: Callable[..., Window], broker: Broker
) -> None:
    window = window_of(broker)
    page = window.open("#/cluster")
    window.sees("This broker belongs to no cluster")
    window.sees("zsq serve --data-dir DIR --bucket s3://BUCKET/ONE --cluster s3://BUCKET")
    window.until(lambda: cells(window, "Brokers", "role") == ["primary"], "the broker itself")
    page.locator(".link-state[data-state=live]").wait_for()
    assert not page.get_by_role("navigation").get_by_text("Cluster").is_visible()
