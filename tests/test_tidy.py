"""Tests of tidiness: sizes, captions, and banned words with their replacements."""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
LAYERS: Final = ("actors", "apps", "storage", "transport")
FUNCTION_LINES_MAX: Final = 100
COLUMNS_MAX: Final = 100
TABLE_COLUMNS_MAX: Final = 140
# These files print on stderr that they are ready, or why they are not.
SPEAKS: Final = (
    "actors/supervisor/supervisor.py",
    "actors/supervisor/serve.py",
)


class Ban(NamedTuple):
    """`pattern` must not occur in the code of files below `under` (comments and strings do not
    count). `instead` says what to write.
    """

    name: str
    pattern: str
    instead: str
    under: tuple[str, ...] = ("",)
    but: tuple[str, ...] = ()


PICKLES: Final = ("actors/runtime/forkserver.py", "tests/")
BANS: Final = (
    Ban("sleep", r"\b(time|asyncio)\.sleep\(", "wait for an event with a time-out", ("tests/",)),
    Ban("files", r"(?<![.\w])(?<!def )(os\.(?!path\b)\w+|open)\(", "call Files, the one seam", ("storage/",), ("storage/files.py",)),
    Ban("print", r"(?<![.\w])print\(", "log it, or return it: only programs print", ("storage/", "transport/", "actors/"), SPEAKS),
    Ban("pickle", r"\bpickle\.\w+\(|import pickle\b|from pickle\b", "msgpack: nothing from outside is unpickled", ("",), PICKLES),
    Ban("bare except", r"\bexcept\s*:", "name the exception: `except Exception` at the very least"),
    Ban("eval", r"(?<![.\w])(eval|exec)\(", "a function or a table", ("",), ("transport/records.py", "tests/")),
    Ban("debugger", r"\bbreakpoint\(|\bpdb\.", "nothing: take it out"),
)  # fmt: skip
WORDS_BANNED: Final = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def sources(*folders: str) -> list[Path]:
    found = [ROOT / "__init__.py", ROOT / "__main__.py"] if not folders else []
    for folder in folders or (*LAYERS, "scripts", "tests"):
        found += (ROOT / folder).rglob("*.py")
    return sorted(path for path in found if "__pycache__" not in path.parts)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def code_lines(source: str) -> Iterator[tuple[int, str]]:
    """Yield each line of code, without comments and with empty strings in place of strings."""
    lines: dict[int, list[str]] = {}
    column: dict[int, int] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in {
            tokenize.COMMENT,
            tokenize.NEWLINE,
            tokenize.NL,
            tokenize.INDENT,
            tokenize.DEDENT,
        }:
            continue
        row, start = token.start
        text = '""' if token.type == tokenize.STRING else token.string
        gap = " " if start > column.get(row, 0) else ""
        lines.setdefault(row, []).append(gap + text)
        column[token.end[0]] = token.end[1]
    for row in sorted(lines):
        yield row, "".join(lines[row])


def banned(name: str, source: str) -> list[str]:
    """Return a sentence for each ban that the file breaks."""
    bans = [
        ban
        for ban in BANS
        if name.startswith(ban.under)
        and not name.startswith(ban.but or ("\0",))
        and re.search(ban.pattern, source)  # saves the time for the tokens of all other files
    ]
    return [
        f"{name}:{row}: {ban.name}: {line.strip()!r}; {ban.instead}"
        for row, line in (code_lines(source) if bans else ())
        for ban in bans
        if re.search(ban.pattern, line)
    ]


def long_functions(name: str, tree: ast.Module) -> list[str]:
    return [
        (
            f"{name}:{node.lineno}: {node.name} has {size} lines, at most {FUNCTION_LINES_MAX} are "
            "allowed: let its parts be functions"
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (size := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]


def kept_as_written(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """Yield the first and last row of each statement. If its last row has `# fmt: skip`, the
    formatter keeps the whole statement as it is written.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            yield node.lineno, node.end_lineno or node.lineno
        body = getattr(node, "body", None)
        # These are the rows of a compound statement's header.
        if isinstance(node, ast.stmt) and isinstance(body, list) and body:
            yield from ((node.lineno, row) for row in range(node.lineno, body[0].lineno))
        for decorator in getattr(node, "decorator_list", []):
            yield decorator.lineno, decorator.end_lineno or decorator.lineno


def table_rows(source: str) -> set[int]:
    """Return the rows that may be wide: tables, and texts in other languages.

    A table of code ends in `# fmt: skip`, or lies between `# fmt: off` and `# fmt: on`. A table of
    a docstring has rows that begin with `|`. Any other string of several lines is a program or a
    page.
    """
    lines = source.split("\n")
    tree = ast.parse(source)
    spans = list(kept_as_written(tree))
    rows: set[int] = set()
    start = 0
    for row, line in enumerate(lines, 1):
        if line.endswith("# fmt: skip"):
            for first, last in spans:
                rows |= set(range(first, last + 1)) if last == row else set()
        elif line.strip() == "# fmt: off":
            start = row
        elif line.strip() == "# fmt: on":
            rows |= set(range(start, row))
    said = {
        node.value.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        first, last = token.start[0], token.end[0]
        if token.type == tokenize.STRING and last > first:
            texts = range(first, last + 1)
            is_docstring = first in said
            rows |= {n for n in texts if not is_docstring or lines[n - 1].lstrip().startswith("|")}
    return rows


def wide_lines(name: str, source: str) -> list[str]:
    """Return each line that is too wide. Comments for type checkers and linters at the end of a
    line do not count.
    """
    lines = [re.sub(r"  # (type: ignore|noqa|pyright:).*", "", line) for line in source.split("\n")]
    wide = {row: len(line) for row, line in enumerate(lines, 1) if len(line) > COLUMNS_MAX}
    tables = table_rows(source) if wide else set()
    return [
        f"{name}:{row} has {size} columns, at most {COLUMNS_MAX} are allowed"
        for row, size in wide.items()
        if row not in tables or size > TABLE_COLUMNS_MAX
    ]


def titles(markdown: str) -> list[str]:
    """Return the H1 lines, except those in fenced code."""
    outside = re.sub(r"^(```|~~~).*?^\1", "", markdown, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"^# .+", outside, flags=re.MULTILINE)


def no_caption(name: str, tree: ast.Module) -> list[str]:
    caption = (ast.get_docstring(tree) or "").split("\n\n")[0]
    if caption.rstrip().endswith((".", ":")):
        return []
    return [
        f"{name}: the docstring begins {caption!r}; write a sentence that says what the file is"
    ]


@functools.cache
def problems_of_trees() -> dict[str, list[str]]:
    """Return what each check of syntax trees finds, by the name of the check. It parses each file
    once for all of them.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for path in sources():
        name, tree = named(path), ast.parse(path.read_text())
        found["long functions"] += long_functions(name, tree)
        found["no caption"] += no_caption(name, tree)
        if name.startswith((*LAYERS, "scripts")):
            found["bad openings"] += bad_openings(name, tree)
            found["no verb"] += without_a_verb(name, tree)
    return found


def test_functions_are_short() -> None:
    assert not problems_of_trees()["long functions"]


def test_lines_are_narrow() -> None:
    assert not [line for path in sources() for line in wide_lines(named(path), path.read_text())]
    wide, table = f'"{"x" * 100}"', f'[\n    "{"x" * 100}",\n]'
    assert len(wide_lines("a.py", f"a = {wide}\n\nb = {table}\nc = 1\n")) == 2
    assert not wide_lines("a.py", f"a = {wide}  # fmt: skip\n\nb = {table}  # fmt: skip\nc = 1\n")
    assert not wide_lines(
        "a.py", f'"""Caption.\n\n| {wide} |\n"""\n# fmt: off\nb = {table}\n# fmt: on'
    )
    assert len(wide_lines("a.py", f'"""Caption.\n\n{wide}\n"""\n')) == 1


BAD_OPENING: Final = re.compile(
    r"(What|Of|Whether|Whom|As|How|Where|Who|Which|Whose|In place of)\b"
)


def bad_openings(name: str, tree: ast.Module) -> list[str]:
    """Return a sentence for each caption or docstring that begins with a question word or similar,
    so that its first sentence is incomplete.
    """
    return [
        (
            f"{name}:{getattr(node, 'lineno', 1)}: {text[:60]!r}: begin with an imperative, or "
            "name "
            "the thing"
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and (text := ast.get_docstring(node))
        and BAD_OPENING.match(text)
    ]


# A simple check: a verb in its plain form has none of these endings, and stands first.
NO_IMPERATIVE: Final = re.compile(
    r"(The|An?|This|That|These|Those|It|Its|If|When|There|All|Some|Each|Any|No|One|Two|In|On|At"
    r"|By|For|From|With|To|\w+ing|\w+ed|\w*[^s]s)\b"
)
VERBS_LIKE_THAT: Final = ("Bring", "Deprecated", "Embed", "Feed", "Need", "Ring", "Seed", "Sing")


def without_a_verb(name: str, tree: ast.Module) -> list[str]:
    """Each function whose docstring does not begin with an imperative.

    Properties and `__init__` may name a thing.
    """
    return [
        f"{name}:{node.lineno}: {text[:60]!r}: begin with an imperative, such as Return"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name != "__init__"
        and not any("property" in ast.unparse(one) for one in node.decorator_list)
        and (text := ast.get_docstring(node))
        and NO_IMPERATIVE.match(text)
        and not text.startswith(VERBS_LIKE_THAT)
    ]


def test_docstrings_of_functions_begin_with_a_verb() -> None:
    assert not problems_of_trees()["no verb"]
    functions = (
        f'def f():\n    """{text}"""\n'
        for text in ("Returns it.", "Sending.", "The end.", "Pass it.", "Return.", "Bring it.")
    )
    assert len(without_a_verb("a.py", ast.parse("".join(functions)))) == 3


def test_docstrings_begin_with_an_imperative_or_a_name() -> None:
    assert not problems_of_trees()["bad openings"]
    bad = '"""What it is."""\ndef a():\n    """Of a thing."""\ndef b():\n    """Return a thing."""'
    assert len(bad_openings("a.py", ast.parse(bad))) == 2


def test_every_file_has_its_caption() -> None:
    assert not problems_of_trees()["no caption"]
    assert no_caption("a.py", ast.parse('"""No sentence"""'))
    assert not no_caption("a.py", ast.parse('"""A sentence."""'))


def test_no_banned_word_is_used() -> None:
    assert not [line for path in sources() for line in banned(named(path), path.read_text())]


def test_nothing_is_left_to_do() -> None:
    texts = [
        *sources(*LAYERS),
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "scripts").iterdir(),
    ]
    assert not [
        named(path) for path in texts if path.is_file() and WORDS_BANNED.search(path.read_text())
    ]


def test_each_markdown_has_one_title() -> None:
    documents = [path for folder in (".", "docs", *LAYERS) for path in (ROOT / folder).glob("*.md")]
    assert documents
    assert {
        named(path): found for path in documents if len(found := titles(path.read_text())) != 1
    } == {}


def test_links_between_documents_lead_somewhere() -> None:
    dead = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                dead.append(f"{named(path)} -> {target}")
    assert not dead


def test_scripts_can_be_run() -> None:
    for script in [
        *(path for path in (ROOT / "scripts").iterdir() if path.is_file()),
        ROOT / ".ci/run",
    ]:
        first = script.read_text().split("\n")[0]
        assert first.startswith("#!"), f"{named(script)} does not say what runs it"
        assert script.stat().st_mode & 0o111, f"{named(script)} is not executable"


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("tests/test_a.py", "import time\ntime.sleep(1)\n"),
        ("storage/log/log.py", "import os\nos.fsync(3)\n"),
        ("storage/log/log.py", "f = open('a')\n"),
        ("transport/client/blocking/client.py", "print('hello')\n"),
        ("actors/topic/topic.py", "import pickle\n"),
        ("apps/demo.py", "try:\n    pass\nexcept :\n    pass\n"),
        ("apps/demo.py", "breakpoint()\n"),
        ("apps/demo.py", "exec('a')\n"),
    ],
)
def test_the_bans_can_fail(name: str, source: str) -> None:
    assert len(banned(name, source)) == 1


def test_the_checks_of_sizes_can_fail() -> None:
    body = "    pass\n" * FUNCTION_LINES_MAX
    assert long_functions("a.py", ast.parse(f"def f():\n{body}"))
    assert not long_functions("a.py", ast.parse(f"def f():\n{body}".removesuffix("    pass\n")))
    assert titles("# a\n```\n# b\n```\n# c\n") == ["# a", "# c"]
