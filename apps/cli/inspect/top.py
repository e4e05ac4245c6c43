"""zsq top: live view of the broker in a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self

import click

from ....actors.runtime.logs import escaped
from ...top import CLUSTER_VIEWS, COLUMNS
from ..manage.cluster import ask_cluster
from ..options import with_broker
from ..output import ColumnPlace, laid_out, wide_console

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from ....actors.statistics.cluster import Report
    from ....transport.client.blocking.client import Admin
    from ...top import Picture, Row, Screen, Usage

FILE_COLUMNS_TOP: Final = 180
NAMES: Final = ("topic", "channel", "name")
STATE_MAX: Final = 24  # the width of the column `state`; zsq stats shows the whole text
KEYS: Final = "1-5 view   < > sort column   r reverse   / filter   space pause   q quit"
SPECIAL: Final = {
    "[A": "up", "[B": "down", "[C": "right", "[D": "left", "[5~": "pageup", "[6~": "pagedown", "[H": "home", "[F": "end",
    "OA": "up", "OB": "down", "OC": "right", "OD": "left", "[1~": "home", "[4~": "end",
}  # fmt: skip
# The number of lines that are not rows: two above the table, two of its heading, one with the keys.
HEAD_LINES: Final = 5
ESCAPE_WAIT_S: Final = 0.05
SHARE_WAIT_S: Final = 0.5
FIRST_WAIT_S: Final = 0.1  # between looks for the first answer of the cluster


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2, max=3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds between refreshes.",
)
@click.option(
    "--view",
    type=click.Choice(["channels", "topics", "processes", "brokers", "parts"]),
    default="channels",
    show_default=True,
    help="First view.",
)
@click.option(
    "--filter",
    "wanted",
    default="",
    metavar="TEXT",
    help="Show only rows whose name contains this text.",
)
@click.option("--once", is_flag=True, help="Print once and exit. Works without a terminal, too.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object per refresh, or a single one with --once.",
)
@with_broker
def top(
    interval: float, view: str, wanted: str, once: bool, as_json: bool, url: str, timeout: float
) -> None:
    """Watch channels, topics, processes or the cluster, sorted by any column and refreshed once a
    second. The first three views ask only the supervisor.

    The views brokers and parts show the whole cluster: its brokers with their role and lag, and
    the topics with parts, summed up over all brokers. They ask the supervisors of all brokers. A
    broker that does not answer within 2 s is shown as away.

    Keys: 1 channels, 2 topics, 3 processes, 4 brokers, 5 parts; < and > choose the sort column, r
    reverses the order; / filters by name; space pauses; arrow and page keys scroll; q quits.
    """
    from ....transport.client.blocking.client import Admin
    from ...top import Picture, Screen, Usage

    screen, picture, usage = Screen(view=view, filter=wanted), Picture(), Usage.here()
    with Admin(url, timeout=timeout) as admin, ClusterLook(url, timeout) as look:
        if as_json:
            _json_lines(admin, look, picture, screen, interval, once=once)
        elif once or not sys.stdout.isatty():
            _once(admin, look, picture, screen, usage, url)
        else:
            _live(admin, look, picture, screen, usage, url, interval)


class ClusterLook:
    """Asks the brokers of the cluster in a thread, so that one that is away delays no key."""

    def __init__(self, url: str, timeout: float) -> None:
        self._url, self._timeout = url, timeout
        self._thread = ThreadPoolExecutor(1)
        self._asked: Future[Report] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def ask(self, picture: Picture, *, wait: bool) -> None:
        """Give the picture the last answers, if there are new ones, and ask again.

        With `wait`, return when the picture has them. Raises `ZsqError` if the broker at the URL
        refuses to answer.
        """
        if self._asked is None:
            self._asked = self._thread.submit(self._ask)
        if wait or self._asked.done():
            task, self._asked = self._asked, None
            picture.take_cluster(task.result())

    def _ask(self) -> Report:
        from ....actors.gateways.cluster_survey import by_overview

        return ask_cluster(self._url, self._timeout, by_overview)


def _ask(
    admin: Admin, look: ClusterLook, picture: Picture, screen: Screen, *, wait: bool = True
) -> None:
    overview: Any = admin.overview(since=picture.version, processes=screen.view == "processes")
    picture.take(overview)
    if screen.view in CLUSTER_VIEWS:
        look.ask(picture, wait=wait)


def _json_lines(
    admin: Admin,
    look: ClusterLook,
    picture: Picture,
    screen: Screen,
    interval: float,
    *,
    once: bool,
) -> None:
    while True:
        _ask(admin, look, picture, screen)
        rows = screen.arranged(picture.rows(screen.view, time.time_ns()))
        click.echo(
            json.dumps({"broker": picture.broker, "sum": picture.summary(), screen.view: rows})
        )
        sys.stdout.flush()
        if once:
            return
        time.sleep(interval)


def _rows(picture: Picture, screen: Screen, usage: Usage, url: str) -> list[Row]:
    used = None
    if screen.view == "processes" and url.startswith("ipc://") and "tcp://" not in url:
        used = usage.look(row["pid"] for row in picture.rows("processes", 0))
    return screen.arranged(picture.rows(screen.view, time.time_ns(), used))


def _once(
    admin: Admin, look: ClusterLook, picture: Picture, screen: Screen, usage: Usage, url: str
) -> None:
    console = wide_console(FILE_COLUMNS_TOP)
    _ask(admin, look, picture, screen)
    if screen.view == "processes":
        _rows(picture, screen, usage, url)
        time.sleep(SHARE_WAIT_S)  # the share of a processor is measured between two calls
    console.print(head(picture, url))
    for shown in tables(screen, _rows(picture, screen, usage, url), console.width):
        console.print(shown)


def _live(
    admin: Admin,
    look: ClusterLook,
    picture: Picture,
    screen: Screen,
    usage: Usage,
    url: str,
    interval: float,
) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    rows: list[Row] = []
    due = 0.0
    with (
        keyboard() as pressed,
        Live(console=console, screen=True, auto_refresh=False) as live,
        contextlib.suppress(KeyboardInterrupt),
    ):
        while not screen.over:
            view = screen.view
            if time.monotonic() >= due and not screen.paused:
                _ask(admin, look, picture, screen, wait=False)
                rows = _rows(picture, screen, usage, url)
                first = screen.view in CLUSTER_VIEWS and picture.waits
                due = time.monotonic() + (FIRST_WAIT_S if first else interval)
            live.update(drawn(console, picture, screen, rows, url), refresh=True)
            for key in pressed(
                max(0.0, min(due - time.monotonic(), interval)) if not screen.paused else interval
            ):
                screen.press(key, console.size.height - HEAD_LINES)
            if screen.view != view:
                rows, due = [], 0.0
            else:
                rows = (
                    screen.arranged(rows)
                    if screen.paused or not screen.filter
                    else _rows(picture, screen, usage, url)
                )


# Drawing


def drawn(
    console: Console, picture: Picture, screen: Screen, rows: list[Row], url: str
) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    shown = screen.window(rows, console.size.height - HEAD_LINES)
    if screen.typing:
        foot = Text(f"filter: {screen.filter}_", style="bold")
    else:
        held = "PAUSED   " if screen.paused else ""
        filtered = f"filter {screen.filter!r} (escape: clear)   " if screen.filter else ""
        place = (
            f"{screen.first + 1}-{screen.first + len(shown)} of {len(rows)}   "
            if len(shown) < len(rows)
            else ""
        )
        foot = Text(
            f"{held}{filtered}{place}{KEYS}", style="dim", no_wrap=True, overflow="ellipsis"
        )
    return Group(head(picture, url), table(screen, shown, console.size.width), foot)


def head(picture: Picture, url: str) -> RenderableType:
    """Return the two lines above the table. They fit into 80 columns while all is well."""
    from rich.text import Text

    from ...top import age, count, rate, size

    broker, summary = picture.broker, picture.summary()
    up = age(max(0.0, time.time() - broker["start_ms"] / 1000))
    processes = number_of(broker["processes"], "process", "processes")
    text = Text(
        f"zsq {broker['version']} at {url}, up {up}, {processes}, "
        f"{size(summary['log_bytes'])} on disk, ",
        no_wrap=True,
        overflow="ellipsis",
    )
    text.append(str(broker["health"]), style="green" if broker["health"] == "OK" else "bold red")
    if broker["alarms"]:
        text.append(f", {number_of(broker['alarms'], 'alarm')}", style="bold yellow")
    sums = f"{number_of(summary['topics'], 'topic')}, {number_of(summary['channels'], 'channel')}"
    flow = (
        f"in {rate(summary['in_rate'])}/s ({size(summary['in_bytes_rate'])}/s), out "
        f"{rate(summary['out_rate'])}/s"
    )
    text.append(
        f"\n{sums}; {flow}; {count(summary['depth'])} waiting, {count(summary['in_flight'])} in "
        "flight"
    )
    return text


def number_of(count: int, one: str, several: str = "") -> str:
    """Return a number with its noun, such as "1 topic" and "2 topics"."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def tables(screen: Screen, rows: Sequence[Row], width: int) -> list[RenderableType]:
    """Return all columns in one table, or in several tables that repeat the names if they do not
    fit.
    """
    cells, names, pages = _laid_out(screen, rows, width)
    return [_table(screen, rows, cells, names, page) for page in pages]


def table(screen: Screen, rows: Sequence[Row], width: int) -> RenderableType:
    """Return one table as wide as the terminal.

    It has the names and the page of columns that includes the sort column.
    """
    cells, names, pages = _laid_out(screen, rows, width)
    order = [column.key for column in COLUMNS[screen.view]].index(screen.order[screen.view]) - len(
        names
    )
    page = next(
        (
            columns_of_page
            for columns_of_page in pages
            if any(place.at == order for place in columns_of_page)
        ),
        pages[0],
    )
    return _table(screen, rows, cells, names, page)


def _laid_out(
    screen: Screen, rows: Sequence[Row], width: int
) -> tuple[list[list[str]], list[int], list[list[ColumnPlace]]]:
    columns = COLUMNS[screen.view]
    cells = [
        [
            escaped(column.shown(row[column.key])) if row[column.key] is not None else ""
            for column in columns
        ]
        for row in rows
    ]
    wide = [
        max(
            len(column.title) + (column.key == screen.order[screen.view]),
            *(len(row[at]) for row in cells),
            0,
        )
        for at, column in enumerate(columns)
    ]
    first = sum(column.key in NAMES for column in columns)
    others = [
        min(column_width, STATE_MAX) if columns[first + at].is_text else column_width
        for at, column_width in enumerate(wide[first:])
    ]
    names, pages = laid_out(width, wide[:first], others)
    return cells, names, pages


def _table(
    screen: Screen,
    rows: Sequence[Row],
    cells: list[list[str]],
    names: Sequence[int],
    page: Sequence[ColumnPlace],
) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns = COLUMNS[screen.view]
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    places = [
        *(ColumnPlace(at, width) for at, width in enumerate(names)),
        *(ColumnPlace(len(names) + at, width) for at, width in page),
    ]
    for at, width in places:
        column = columns[at]
        sorted_by = column.key == screen.order[screen.view]
        mark = ("↑" if screen.turned.get(screen.view) else "↓") if sorted_by else ""
        title = Text(column.title + mark, style="bold reverse" if sorted_by else "bold")
        shown.add_column(
            title,
            justify="left" if column.is_text else "right",
            no_wrap=True,
            overflow="ellipsis",
            width=width,
        )
    for row, texts in zip(rows, cells, strict=True):
        shown.add_row(*(Text(texts[at]) for at, _ in places), style="yellow" if row["said"] else "")
    return shown


# The keyboard


@contextlib.contextmanager
def keyboard() -> Iterator[Any]:
    """Yield a function that waits for keys up to a number of seconds, and returns them.

    At the end, the terminal's settings are restored. Windows has no such settings, and so no keys.
    """
    if not sys.stdin.isatty() or find_spec("termios") is None:
        yield nobody
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield lambda wait_s: keys(fd, wait_s)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def nobody(wait_s: float) -> list[str]:
    time.sleep(wait_s)
    return []


def keys(fd: int, wait_s: float) -> list[str]:
    """Return the pressed keys. A special key is returned by its name, and the end of input as
    `q`.
    """
    if not select.select([fd], [], [], wait_s)[0]:
        return []
    data = os.read(fd, 1024)
    if data == b"\x1b" and select.select([fd], [], [], ESCAPE_WAIT_S)[0]:
        data += os.read(fd, 1024)  # the rest of the sequence that a special key sends
    return named(data.decode(errors="replace")) if data else ["q"]


def named(text: str) -> list[str]:
    keys: list[str] = []
    while text:
        sequence = next(
            (
                special
                for special in sorted(SPECIAL, key=len, reverse=True)
                if text.startswith(f"\x1b{special}")
            ),
            None,
        )
        if sequence is not None:
            keys.append(SPECIAL[sequence])
            text = text[1 + len(sequence) :]
            continue
        keys.append(
            {
                "\x1b": "escape",
                "\r": "enter",
                "\n": "enter",
                "\x7f": "backspace",
                "\x08": "backspace",
            }.get(text[0], text[0])
        )
        text = text[1:]
    return keys
