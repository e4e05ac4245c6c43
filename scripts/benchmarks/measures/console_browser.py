"""Time from the navigation to the console's first row, in headless Chromium if it is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Final

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS: Final = 30_000
SAID: Final = "first row "
# The browser runs this script before the page's own code. It reports the time at which the first
# row is drawn, by the page's clock, which starts at the navigation.
_WATCH: Final = """
new MutationObserver((_, observer) => {
    if (document.querySelector("tbody tr")) {
        observer.disconnect();
        requestAnimationFrame(() => console.debug(`first row ${performance.now()}`));
    }
}).observe(document, {childList: true, subtree: true});
"""


def browser_here() -> str:
    """Return the path of the browser, or "" if it or playwright is missing."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return ""
    return next(
        (
            found
            for name in (os.environ.get("ZSQ_BROWSER", ""), *BROWSERS)
            if name and (found := shutil.which(name))
        ),
        "",
    )


def first_rows_ms(
    executable: str, url: str, places: Sequence[str], times: int
) -> dict[str, list[float]]:
    """Return the times for each place (`#/`), each in a fresh page without cache.

    The browser itself is already running.
    """
    from playwright.sync_api import sync_playwright

    found: dict[str, list[float]] = {place: [] for place in places}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable, headless=True, args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            for _ in range(times):
                for place in places:
                    context = browser.new_context(viewport={"width": 1360, "height": 900})
                    page = context.new_page()
                    page.add_init_script(_WATCH)
                    said = lambda message: message.text.startswith(SAID)  # noqa: E731 - evaluates nothing: the page's policy forbids it
                    with page.expect_console_message(said, timeout=PATIENCE_MS) as heard:
                        page.goto(f"{url}/{place}", wait_until="commit")
                    found[place].append(float(heard.value.text.removeprefix(SAID)))
                    context.close()
        finally:
            browser.close()
    return found
