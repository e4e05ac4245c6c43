"""Tests of docs/security.md: its access file is valid, its refusal and its audit line are real. The
limits of docs/limits.md are those of the code, and docs/evidence.md names all attacks.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest

from zsq.actors.gateways import questions, zeromq
from zsq.actors.gateways.http.console.console import STREAM_S
from zsq.actors.gateways.http.messages import search_handlers
from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.gateways.limiter import Bound
from zsq.actors.gateways.nsq import intake
from zsq.actors.gateways.nsq.connection import HIGH_WATER, TOPICS_SHOWN_MAX
from zsq.actors.gateways.shared import auth
from zsq.actors.gateways.shared.http_client import BODY_MAX, CONNECT_S, REQUEST_S
from zsq.actors.security import access, complaints
from zsq.actors.security.audit import AuditRecorder
from zsq.actors.settings import options
from zsq.actors.settings.options import NsqOptions
from zsq.apps.cli.run.broker_options import serve_options
from zsq.apps.cli.run.option_table import GivenOptions
from zsq.apps.cli.run.serve import serve
from zsq.transport.block import block_format as block
from zsq.transport.errors import UsageError
from zsq.transport.names import NAME_CHARS_MAX
from zsq.transport.nsq import permissions
from zsq.transport.nsq.limits import (
    BYTES_BEFORE_AUTH_MAX,
    IDENTITY_BYTES_MAX,
    JSON_DEPTH_MAX,
    LINE_BYTES_MAX,
    STRING_BYTES_MAX,
    NsqLimits,
)
from zsq.transport.nsq.session import TOPICS_COUNTED_MAX
from zsq.transport.wire import protocol as p
from zsq.transport.wire.codec import HEADERS_MAX, VALUE_CONTAINERS_MAX
from zsq.transport.wire.protocol import Manage

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text()
MIB = 1 << 20


def test_the_access_file_of_the_page_permits_what_the_text_says() -> None:
    (file,) = re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    found = access.Access.parse(file)
    etl, operator = found.users["etl"], found.users["operator"]
    assert etl.may_publish("orders.eu")
    assert [
        etl.may_subscribe(*one) for one in (("clicks",), ("orders.eu", "archive"), ("orders.eu",))
    ] == [True, True, False]
    assert etl.may_view("anything")
    assert not etl.may_admin("clicks")
    assert operator.is_broker_admin
    assert not operator.may_subscribe("clicks"), "who may delete a topic may not read it by that"
    assert found.anonymous is not None
    assert found.anonymous.may_view("status.a")
    assert not found.anonymous.may_view("clicks")
    guessable = {
        access.token_hash(word)
        for word in (
            "",
            "a",
            "test",
            "secret",
            "token",
            "foo",
            "password",
            "zsq",
            "etl",
            "operator",
        )
    }
    assert not guessable & set(found.users["etl"].tokens + operator.tokens), (
        "somebody will copy it as it is"
    )


def test_the_refusal_on_the_page_is_the_real_one(tmp_path: Path) -> None:
    arguments = re.findall(r"^    \$ zsq serve (.*)$", TEXT, re.MULTILINE)[0].split()
    (said,) = re.findall(r"^    zsq: (.*) \.\.\.$", TEXT, re.MULTILINE)
    with serve.make_context("serve", [*arguments]) as context, pytest.raises(UsageError) as refused:
        serve_options(GivenOptions.of(context.params), {})
    assert f"{refused.value.code} {refused.value.text}".startswith(said)
    with serve.make_context("serve", [*arguments, "--insecure"]) as context:
        assert serve_options(GivenOptions.of(context.params), {}).security.insecure
    for wrong in ("--http-tls-cert", "--http-tls-key"):
        with (
            serve.make_context("serve", [*arguments, wrong, str(ROOT / "README.md")]) as context,
            pytest.raises(click.UsageError),
        ):
            serve_options(GivenOptions.of(context.params), {})


def test_the_shown_audit_line_is_what_the_recorder_writes() -> None:
    (shown,) = (json.loads(line) for line in re.findall(r'^    (\{"time".*)$', TEXT, re.MULTILINE))
    rows: list[dict[str, Any]] = []

    class Log:
        def note(self, action: str, **what: Any) -> None:
            rows.append({"time": shown["time"], "action": action} | what)

    harness = AuditRecorder(Log())  # type: ignore[arg-type]
    by = {name: shown[name] for name in ("user", "from", "via")}
    harness.ordered(
        9, Manage(1, shown["action"], shown["topic"], shown["channel"], shown["options"], by)
    )
    harness.answered(9)
    assert rows == [shown]
    assert list(rows[0]) == list(shown)


def shares(bound: Bound) -> str:
    return f"{bound.each:,} and {bound.in_all:,}"


def test_the_limits_on_the_page_are_those_of_the_code() -> None:
    http, nsq = HttpLimits(), NsqLimits()
    table = (ROOT / "docs" / "limits.md").read_text().replace("\n", " ")
    size = {MIB * n: f"{n} MiB" for n in (1, 4, 5, 8, 16, 64, 128)} | {
        1024 * n: f"{n} KiB" for n in (16, 32, 64)
    }
    rows = [
        f"| a message | {size[block.MESSAGE_BYTES_MAX]} |",
        (
            f"| {size[block.BLOCK_BYTES_MAX]} and {block.BLOCK_COUNT_MAX:,} messages; "
            f"{size[nsq.max_body_size]}; {size[http.max_body_size]} |"
        ),
        (
            f"| {block.KEY_BYTES_MAX} bytes, {block.TAG_BYTES_MAX} bytes, {HEADERS_MAX} of "
            f"{size[block.HEADERS_BYTES_MAX]} in all |"
        ),
        f"| a name | {NAME_CHARS_MAX} characters",
        f"| {size[p.FRAME_BYTES_MAX]}, {p.FRAMES_MAX:,} |",
        f"| {size[p.OPTIONS_BYTES_MAX]}, {p.OPTIONS_NESTED_MAX:,} lists and maps |",
        (
            f"| {size[options.DETAILS_BYTES_MAX]} a process, "
            f"{size[options.STATS_DETAILS_BYTES_MAX]} an answer |"
        ),
        (
            f"| RDY {NsqOptions().max_rdy_count:,} (NSQ), {p.READY_MAX:,} (ZSQ); "
            f"{size[options.CONSUMER_BYTES_MAX]} |"
        ),
        (
            f"| NSQ {NsqOptions().connections_max:,}; HTTP {http.connections_max:,}, handshakes "
            "included; ZeroMQ 10,000 links |"
        ),
        f"| {options.CONSUMERS_MAX:,}, or `max_consumers` |",
        f"| {options.TOPICS_MAX:,}, {options.CHANNELS_MAX:,}, {options.PROCESSES_MAX:,} |",
        f"| {size[LINE_BYTES_MAX]}; {size[http.head_bytes_max]} within {http.head_s:g} s |",
        f"| {http.head_s:g} s; 5 s |",
        (
            "| NSQ before AUTH: time; bytes sent and answered | "
            f"{nsq.auth_deadline_ms / 1000:g} s; "
            f"{size[BYTES_BEFORE_AUTH_MAX]} |"
        ),
        f"| {size[IDENTITY_BYTES_MAX]}; {JSON_DEPTH_MAX}; {STRING_BYTES_MAX} bytes |",
        f"| {size[intake.HELD_BYTES_MAX]}; {size[intake.STRANGERS_BYTES_MAX]} |",
        f"| {TOPICS_COUNTED_MAX}; {TOPICS_SHOWN_MAX} |",
        (
            f"| {auth.ASKED_MAX}; {auth.ASKED_BY_ADDRESS_MAX}; {auth.WAITING.in_all:,}, "
            f"{auth.WAITING.each:,} for one address, and "
            f"{auth.WAIT_S:g} s |"
        ),
        (
            f"| {size[BODY_MAX]}; {permissions.AUTHORIZATIONS_MAX:,}; "
            f"{permissions.PATTERNS_MAX:,}; "
            f"{permissions.STEPS_MAX:,} |"
        ),
        (
            f"| {auth.KNOWN_MAX:,} and {auth.AUTHORIZATIONS_KNOWN_MAX:,} authorizations; "
            f"{auth.DENIED_MAX:,} |"
        ),
        f"| one in {complaints.COMPLAINT_S:g} s, with the number of the others |",
        (
            f"| {http.body_s:g} s, and {http.body_begin_s:g} s and one more for each "
            f"{http.body_bytes_a_s:,} bytes that have come; {http.request_s:g} s (a stream of the "
            f"console: {STREAM_S / 60:g} min) |"
        ),
        (
            f"| {shares(http.requests)}; {size[http.bodies.each]} and {size[http.bodies.in_all]}; "
            f"{shares(http.live_views)} |"
        ),
        (
            f"| {shares(http.tails)}; {shares(http.downloads)}; {shares(http.searches)}; "
            f"{shares(http.looks)} |"
        ),
        f"| {shares(http.publishes)}; {shares(http.redrives)} |",
        f"| {size[search_handlers.DOWNLOAD_BYTES_MAX]} | it is cut",
        (
            f"NSQ {size[HIGH_WATER]}, then nothing more is handed out, and after 60 s of "
            "silence it "
            "is closed;"
        ),
        f"HTTP {http.stalled_s:g} s without progress | closed |",
        (
            f"| {shares(questions.UNANSWERED)}; {size[questions.UNANSWERED_BYTES.each]} and "
            f"{size[questions.UNANSWERED_BYTES.in_all]}; {shares(zeromq.OPENS_MAX)} |"
        ),
        f"| {questions.AHEAD_MAX}; {zeromq.OPENS_AHEAD_MAX} | they wait",
        f"| {VALUE_CONTAINERS_MAX:,} | it counts as damaged",
        (
            f"| {size[access.ACCESS_BYTES_MAX]}, {access.USERS_MAX:,} users, "
            f"{access.ENTRIES_MAX:,} "
            "entries a list |"
        ),
    ]
    assert [row for row in rows if row not in table] == []
    text = TEXT.replace("\n", " ")
    assert f"{CONNECT_S:g} s to connect and {REQUEST_S:g} s for the answer" in text


def test_each_file_of_attacks_has_a_row() -> None:
    page = (ROOT / "docs" / "evidence.md").read_text()
    section = page.partition("## Attacks")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(test_\w+\.py)` \|", section, re.MULTILINE)
    assert {*named} == {path.name for path in (ROOT / "tests" / "attacks").glob("test_*.py")}
