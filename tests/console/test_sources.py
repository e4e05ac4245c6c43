"""Tests of the console's sources: small modules with captions, no foreign code, no inline code, and
no way in which data can become markup.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Final

import pytest

from zsq.actors.gateways.http.console.files import SETTINGS

pytestmark = pytest.mark.smoke

ROOT: Final = Path(__file__).resolve().parents[2] / "apps/console"
LINES_MAX: Final = 400
SOURCES: Final = sorted(path for path in ROOT.rglob("*") if path.suffix in (".js", ".css", ".html"))
MARKUP: Final = re.compile(
    r"\.(innerHTML|outerHTML)\s*=[^=]|insertAdjacentHTML|document\.write|createContextualFragment|"
    r"DOMParser|\beval\(|new Function|srcdoc"
)
INLINE: Final = re.compile(
    r"\sstyle=|\son\w+=|<style|<script(?![^>]*\ssrc=)|javascript:", re.IGNORECASE
)
FOREIGN: Final = re.compile(r"(https?:)?//[\w-]+\.[\w.-]+")
ALLOWED: Final = ("http://www.w3.org", "https://chat.example.org", "//chat.example.org")


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_there_are_sources() -> None:
    assert {"index.html", "main.js", "css/theme.css"} <= {named(path) for path in SOURCES}


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_each_source_is_short_captioned_and_free_of_foreign_code(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= LINES_MAX
    if path.suffix == ".js":
        assert re.match(r"// [A-Z].*[.:,]?", text), "the first line is a caption"
        assert not MARKUP.search(text), "what is shown goes in by textContent"
        assert "style.cssText" not in text
    if path.suffix == ".css":
        assert text.startswith("/* ")
        assert "@import" not in text
        assert "url(" not in text
    if path.suffix == ".html":
        assert not INLINE.search(text), "the content security policy permits nothing inline"
    foreign = [
        found.group() for found in FOREIGN.finditer(text) if not found.group().startswith(ALLOWED)
    ]
    assert not foreign, "nothing is asked of another host"


def test_the_page_names_every_sheet() -> None:
    """The scripts and sheets are joined when they are read
    (tests/actors/gateways/http/console/test_console_bundle.py).
    """
    page = (ROOT / "index.html").read_text()
    assert set(re.findall(r'rel="stylesheet" href="/console/([^"]+)"', page)) == {
        named(path) for path in SOURCES if path.suffix == ".css"
    }


def test_each_import_names_an_existing_file() -> None:
    for path in SOURCES:
        for target in re.findall(r'^import .* from "([^"]+)";', path.read_text(), re.MULTILINE):
            found = (path.parent / target).resolve()
            assert found.is_file() or named(found) == SETTINGS, f"{named(path)} imports {target}"


@pytest.mark.parametrize(
    "line", ['one.innerHTML = "a"', "x.insertAdjacentHTML(y)", "new Function(a)", "eval(a)"]
)
def test_the_ban_can_fail(line: str) -> None:
    assert MARKUP.search(line)
    assert INLINE.search('<a style="x">')
    assert INLINE.search("<script>a</script>")
    assert not INLINE.search('<script src="/console/early.js"></script>')
    assert FOREIGN.search("https://cdn.example.com/x.js")


def test_each_picture_is_shown_in_the_documentation() -> None:
    """tests/console/pictures.py takes the pictures. Each is shown in docs/console.md or in the
    README.
    """
    folder = ROOT.parents[1] / "docs/pictures"
    shown = (ROOT.parents[1] / "docs/console.md").read_text() + (
        ROOT.parents[1] / "README.md"
    ).read_text()
    pictures = sorted(folder.glob("console-*.png"))
    assert pictures
    for picture in pictures:
        data = picture.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert len(data) < 250_000
        assert struct.unpack(">II", data[16:24]) == (1280, 800)
        assert f"pictures/{picture.name}" in shown, f"{picture.name} is shown nowhere"
