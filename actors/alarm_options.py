"""What `zsq serve` is told about backlog alarms: from where on, and whom to tell. Pure.

Secrets (a token, a password) never stand in a command line, where every user of the machine can read them: see `apps/cli/alarm_options.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from ..transport.errors import E_BAD_ARGUMENT, UsageError

HOLD_S: Final = 10.0  # above or below for so long until it counts
HOLD_S_MAX: Final = 86_400.0
RECEIVERS_MAX: Final = 16  # a thread each
MAIL_TLS: Final = ("none", "starttls", "tls")
_LOOPBACK: Final = ("127.", "localhost", "[::1]")
_ADDRESS: Final = re.compile(r"[^\s@<>,;\"]+@[^\s@<>,;\"]+")


@dataclass(frozen=True, slots=True)
class AlarmOptions:
    """`depth`, `age_s`: thresholds of channels that have none of their own, -1: none. `hold_s`: how long a backlog is above (or, to be
    cleared, below) before that is told. `webhooks`: URLs that get a JSON POST, with `webhook_token` as bearer. `mail_to`: addresses, by the
    server `smtp` ("host:port"), from `mail_from`. `commands`: argv each, JSON on stdin."""

    depth: int = -1
    age_s: float = -1
    hold_s: float = HOLD_S
    webhooks: tuple[str, ...] = ()
    webhook_token: str = field(default="", repr=False)
    mail_to: tuple[str, ...] = ()
    mail_from: str = ""
    smtp: str = "127.0.0.1:25"
    smtp_tls: str = "none"
    smtp_user: str = ""
    smtp_password: str = field(default="", repr=False)
    commands: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        _check(0 <= self.hold_s <= HOLD_S_MAX, f"an alarm is held 0 to {HOLD_S_MAX:g} s, not {self.hold_s}")
        for url in self.webhooks:
            check_url(url)
        for address in (*self.mail_to, *((self.mail_from,) if self.mail_from else ())):
            _check(_ADDRESS.fullmatch(address) is not None, f"{address[:80]!r} is not a mail address like ops@example.org")
        host, _, port = self.smtp.rpartition(":")
        good = bool(host) and port.isascii() and port.isdecimal() and 0 < int(port) < 65536
        _check(good, f"{self.smtp[:80]!r} is not HOST:PORT of a mail server")
        _check(self.smtp_tls in MAIL_TLS, f"mail goes with {', '.join(MAIL_TLS)}, not {self.smtp_tls[:40]!r}")
        plain = bool(self.smtp_password) and self.smtp_tls == "none" and not host.startswith(_LOOPBACK)
        _check(not plain, "a password goes to a mail server elsewhere only over TLS: --alarm-smtp-tls starttls or tls")
        _check(all(self.commands), "an alarm's command is empty")
        count = len(self.webhooks) + len(self.commands) + bool(self.mail_to)
        _check(count <= RECEIVERS_MAX, f"alarms are told to at most {RECEIVERS_MAX} receivers, not {count}")

    @property
    def tells(self) -> bool:
        return bool(self.webhooks or self.mail_to or self.commands)


def check_url(url: str) -> None:
    place = ""
    try:
        parts = urlsplit(url)
        place = parts.netloc
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    good = good and url.isascii() and url.isprintable() and " " not in url
    _check(good, f"a webhook is http://... or https://..., not {shown_url(url)!r}")
    _check("@" not in place, "a webhook's URL holds no password: give a token by ZSQ_ALARM_WEBHOOK_TOKEN")


def shown_url(url: str) -> str:
    """Scheme and host: of many services the rest is the secret."""
    scheme, _, rest = url.partition("://")
    host = rest.partition("/")[0].rpartition("@")[2]
    return f"{scheme[:10]}://{host[:100]}" if rest else url[:20]


def _check(good: bool, text: str) -> None:
    if not good:
        raise UsageError(E_BAD_ARGUMENT, text)
