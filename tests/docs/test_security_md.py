"""docs/security.md: its access file is one, its refusal and its audit line are real, and its limits are those of the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest

from zsq.actors import access, options
from zsq.actors.audit_desk import AuditDesk
from zsq.actors.http.console.live import STREAM_S, STREAMS_MAX
from zsq.actors.http.limits import HttpLimits
from zsq.actors.nsq.connection import HIGH_WATER
from zsq.actors.nsq.options import NsqOptions
from zsq.apps.cli.serve import serve, serve_options
from zsq.transport import block_format as block
from zsq.transport import protocol as p
from zsq.transport.codec import HEADERS_MAX
from zsq.transport.errors import UsageError
from zsq.transport.names import NAME_CHARS_MAX
from zsq.transport.nsq.limits import LINE_BYTES_MAX, NsqLimits
from zsq.transport.protocol import Manage

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "security.md").read_text()
MIB = 1 << 20


def test_its_access_file_says_what_the_text_says() -> None:
    (file,) = re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    found = access.Access.parse(file)
    etl, operator = found.users["etl"], found.users["operator"]
    assert etl.may_publish("orders.eu")
    assert [etl.may_subscribe(*one) for one in (("clicks",), ("orders.eu", "archive"), ("orders.eu",))] == [True, True, False]
    assert etl.may_view("anything")
    assert not etl.may_admin("clicks")
    assert operator.is_broker_admin
    assert not operator.may_subscribe("clicks"), "who may delete a topic may not read it by that"
    assert found.anonymous is not None
    assert found.anonymous.may_view("status.a")
    assert not found.anonymous.may_view("clicks")
    guessable = {access.token_hash(word) for word in ("", "a", "test", "secret", "token", "foo", "password", "zsq", "etl", "operator")}
    assert not guessable & set(found.users["etl"].tokens + operator.tokens), "somebody will copy it as it is"


def test_what_is_refused_is_refused_with_these_words(tmp_path: Path) -> None:
    arguments = re.findall(r"^    \$ zsq serve (.*)$", TEXT, re.MULTILINE)[0].split()
    (said,) = re.findall(r"^    zsq: (.*) \.\.\.$", TEXT, re.MULTILINE)
    with serve.make_context("serve", [*arguments]) as context, pytest.raises(UsageError) as refused:
        serve_options(context.params, {})
    assert f"{refused.value.code} {refused.value.text}".startswith(said)
    with serve.make_context("serve", [*arguments, "--insecure"]) as context:
        assert serve_options(context.params, {}).security.insecure
    for wrong in ("--http-tls-cert", "--http-tls-key"):
        with serve.make_context("serve", [*arguments, wrong, str(ROOT / "README.md")]) as context, pytest.raises(click.UsageError):
            serve_options(context.params, {})


def test_its_audit_line_is_one() -> None:
    (shown,) = (json.loads(line) for line in re.findall(r'^    (\{"time".*)$', TEXT, re.MULTILINE))
    rows: list[dict[str, Any]] = []

    class Log:
        def note(self, action: str, **what: Any) -> None:
            rows.append({"time": shown["time"], "action": action} | what)

    desk = AuditDesk(Log())  # type: ignore[arg-type]
    by = {name: shown[name] for name in ("user", "from", "via")}
    desk.ordered((b"x",), Manage(1, shown["action"], shown["topic"], shown["channel"], shown["options"], by))
    desk.answered((b"x",), 1)
    assert rows == [shown]
    assert list(rows[0]) == list(shown)


def test_its_limits_are_those_of_the_code() -> None:
    http, nsq = HttpLimits(), NsqLimits()
    table = TEXT.partition("## Limits")[2].partition("\n## ")[0].replace("\n", " ")
    size = {MIB * n: f"{n} MiB" for n in (1, 4, 5, 8, 16, 64)} | {1024 * n: f"{n} KiB" for n in (16, 32)}
    rows = [
        f"| a message | {size[block.MESSAGE_BYTES_MAX]} |",
        f"| {size[block.BLOCK_BYTES_MAX]} and {block.BLOCK_COUNT_MAX:,} messages; {size[nsq.max_body_size]}; {size[http.max_body_size]} |",
        f"| {block.KEY_BYTES_MAX} bytes, {block.TAG_BYTES_MAX} bytes, {HEADERS_MAX} of {size[block.HEADERS_BYTES_MAX]} in all |",
        f"| a name | {NAME_CHARS_MAX} characters",
        f"| {size[p.FRAME_BYTES_MAX]}, {p.FRAMES_MAX:,} |",
        f"| RDY {NsqOptions().max_rdy_count:,} (NSQ), {p.READY_MAX:,} (ZSQ); {size[options.CONSUMER_BYTES_MAX]} |",
        f"| NSQ {NsqOptions().connections_max:,}; HTTP {http.connections_max:,}, handshakes included; ZeroMQ 10,000 links |",
        f"| {options.CONSUMERS_MAX:,}, or `max_consumers` |",
        f"| {options.TOPICS_MAX:,}, {options.CHANNELS_MAX:,}, {options.PROCESSES_MAX:,} |",
        f"| {size[LINE_BYTES_MAX]}; {size[http.head_bytes_max]} within {http.head_s:g} s |",
        f"| {http.head_s:g} s (HTTP); 5 s |",
        f"| {http.body_s:g} s; {http.request_s:g} s (a stream of the console: {STREAM_S / 60:g} min) |",
        f"| {http.requests_max}, {size[http.bodies_bytes_max]}, {STREAMS_MAX} |",
        f"NSQ {size[HIGH_WATER]}, then nothing more is handed out, and after 60 s of silence it is closed;",
        f"HTTP {http.stalled_s:g} s without progress | closed |",
        f"| {size[access.ACCESS_BYTES_MAX]}, {access.USERS_MAX:,} users, {access.ENTRIES_MAX:,} entries a list |",
    ]
    assert [row for row in rows if row not in table] == []
