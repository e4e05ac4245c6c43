"""A reader that runs the indented blocks of a page, line by line: it types the commands, saves
files, and compares the output.

A line that begins with `zsq`, `curl` or `scripts/` is a command. A line that begins with `$ ` is a
command too, and the lines after it are its output (`...` stands for any text). What is not a
command is Python, or a sample. `[this]` is typed without the brackets. What a page leaves to its
reader (names, a folder, a function) is defined in a `Page` here in the tests, so that the pages
stay short.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from support.broker import free_port, wait_for

from .walking import ROOT, Block, Reader

_COMMAND: Final = re.compile(r"(\$ )?(zsq|curl|scripts/\w+) ")
_LIST_ITEM: Final = re.compile(r" *(?:[-*]|\d+\.) ")
_PYTHON: Final = """
import os
from datetime import UTC, datetime
import zsq
from zsq import Admin, Consumer, Producer
url = os.environ["ZSQ_URL"]
"""


@dataclass(frozen=True)
class Page:
    """Things that the reader of a page needs in addition to the page. The keys of the mappings are
    beginnings of lines.
    """

    before: str = ""  # a command that is typed before all others
    # The command that starts the broker if no line of the page does that.
    serve: str = "zsq serve --data-dir data"
    serves_itself: bool = False  # a line of the page starts the broker
    # (beginning of a line, a text in the line, what is typed in place of the text).
    put: tuple[tuple[str, str, str], ...] = ()
    # A command that is typed before the line.
    first: Mapping[str, str] = field(default_factory=dict)
    # The text after which the command in the line is stopped.
    until: Mapping[str, str] = field(default_factory=dict)
    # Python code that is put before and after the code of the line.
    python: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Step:
    """A command with its expected output, or Python."""

    text: str
    line: int
    is_command: bool
    shown: str = ""


def indented(page: Path) -> Iterator[Block]:
    """Yield the indented blocks of a page by Markdown's rules: after an empty line, and not part of
    a list.
    """
    lines, fenced, before = page.read_text().splitlines(), False, ""
    number = 0
    while number < len(lines):
        line = lines[number]
        fenced ^= line.startswith("```")
        if (
            not fenced
            and line.startswith("    ")
            and (number == 0 or not lines[number - 1])
            and not _LIST_ITEM.match(before)
        ):
            end = number
            while end < len(lines) and lines[end].startswith("    "):
                end += 1
            yield Block(
                "indented", "".join(f"{one[4:]}\n" for one in lines[number:end]), "", number + 1
            )
            number = end
            continue
        before = line or before
        number += 1


def steps(block: Block) -> list[Step]:
    found: list[Step] = []
    going_on = False
    for number, line in enumerate(block.text.splitlines(), block.line):
        last = found[-1] if found else None
        if going_on and last is not None:
            found[-1] = Step(f"{last.text}\n{line}", last.line, True)
        elif _COMMAND.match(line):
            found.append(Step(line, number, True))
        elif last is not None and last.text.startswith("$ "):
            found[-1] = Step(last.text, last.line, True, f"{last.shown}{line}\n")
        elif re.match(r" *#", line) and last is not None and last.is_command:
            continue
        elif last is not None and not last.is_command:
            found[-1] = Step(f"{last.text}\n{line}", last.line, False)
        else:
            found.append(Step(line, number, False))
        going_on = found[-1].is_command and line.endswith("\\")
    return found


def key_of(text: str) -> str:
    """Return the name of a block in a list: its first line, without the comment."""
    return re.split(r"\s+#", text.split("\n", 1)[0])[0].strip()


class Visitor(Reader):
    """A reader that goes through a page with one broker."""

    patience_s = 30.0

    def __init__(self, folder: Path, page: Page) -> None:
        super().__init__(folder)
        self.page = page
        self.log = folder / "serve.log"
        self.env |= {
            "ZSQ_SERVE_LISTEN": f"127.0.0.1:{self.port}",
            "ZSQ_SERVE_NSQ_LISTEN": f"127.0.0.1:{self.nsq}",
            "ZSQ_SERVE_HTTP_LISTEN": f"127.0.0.1:{self.http}",
            "ZSQ_TOKEN": "a token",
        }
        if page.before:
            self.type(page.before)

    def begin(self) -> None:
        if not self._brokers and not self.page.serves_itself:
            self._start(self.page.serve)

    def do(self, step: Step) -> None:
        text = step.text.removeprefix("$ ")
        for begins, old, new in self.page.put:
            if step.text.removeprefix("$ ").startswith(begins):
                text = text.replace(old, new)
        text = self.with_ports(text)
        if step.is_command:
            text = re.sub(r"[][]", "", text).replace("curl ", "curl -sSf ")
        if self.page.serves_itself and step.text.startswith("zsq serve"):
            self._start(text)
            return
        if not step.text.startswith("$ "):  # a command that shows a refusal needs no broker
            self.begin()
        for begins, more in self.page.first.items():
            if step.text.startswith(begins):
                self.type(more)
        until = next(
            (
                f'until "{said}"'
                for begins, said in self.page.until.items()
                if step.text.startswith(begins)
            ),
            "",
        )
        if not step.is_command:
            before, behind = next(
                (both for begins, both in self.page.python.items() if step.text.startswith(begins)),
                ("", ""),
            )
            self._run(["python", "-c", f"{_PYTHON}{before}\n{text}\n{behind}\n"], until)
        elif step.shown:
            self.type(f"{text} 2>&1 || true")
            wanted = step.shown
            for begins, old, new in self.page.put:
                if step.text.removeprefix("$ ").startswith(begins):
                    wanted = wanted.replace(old, new)
            wanted = self.with_ports(wanted)
            pattern = re.escape(wanted.strip()).replace(re.escape("..."), ".*")
            assert re.fullmatch(pattern, self.said.strip(), re.DOTALL), (
                f"it wrote {self.said!r}, the page says {wanted!r}"
            )
        elif text.startswith("zsq serve"):  # another broker, beside that of the page
            listens = " ".join(
                f"ZSQ_SERVE_{name}=127.0.0.1:{free_port()}"
                for name in ("LISTEN", "NSQ_LISTEN", "HTTP_LISTEN")
            )
            self.type(f"exec 2>&1; export {listens}; exec {text}", 'until " ready: "')
        else:
            self.type(text, until)

    def stop(self) -> None:
        """Stop the broker as `kill` does."""
        for broker in self._brokers:
            if broker.poll() is None:
                broker.send_signal(signal.SIGTERM)
                assert broker.wait(30) == 0

    def say_in_json(self) -> None:
        """Start the broker again with a JSON log, and stop it."""
        self._start("zsq serve --data-dir data --log-format json")
        self.stop()

    def configured(self, file: str) -> str:
        """Return the output of `zsq config` for this file."""
        (self.folder / "zsq.toml").write_text(file)
        (self.folder / "tls").mkdir(exist_ok=True)
        for name in ("broker.pem", "broker.key"):
            (self.folder / "tls" / name).touch()
        self.type("unset ${!ZSQ_SERVE_*}; zsq config --config zsq.toml --json")
        return self.said

    def type(self, text: str, said: str = "") -> None:
        self._run(["bash", "-euo", "pipefail", "-c", text], said)

    def _start(self, text: str) -> None:
        had = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            command = ["bash", "-c", f"exec {text}"]
            self._brokers.append(
                subprocess.Popen(
                    command,
                    cwd=self.folder,
                    env=self.env,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        wait_for(
            lambda: b" ready: " in self.log.read_bytes()[had:],
            30,
            f"a broker; it said {self.log.read_text()[-500:]}",
        )


def zsqd() -> str:
    """Return a command that runs scripts/zsqd with its own ports, and with the Python
    of the tests.
    """
    listen = f"ZSQ_SERVE_LISTEN=127.0.0.1:{free_port()} ZSQ_SERVE_NO_NSQ=1 ZSQ_SERVE_NO_HTTP=1"
    return (
        f"env -u ZSQ_SERVE_NSQ_LISTEN -u ZSQ_SERVE_HTTP_LISTEN {listen} "
        f"{os.fspath(ROOT)}/scripts/zsqd"
    )
