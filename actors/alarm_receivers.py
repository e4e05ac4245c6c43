"""Who is told of alarms: a webhook, mail, a command. Each tells once, within a time-out, or raises `NotTold`; it runs in a thread.

What they need is imported when the first is used: these modules cost 5 MB that no other actor should carry.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any, Final, Protocol

from .alarm_options import AlarmOptions, shown_url

TIMEOUT_S: Final = 10.0  # of each step of a connection
COMMAND_S: Final = 30.0
_TAIL: Final = 200  # characters of what a receiver said against it


class NotTold(Exception):
    """This try failed; the text says why, without secrets."""


class Receiver(Protocol):
    name: str  # for people; without secrets

    def tell(self, message: dict[str, Any]) -> None: ...


class Webhook:
    """POST of JSON; any 2xx is well. Redirects are not followed: they would make a GET of it."""

    def __init__(self, url: str, token: str) -> None:
        self.name = f"webhook {shown_url(url)}"
        self._url = url
        self._token = token

    def tell(self, message: dict[str, Any]) -> None:
        import http.client
        import urllib.error
        import urllib.request

        class Stay(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:
                return None

        headers = {"Content-Type": "application/json", "User-Agent": "zsq"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._url, json.dumps(message).encode(), headers, method="POST")
        try:
            with urllib.request.build_opener(Stay).open(request, timeout=TIMEOUT_S) as answer:
                if not 200 <= answer.status < 300:
                    raise NotTold(f"it answered {answer.status}")
        except urllib.error.HTTPError as error:
            error.close()
            raise NotTold(f"it answered {error.code} {str(error.reason)[:_TAIL]}") from None
        except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
            reason = getattr(error, "reason", None) or error
            raise NotTold(f"not reached: {str(reason)[:_TAIL] or type(error).__name__}") from None


class Mail:
    """One mail for what is told together."""

    def __init__(self, given: AlarmOptions) -> None:
        self.name = f"mail to {', '.join(given.mail_to)} by {given.smtp}"
        self._given = given

    def tell(self, message: dict[str, Any]) -> None:
        import smtplib
        import ssl
        from email.message import EmailMessage
        from email.utils import formatdate, make_msgid

        given = self._given
        host, _, port = given.smtp.rpartition(":")
        lines = message["text"].splitlines()
        mail = EmailMessage()
        mail["Subject"] = f"[zsq {message['broker']['host']}] {lines[0] if len(lines) == 1 else f'{len(lines)} backlog alarms'}"
        mail["From"] = given.mail_from or f"zsq@{message['broker']['host']}"
        mail["To"] = ", ".join(given.mail_to)
        mail["Date"] = formatdate(localtime=True)
        mail["Message-ID"] = make_msgid(domain="zsq")
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(message["text"] + f"\n\nzsq on {message['broker']['host']}, {message['broker']['data_dir']}\n")
        secure = ssl.create_default_context()
        try:
            with (
                smtplib.SMTP_SSL(host.strip("[]"), int(port), timeout=TIMEOUT_S, context=secure)
                if given.smtp_tls == "tls"
                else smtplib.SMTP(host.strip("[]"), int(port), timeout=TIMEOUT_S)
            ) as server:
                if given.smtp_tls == "starttls":
                    server.starttls(context=secure)
                if given.smtp_user:
                    server.login(given.smtp_user, given.smtp_password)
                refused = server.send_message(mail)
        except smtplib.SMTPAuthenticationError:
            raise NotTold("the mail server refuses user and password") from None
        except (OSError, smtplib.SMTPException) as error:
            raise NotTold(f"{type(error).__name__}: {str(error)[:_TAIL]}") from None
        if refused:
            raise NotTold(f"refused for {', '.join(sorted(refused))[:_TAIL]}")


class Command:
    """A program of its own session, with JSON on stdin; exit code 0 is well. No shell takes part."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.name = f"command {argv[0]}"
        self._argv = list(argv)

    def tell(self, message: dict[str, Any]) -> None:
        with tempfile.TemporaryFile() as said:  # not a pipe: what the program leaves behind may hold that open
            try:
                program = subprocess.Popen(
                    self._argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True, cwd="/"
                )
            except OSError as error:
                raise NotTold(f"cannot be started: {error.strerror or error}") from None
            try:
                program.communicate(json.dumps(message).encode() + b"\n", timeout=COMMAND_S)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)
                program.communicate()
                raise NotTold(f"did not end within {COMMAND_S:g} s: killed") from None
            if program.returncode:
                said.seek(max(0, said.seek(0, os.SEEK_END) - _TAIL))
                words = " ".join(said.read().decode(errors="replace").split())
                raise NotTold(f"ended with {program.returncode}" + (f": {words}" if words else ""))


def receivers(given: AlarmOptions) -> list[Receiver]:
    found: list[Receiver] = [Webhook(url, given.webhook_token) for url in given.webhooks]
    found += [Mail(given)] if given.mail_to else []
    return [*found, *(Command(argv) for argv in given.commands)]
