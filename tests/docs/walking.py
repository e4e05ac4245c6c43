"""A reader of a page of the documentation: it runs the blocks of the page in order, in one folder,
and compares the output.

    ```sh          The block is run as it stands. A broker (`zsq serve ...` alone) keeps running in
                   the background, and the test waits until it is ready.
    ```python      The block is run. If its first line is `# NAME.py`, it is saved under that name
                   instead.
                   If its comment says `in one session`, one process runs all such blocks one after
                   the other, with the names of those before, as in a notebook.
    ```js          The block begins with `// NAME.mjs`, and is saved under that name.
    ```text        The block is the standard output of the block before it. A line `...` stands for
                   any number of lines.
    ```diff        The block is a patch of ZSQ, which is applied to a copy of the package in the
                   folder. The blocks after it run the copy.

A comment before a block gives the test further information: `<!-- test: not run, REASON -->`,
`<!-- test: wants Java -->`, `<!-- test: in one session -->`, or `<!-- test: until "TEXT" -->` (the
block is stopped by SIGTERM once it has written that text). The documentation's ports (4150, 4151,
4153, 4155) are replaced by free ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from support.broker import free_port, wait_for

import zsq

ROOT: Final = Path(__file__).resolve().parents[2]
RUN_S: Final = 150.0
_BLOCK: Final = re.compile(
    r"(?:^<!-- test: (?P<said>[^\n]*) -->\n)?^```(?P<kind>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# Each line of the standard input is a block, as JSON. After its output comes a mark with a digit.
_MARK: Final = "\0"
_SESSION: Final = f"""
import json, sys, traceback
names = {{"__name__": "__main__"}}
for line in sys.stdin:
    failed = 0
    try:
        exec(compile(json.loads(line), "the block", "exec"), names)
    except BaseException:
        traceback.print_exc()
        failed = 1
    print(failed, end={_MARK!r}, flush=True)
"""
_FILE: Final = re.compile(r"(?:#|//) (\w+\.(?:py|mjs))\n")


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    said: str
    line: int

    @property
    def serves(self) -> bool:
        return (
            self.kind == "sh" and self.text.startswith("zsq serve ") and self.text.count("\n") == 1
        )


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            found["kind"],
            found["text"],
            found["said"] or "",
            text.count("\n", 0, found.start("kind")) + 1,
        )
        for found in _BLOCK.finditer(text)
    ]


def copy_package(folder: Path) -> None:
    """Make a copy of the package, which the blocks of a page may change."""
    folder.mkdir()
    for name in ("__init__.py", "__main__.py", "py.typed"):
        shutil.copy2(ROOT / name, folder)
    for layer in ("actors", "apps", "storage", "transport"):
        # Another process may be about to rename a new compiled module.
        unfinished = shutil.ignore_patterns("*.pyc.*")
        shutil.copytree(ROOT / layer, folder / layer, ignore=unfinished)
    (folder / "scripts").mkdir()
    shutil.copy2(ROOT / "scripts" / "clients.py", folder / "scripts")


class Session:
    """A process that runs blocks of Python one after the other, in one namespace."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._errors = (folder / "session-errors").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SESSION],
            cwd=folder,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    def run(self, text: str, patience_s: float) -> str:
        """Run a block and return what it has written. Raise `AssertionError` if it fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        begin = self._errors.seek(0, os.SEEK_END)
        self._process.stdin.write(json.dumps(text).encode() + b"\n")
        self._process.stdin.flush()
        out, _ = _read(self._process.stdout, _MARK.encode(), patience_s)
        wrote = out.decode(errors="replace")
        self._errors.seek(begin)
        told = self._errors.read().decode(errors="replace")
        assert wrote.endswith(f"0{_MARK}"), f"it wrote {wrote[-2000:]!r} and {told[-3000:]!r}"
        return wrote.removesuffix(f"0{_MARK}")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate(timeout=40)
        self._errors.close()


class Reader:
    """A reader with a shell, an empty folder, and the page."""

    patience_s = RUN_S  # the time limit for one block

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.nsq, self.http = free_port(), free_port(), free_port()
        self.other = free_port()  # of a door that a page adds
        self.said = ""  # the standard output of the last block
        self._brokers: list[subprocess.Popen[bytes]] = []
        self._session: Session | None = None
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = os.environ | {
            "PATH": path,
            "ZSQ_URL": f"tcp://127.0.0.1:{self.port}",
            "PYTHONPATH": str(folder),
            "PYTHONUNBUFFERED": "1",
        }

    def walk(self, page: Path) -> int:
        """Return how many blocks were run, or compared with the output."""
        count = 0
        for block in blocks(page):
            if block.said.startswith("not run"):
                continue
            if (
                "wants Java" in block.said
                and shutil.which("java") is None
                and not os.environ.get("JAVA_HOME")
            ):
                continue
            try:
                self.take(block)
            except AssertionError as error:
                raise AssertionError(f"{page.name}:{block.line}: {error}") from error
            count += 1
        return count

    def take(self, block: Block) -> None:
        text = self.with_ports(block.text)
        if block.kind == "text":
            self._compare(text)
        elif block.kind == "diff":
            self._patch(text)
        elif block.kind in ("python", "js") and (name := _FILE.match(text)):
            (self.folder / name[1]).write_text(text)
        elif block.kind == "python" and "in one session" in block.said:
            self._session = self._session or Session(self.folder, self.env)
            self.said = self._session.run(text, self.patience_s)
        elif block.kind == "python":
            self._run([sys.executable, "-c", text], block.said)
        elif block.serves:
            self._serve(text)
        elif block.kind == "sh":
            self._run(["bash", "-euo", "pipefail", "-c", text], block.said)
        else:
            raise AssertionError(f"a block of {block.kind!r} is nothing that can be tried")

    def _patch(self, text: str) -> None:
        """Apply a patch whose hunks have no line numbers: what it replaces must occur once."""
        package = self.folder / "zsq"
        if not package.exists():
            copy_package(package)
        for patch in re.split(r"^--- .*\n", text, flags=re.MULTILINE)[1:]:
            header, *hunks = re.split(r"^@@.*\n", patch, flags=re.MULTILINE)
            path = package / header.removeprefix("+++ b/").strip()
            source = path.read_text() if path.exists() else ""
            for hunk in hunks:
                lines = hunk.splitlines(keepends=True)
                before = "".join(line[1:] for line in lines if line[0] != "+")
                after = "".join(line[1:] for line in lines if line[0] != "-")
                count = source.count(before) if before else 1
                assert count == 1, f"{path.name} has these lines {count} times: {before!r}"
                source = source.replace(before, after) if before else after
            path.parent.mkdir(exist_ok=True)
            path.write_text(source)

    def with_ports(self, text: str) -> str:
        ports = {4150: self.nsq, 4151: self.http, 4153: self.port, 4155: self.other}
        for documented, port in ports.items():
            text = text.replace(f"127.0.0.1:{documented}", f"127.0.0.1:{port}")
        return text

    def _serve(self, text: str) -> None:
        listen = (
            f"--listen 127.0.0.1:{self.port} --nsq-listen 127.0.0.1:{self.nsq} --http-listen "
            f"127.0.0.1:{self.http}"
        )
        command = text.strip().replace("zsq serve", f"exec zsq serve {listen}")
        path = self.folder / "serve.log"
        with path.open("ab") as log:
            begin = log.tell()
            self._brokers.append(
                subprocess.Popen(
                    ["bash", "-c", command],
                    cwd=self.folder,
                    env=self.env,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

        def is_ready() -> bool:
            """Return True if it answers, and has said that all its doors are open."""
            return b" ready: " in path.read_bytes()[begin:] and self._answers()

        wait_for(is_ready, 30, f"a broker; it said {path.read_text()[-500:]}")

    def _answers(self) -> bool:
        with contextlib.suppress(zsq.ZsqError), zsq.Admin(self.env["ZSQ_URL"], timeout=1) as admin:
            return bool(admin.ping())
        return False

    def _run(self, command: list[str], said: str) -> None:
        until = re.search(r'until "([^"]*)"', said)
        with (self.folder / "errors").open("w+b") as errors:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
            try:
                assert process.stdout is not None
                out, whole = _read(
                    process.stdout, until[1].encode() if until else None, self.patience_s
                )
                if whole:
                    code = process.wait(self.patience_s)
                else:
                    os.killpg(process.pid, signal.SIGTERM)
                    out += process.communicate(timeout=self.patience_s)[0]
                    code = 0 if until is not None and until[1].encode() in out else 1
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(40)
                if process.stdout is not None:
                    process.stdout.close()
            errors.seek(0)
            told = errors.read().decode(errors="replace")
        self.said = out.decode(errors="replace")
        assert code == 0, f"exit code {code}; it wrote {self.said[-2000:]!r} and {told[-3000:]!r}"

    def _compare(self, wanted: str) -> None:
        pattern = "".join(
            "(?:.*\n)*?" if line == "...\n" else re.escape(line)
            for line in wanted.splitlines(keepends=True)
        )
        assert re.fullmatch(pattern, self.said), f"it wrote {self.said!r}, the page says {wanted!r}"

    def close(self) -> None:
        """End every broker, however far the page went."""
        if self._session is not None:
            self._session.close()
        for broker in self._brokers:
            if broker.poll() is None:
                broker.terminate()
                try:
                    broker.wait(30)
                except subprocess.TimeoutExpired:
                    broker.kill()
                    broker.wait(40)


def _read(stream: IO[Any], until: bytes | None, patience_s: float) -> tuple[bytes, bool]:
    """Return what is written until `until` comes or the time is over, and whether the stream has
    ended.
    """
    out, deadline = b"", time.monotonic() + patience_s
    while until is None or until not in out:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([stream], [], [], left)[0]:
            return out, False
        data = os.read(stream.fileno(), 65536)
        if not data:
            return out, True
        out += data
    return out, False
