"""Tests of joining the console's modules into one file. The file contains each module once, in the
order of the imports, and each module keeps its own scope. If the joiner does not understand a line,
it refuses it, and the error names the module and the line.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from zsq.actors.gateways.http.console.bundle import CannotJoin, join_modules, join_sheets
from zsq.actors.gateways.http.console.files import ConsoleFiles

CONSOLE = Path(__file__).resolve().parents[5] / "apps/console"
PAGE = (
    '<head>\n<link rel="stylesheet" href="/console/a.css">\n<link rel="stylesheet" '
    'href="/console/b.css">\n{}\n</head>\n'
).format('<script type="module" src="/console/main.js"></script>')
MODULES = {
    "main.js": """// M.
import { once } from "./base/once.js";
import { once as again, Row } from "./view/row.js";
said.push(once(), again(), new Row().x);
""",
    "base/once.js": """// O.
said.push("base");
const row = 1;
export function once() {
  return row;
}
""",
    "view/row.js": """// R.
import { once as first } from "../base/once.js";
const row = 2;
export const once = () => first() + row;
export class Row {
  x = row;
}
""",
    "view/unused.js": "// U.\nsaid.push('unused');\n",
}


def test_joined_modules_run_in_the_order_of_their_imports(tmp_path: Path) -> None:
    joined = join_modules(MODULES)
    assert joined.count('said.push("base")') == 1
    assert "unused" not in joined
    assert not re.search(r"^\s*(import|export)\b", joined, re.MULTILINE)
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here; the console's own tests run the joined script in a browser")
    script = tmp_path / "all.mjs"
    script.write_text(f"globalThis.said = [];\n{joined}console.log(JSON.stringify(said));\n")
    answer = subprocess.run([node, script], capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(answer.stdout) == ["base", 1, 3, 2]


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        (
            "main.js",
            'import one from "./base/once.js";',
            "main.js has an import or export that cannot be joined: import one",
        ),
        ("main.js", 'import { once } from "elsewhere";', "cannot be joined"),
        (
            "base/once.js",
            "export default 1;",
            "base/once.js has an import or export that cannot be joined: export default 1",
        ),
        ("base/once.js", "export let many = 1;", "cannot be joined"),
        ("base/once.js", 'const one = await import("./x.js");', "cannot be joined"),
        (
            "main.js",
            'import { a } from "./none.js";',
            "main.js imports none.js, which does not exist",
        ),
        (
            "base/once.js",
            'import { Row } from "../view/row.js";',
            "imports itself: main.js > base/once.js > view/row.js > base/once.js",
        ),
    ],
)
def test_each_line_that_cannot_be_joined_is_named(name: str, line: str, said: str) -> None:
    with pytest.raises(CannotJoin, match=re.escape(said)):
        join_modules({**MODULES, name: f"// X.\n{line}\n"})


def test_the_joined_page_loads_one_sheet_and_one_script() -> None:
    page, sheet = join_sheets(PAGE, {"b.css": "/* b */", "a.css": "/* a */"})
    assert sheet == "/* a */\n/* b */"
    assert re.findall(r'(?:src|href)="([^"]+)"', page) == ["/console/all.css", "/console/all.js"]


@pytest.mark.parametrize(
    "page",
    [
        PAGE.replace("b.css", "c.css"),
        PAGE.replace("main.js", "x.js"),
        PAGE.replace("stylesheet", "icon"),
    ],
)
def test_a_page_with_other_sheets_or_scripts_is_refused(page: str) -> None:
    with pytest.raises(CannotJoin):
        join_sheets(page, {"b.css": "", "a.css": ""})


def test_the_console_is_joined(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        files = ConsoleFiles(str(CONSOLE))
    assert not caplog.records
    script = files.read("all.js").decode()
    for path in CONSOLE.rglob("*.js"):
        name = path.relative_to(CONSOLE).as_posix()
        # `early.js` is no module. The page loads it first.
        assert script.count(f"// {name}\n") == (name != "early.js"), name
    sheet = files.read("all.css").decode()
    assert all(path.read_text() in sheet for path in CONSOLE.rglob("*.css"))
    asked = re.findall(r'(?:src|href)="/console/([^"]+)"', files.read("index.html").decode())
    assert asked == ["icon.svg", "early.js", "all.css", "all.js"]


def test_a_folder_that_cannot_be_joined_is_served_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, text in {
        "index.html": PAGE,
        "a.css": "",
        "b.css": "",
        "main.js": "// M.\nexport default 1;\n",
    }.items():
        (tmp_path / name).write_text(text)
    files = ConsoleFiles(str(tmp_path))
    assert files.read("index.html").decode() == PAGE
    assert "one by one" in caplog.text
