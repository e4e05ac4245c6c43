"""Tests of the table of statistics: each row is in every view that it names, each statistic in a
view has a row, and the tables in the documentation are current.

Run this file to write the tables of docs/statistics.md again:
python -m tests.actors.statistics.test_schema
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast, get_type_hints

import pytest

from tests.support.group import a_channel, processes_of
from tests.support.shapes import misfits
from zsq.actors.channel.core import ChannelCore
from zsq.actors.channel.lease import Subscriber
from zsq.actors.gateways.http.api.stats import NsqStats, as_nsq
from zsq.actors.runtime.process_table import HostProcess
from zsq.actors.settings.starts import ActorStart
from zsq.actors.statistics.broker_view import ChannelProcess
from zsq.actors.statistics.channel_rows import channel_rows
from zsq.actors.statistics.overview import CHANNEL_FIELDS, TOPIC_FIELDS
from zsq.actors.statistics.schema import COUNTERS, METRICS, STATISTICS, defaults, rows_of
from zsq.actors.statistics.statistic import Statistic
from zsq.actors.statistics.statistics import broker_statistics
from zsq.apps.cli.inspect import stats as cli
from zsq.apps.top import COLUMNS
from zsq.transport import reports

LEVELS: Final = {row.level for row in STATISTICS}
ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = ROOT / "docs/statistics.md"
HEADINGS: Final[dict[str, str]] = {
    "topic": "A topic", "channel": "A channel", "consumer": "A consumer (`clients`, `producers`)",
    "publisher": "A ZSQ client that publishes (`publishers`)",
    "process": "A process", "broker": "The broker", "disk": "The disk (`disk`)", "bucket": "The bucket (`bucket`)",
    "schedules": "The schedules (`schedules`)", "gateway": "An NSQ gateway (`gateways`)",
    "request": "The HTTP gateway itself",
}  # fmt: skip
COLUMNS_SHOWN: Final = ("statistic", "overview", "metric", "nsqd", "meaning")
LABELS: Final = {
    "zsq_topic_": {"topic"},
    "zsq_channel_": {"topic", "channel"},
    "zsq_process": {"kind"},
    "zsq_bucket_": set[str](),
}


# The documents


def statistics_tables() -> str:
    parts = []
    for level, heading in HEADINGS.items():
        rows = list(_joined(_cells(row) for row in rows_of(level)))
        used = [place for place in range(len(COLUMNS_SHOWN)) if any(row[place] for row in rows)]
        head, *lines = [
            f"| {' | '.join(row[place] for place in used)} |" for row in (COLUMNS_SHOWN, *rows)
        ]
        parts.append("\n".join([f"**{heading}**", "", head, f"|{'---|' * len(used)}", *lines]))
    return "\n\n".join(parts)


def _cells(row: Statistic) -> tuple[str, ...]:
    names = (f"`{name}`" if name else "" for name in (row.name, row.view, row.metric))
    return (*names, "yes" if row.nsq else "", row.note or row.help)


def _joined(rows: Iterable[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield the rows. Neighbours that differ only in their name are one row."""
    for rest, same in itertools.groupby(rows, key=lambda row: row[1:]):
        yield ", ".join(row[0] for row in same), *rest


def drawn() -> str:
    """Return the page with the tables as they are in the code."""
    part = re.compile(r"(<!-- statistics: drawn from the code -->\n).*?(<!-- end -->)", re.DOTALL)
    text, count = part.subn(
        lambda found: f"{found[1]}{statistics_tables()}\n{found[2]}", PAGE.read_text()
    )
    assert count == 1, "the page has no place for the tables"
    return text


def test_the_document_shows_the_tables_as_they_are() -> None:
    assert drawn() == PAGE.read_text(), "run python -m tests.actors.statistics.test_schema"


def test_every_row_is_in_the_document() -> None:
    text = statistics_tables()
    assert not [
        row
        for row in STATISTICS
        if not any(f"`{name}`" in text for name in (row.name, row.view, row.metric) if name)
    ]
    assert set(HEADINGS) == LEVELS


def test_names_of_metrics_say_their_kind_and_labels_as_the_document_says() -> None:
    histogram = "zsq_http_request_duration_seconds"
    for metric in METRICS:
        counts = metric.metric.endswith("_total")
        assert metric.kind == (
            "histogram" if metric.metric == histogram else "counter" if counts else "gauge"
        )
        for begins, labels in LABELS.items():
            if metric.metric.startswith(begins):
                assert set(metric.labels) == labels | set(metric.more_labels), metric.metric


# The rows themselves


def test_a_statistic_has_one_row() -> None:
    for names in (
        [(row.level, row.name) for row in STATISTICS if row.name],
        [row.metric for row in METRICS],
    ):
        assert len(names) == len(set(names))
    for level in LEVELS:
        places = [row.nsq for row in rows_of(level) if row.nsq]
        assert sorted(places) == [*range(1, len(places) + 1)]


SHAPES: Final[dict[str, tuple[Any, ...]]] = {
    "broker": (reports.BrokerStats,),
    "disk": (reports.DiskStats,), "bucket": (reports.BucketStats,), "schedules": (reports.SchedulesStats,),
    "gateway": (reports.GatewayStats,), "process": (reports.ProcessStats,),
    "topic": (reports.TopicStats,), "publisher": (reports.PublisherStats,), "channel": (reports.ChannelStats,),
    "consumer": (reports.ConsumerStats, reports.ProducerStats),
}  # fmt: skip
# Values of a channel that are not shown on their own.
UNLISTED: Final = {
    "clients_left_out",
    "parked_count",
    "private_bytes",
}


@pytest.mark.parametrize("level", SHAPES)
def test_the_shapes_of_reports_have_the_names_of_the_table_and_their_types(level: str) -> None:
    """The default value that is shown before the first report has the type that the shape names."""
    hints = {name: hint for shape in SHAPES[level] for name, hint in get_type_hints(shape).items()}
    assert hints.keys() - (UNLISTED if level == "channel" else set()) == defaults(level).keys()
    # A row with the unit "row" is empty until the first report.
    rows = [row for row in rows_of(level) if row.name and row.unit != "row"]
    assert not [one for row in rows for one in misfits(row.default, hints[row.name], row.name)]


def test_the_counters_of_a_channel_have_a_shape() -> None:
    assert {*COUNTERS} == reports.ChannelCounters.__required_keys__


def test_a_row_that_has_a_second_reader_names_what_it_reads() -> None:
    for row in STATISTICS:
        assert row.name or row.view or row.metric
        assert row.help
        assert bool(row.title) or not row.rare
        assert row.view or not row.top
        assert row.counter or not row.ends


def test_the_file_that_counts_a_statistic_names_it() -> None:
    sources = {row.counted: (ROOT / "actors" / row.counted).read_text() for row in STATISTICS}
    assert not [
        row
        for row in STATISTICS
        if (row.name or row.view or row.metric) not in sources[row.counted]
    ]


# The views


def broker() -> Any:
    """Return a broker with a topic and a channel that have consumers, and with each kind of process
    that reports.
    """
    from tests.support.group import Broker

    made = cast("Any", Broker())
    made.gateway = made.child("nsq_gateway", ActorStart())
    made.gateway.state = "up"
    made.bucket = made.child("archive", ActorStart())
    made.scheduler = made.child("scheduler", ActorStart())
    made.group.channels["c"] = ChannelProcess(made.child("channel", a_channel("c")))
    disk = SimpleNamespace(
        health="", statistics=lambda: defaults("disk"), says_why=lambda topic: False
    )
    made.seen = made.view(
        singles={one.spec.key: one for one in (made.gateway, made.bucket, made.scheduler)},
        disk=disk,
    )
    return made


def core() -> ChannelCore:
    made = ChannelCore(1, 0, [], {}, paused=False)
    made.subscribe(Subscriber((b"a",), "a", 1, 10**9, 10**9, 0, 0))
    return made


def names(rows: Iterable[Mapping[str, object]]) -> set[str]:
    return {name for row in rows for name in row}


def test_stats_has_every_row_and_no_statistic_without_one() -> None:
    made, channel = broker(), core()
    child = made.group.child("c")
    child.host = HostProcess(1, cast("Any", None), 1)
    child.stats = {**channel.statistics(0), "settings": {}, "rates": {}}
    publisher, consumer = defaults("publisher"), defaults("consumer")
    client = {name: consumer[name] for name in get_type_hints(reports.ProducerStats)} | {
        "topic": "t",
        "channel": "c",
        "label": "a",
        "pub_counts": [{"topic": "t", "count": 1}],
    }
    details = {
        child.spec.key: channel.details(1, 1),
        made.group.topic.spec.key: {"publishers": [publisher]},
        made.gateway.spec.key: {"clients": [client], "clients_left_out": 1},
    }
    found = broker_statistics(made.seen, "", "", details)
    (topic,) = found["topics"]
    (row,) = topic["channels"]
    reported = {
        "broker": names([found]), "topic": names([topic]), "channel": names([row]),
        "consumer": names([*row["clients"], *found["producers"]]),
        "publisher": names(topic["publishers"]), "process": names(found["processes"]),
        "disk": names([found["disk"]]), "bucket": names([found["bucket"]]),
        "gateway": names(found["gateways"]), "schedules": names([found["schedules"]]),
    }  # fmt: skip
    assert reported == {level: {*defaults(level)} for level in reported}
    assert not misfits(found, reports.BrokerStats)


def test_a_channel_counts_what_the_table_says() -> None:
    """Everything that a channel reports is in the table, except the values that are only for the
    supervisor.
    """
    private = {"begin", "window_end", "requeued_waiting", "deferred_full", "absent"}
    assert core().statistics(0).keys() - private <= defaults("channel").keys()
    assert core().counters.keys() == {*COUNTERS}


def test_the_overview_has_every_row_that_names_a_field_of_it() -> None:
    assert {*TOPIC_FIELDS} == {row.view for row in rows_of("topic")} - {""}
    assert {*CHANNEL_FIELDS} == {row.view for row in rows_of("channel")} - {""}
    assert len(TOPIC_FIELDS) == len({*TOPIC_FIELDS})
    assert len(CHANNEL_FIELDS) == len({*CHANNEL_FIELDS})


@pytest.mark.parametrize("level", ["topic", "channel"])
def test_zsq_top_and_zsq_stats_show_the_rows_that_have_a_heading(level: str) -> None:
    shown = {column.title for column in COLUMNS[f"{level}s"]}
    assert {row.top for row in rows_of(level) if row.top} <= shown
    (topic,) = broker_statistics(broker().seen, "", "", {})["topics"]
    (channel,) = topic["channels"]
    rare = {row.name: 7 for row in rows_of(level) if row.rare}
    found: Any = {
        "topics": [
            topic
            | (rare if level == "topic" else {})
            | {"channels": [channel | (rare if level == "channel" else {})]}
        ]
    }
    headings = {
        str(heading)
        for table in cli.tables(found, processes=False, width=400)
        for heading in (column.header for column in table.columns)
    }
    assert {row.title for row in rows_of(level) if row.title} <= headings


def test_nsqd_s_answer_has_the_rows_that_nsqd_has_in_its_order() -> None:
    (topic,) = broker_statistics(broker().seen, "", "", {})["topics"]
    topic["channels"][0]["clients"] = [cast("reports.ConsumerStats", {"client_id": "a"})]
    stats: Any = {"version": "1", "start_time": 1, "topics": [topic], "producers": []}
    answer = as_nsq(stats, "OK", "", "", clients=True, memory=True)
    assert not misfits(answer, NsqStats)
    (found,) = answer["topics"]
    (channel,) = found["channels"]
    # nsqd reports these only if they are not empty.
    apart = {
        "authed",
        "auth_identity",
        "auth_identity_url",
        "pub_counts",
    }
    levels: dict[str, Mapping[str, object]] = {
        "topic": found,
        "channel": channel,
        "consumer": channel["clients"][0],
    }
    for level, row in levels.items():
        ordered = sorted(
            (one for one in rows_of(level) if one.nsq and one.name not in apart),
            key=lambda one: one.nsq,
        )
        assert [name for name in row if name != "channels" or level != "topic"] == [
            one.name for one in ordered
        ]


def test_rows_of_channels_are_those_of_the_table_before_the_first_report_too() -> None:
    silent = processes_of(None, {"c": None})
    assert channel_rows(silent, 0, 0)[0].keys() == defaults("channel").keys()


if __name__ == "__main__":
    PAGE.write_text(drawn())
