"""A headless Chromium for the console's tests. It shows one page of a broker, and each error that
the browser reports is a failure of the test.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

CHROMIUM: Final = (
    shutil.which("chromium") or shutil.which("chromium-browser") or "/usr/bin/chromium"
)
PATIENCE_MS: Final = 20_000
# Errors that tests provoke on purpose: refused requests, and a broker that does not run any more.
EXPECTED: Final = (
    "Failed to load resource",
    "ERR_CONNECTION_REFUSED",
    "ERR_INCOMPLETE_CHUNKED_ENCODING",
)


@contextmanager
def chromium() -> Iterator[Any]:
    """Return a browser. If there is none, the test is skipped. In continuous integration
    it fails.
    """
    if not Path(CHROMIUM).exists():
        assert os.environ.get("CI") != "true", (
            "continuous integration must have Chromium: apt-get install chromium"
        )
        pytest.skip("there is no Chromium on this machine (apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        assert os.environ.get("CI") != "true", (
            "continuous integration must have playwright: pip install -e .[test-browser]"
        )
        pytest.skip("playwright is not installed (pip install -e .[test-browser])")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A page of a broker's console. Its methods do what a person would do."""

    def __init__(self, browser: Any, url: str, **context: Any) -> None:
        self.url = url
        self.complaints: list[str] = []
        self.context = browser.new_context(
            **{
                "viewport": {"width": 1360, "height": 900},
                "timezone_id": "Europe/Berlin",
                **context,
            }
        )
        self.context.set_default_timeout(PATIENCE_MS)
        self.page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.complaints.append(f"pageerror: {error}"))
        self.page.on("console", self._said)
        self.page.on("dialog", lambda dialog: self.complaints.append(f"alert: {dialog.message}"))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning") and not any(
            part in message.text for part in EXPECTED
        ):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, place: str = "#/") -> Any:
        """Go to a place of the console, and load the page again."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/{place}")
        return self.page

    def press(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).first.click()

    def dialog(self) -> Any:
        found = self.page.locator("dialog[open]")
        found.wait_for()
        return found

    def agree(self, button: str, typed: str = "") -> None:
        """Type what a dialog asks for, confirm it, and wait until it is closed."""
        dialog = self.dialog()
        if typed:
            dialog.locator("input").first.fill(typed)
        dialog.get_by_role("button", name=button, exact=True).click()
        dialog.wait_for(state="detached")

    def sees(self, text: str) -> None:
        self.page.locator("#page, .toasts, .banner, dialog").get_by_text(text).first.wait_for()

    def row(self, name: str) -> Any:
        """Return the row of a table that contains this name."""
        return (
            self.page.locator("tbody tr").filter(has=self.page.get_by_text(name, exact=True)).first
        )

    def cell(self, row: str, column: str) -> str:
        return str(self.row(row).locator(f"td.c-{column}").inner_text()).strip()

    def wait_cell(self, row: str, column: str, wanted: str) -> None:
        self.until(lambda: self.cell(row, column) == wanted, f"{column} of {row} to be {wanted}")

    def figure(self, key: str) -> str:
        return str(self.page.locator(f'[data-figure="{key}"] dd > span').inner_text())

    def wait_figure(self, key: str, wanted: str) -> None:
        self.until(lambda: self.figure(key) == wanted, f"the figure {key} to be {wanted}")

    def until(self, condition: Any, what: str, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
            self.page.wait_for_timeout(50)

    def close(self) -> None:
        self.context.close()
