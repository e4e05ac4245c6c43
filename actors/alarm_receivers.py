"""Who is told of alarms: a webhook, mail, a command. Each tells once, within TRY_S, or raises `NotTold`; it runs in a thread.

What they need is imported when the first is used: these modules cost 5 MB that no other actor should carry.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from .alarm_deadline import Deadline
from .alarm_options import AlarmOptions, shown_url

if TYPE_CHECKING:
    import smtplib
    import ssl

TRY_S: Final = 30.0  # all of it, from the connection or the command's start on
TIMEOUT_S: Final = 10.0  # of each step of a connection: for somebody who says nothing at all
_MINDER: Final = str(Path(__file__).with_name("alarm_minder.py"))
_MINDER_S: Final = 10.0  # for what it does before and after the command's time
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

        headers = {"Content-Type": "application/json", "User-Agent": "zsq"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._url, json.dumps(message).encode(), headers, method="POST")
        with Deadline(TRY_S) as deadline:
            try:
                with _opener(deadline).open(request, timeout=TIMEOUT_S) as answer:
                    if deadline.over:  # to http.client the end of a connection is the end of headers too
                        raise TimeoutError
                    if not 200 <= answer.status < 300:
                        raise NotTold(f"it answered {answer.status}")
            except urllib.error.HTTPError as error:
                error.close()
                raise NotTold(f"it answered {error.code} {str(error.reason)[:_TAIL]}") from None
            except (OSError, http.client.HTTPException) as error:  # URLError is an OSError
                reason = getattr(error, "reason", None) or error
                raise NotTold(_late(deadline) or f"not reached: {str(reason)[:_TAIL] or type(error).__name__}") from None


def _opener(deadline: Deadline) -> Any:
    """urllib's, with connections that the deadline holds, and no redirects."""
    import http.client
    import ssl
    import urllib.request

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: Any) -> None:
            return None

    class Plain(http.client.HTTPConnection):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self._create_connection = deadline.connect

    class Secure(http.client.HTTPSConnection):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self._create_connection = deadline.connect

    class Http(urllib.request.HTTPHandler):
        def http_open(self, req: Any) -> Any:
            return self.do_open(Plain, req)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, req: Any) -> Any:
            return self.do_open(Secure, req, context=ssl.create_default_context())

    return urllib.request.build_opener(Stay, Http, Https)


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
        refused: dict[str, Any] = {}
        with Deadline(TRY_S) as deadline:
            try:
                with _mail_server(deadline, host.strip("[]"), int(port), secure if given.smtp_tls == "tls" else None) as server:
                    if given.smtp_tls == "starttls":
                        server.starttls(context=secure)
                    if given.smtp_user:
                        server.login(given.smtp_user, given.smtp_password)
                    refused = server.send_message(mail)
            except smtplib.SMTPAuthenticationError:
                raise NotTold("the mail server refuses user and password") from None
            except (OSError, smtplib.SMTPException) as error:
                raise NotTold(_late(deadline) or f"{type(error).__name__}: {str(error)[:_TAIL]}") from None
        if refused:
            raise NotTold(f"refused for {', '.join(sorted(refused))[:_TAIL]}")


def _mail_server(deadline: Deadline, host: str, port: int, secure: ssl.SSLContext | None) -> smtplib.SMTP:
    """Connected, by TLS where that is given; the deadline holds the connection."""
    import smtplib

    class Plain(smtplib.SMTP):
        def _get_socket(self, *arguments: Any) -> Any:
            return deadline.hold(super()._get_socket(*arguments))  # type: ignore[misc]  # the place that smtplib has for this

    class Secure(smtplib.SMTP_SSL, Plain):
        """SMTP_SSL puts TLS on the socket that Plain gets."""

    return Plain(host, port, timeout=TIMEOUT_S) if secure is None else Secure(host, port, timeout=TIMEOUT_S, context=secure)


class Command:
    """A program of its own session, with JSON on stdin; exit code 0 is well. No shell takes part."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.name = f"command {argv[0]}"
        self._argv = list(argv)

    def tell(self, message: dict[str, Any]) -> None:
        """By a process between (`alarm_minder.py`), which also ends it when this one ends, killed or not."""
        with tempfile.TemporaryFile() as said:  # not a pipe: what the program leaves behind may hold that open
            outcome, _, more = self._run(json.dumps(message).encode() + b"\n", said).partition(" ")
            if outcome == "unstarted":
                raise NotTold(f"cannot be started: {more}")
            if outcome == "late":
                raise NotTold(f"did not end within {TRY_S:g} s: killed")
            if (outcome, more) != ("ended", "0"):
                said.seek(max(0, said.seek(0, os.SEEK_END) - _TAIL))
                words = " ".join(said.read().decode(errors="replace").split())
                raise NotTold(f"ended with {more or 'nothing said: what minds it was killed'}" + (f": {words}" if words else ""))

    def _run(self, message: bytes, said: IO[bytes]) -> str:
        """What the minder says of it."""
        theirs, lifeline = os.pipe()
        given = os.memfd_create("alarm")
        try:
            os.write(given, message)
            os.lseek(given, 0, os.SEEK_SET)
            argv = [sys.executable, "-I", "-S", _MINDER, str(TRY_S), str(given), *self._argv]
            minder = subprocess.Popen(
                argv, stdin=theirs, stdout=subprocess.PIPE, stderr=said, pass_fds=(given,), start_new_session=True, cwd="/"
            )
        except OSError as error:
            os.close(lifeline)
            return f"unstarted {error.strerror or error}"
        finally:
            os.close(theirs)
            os.close(given)
        try:
            return minder.communicate(timeout=TRY_S + _MINDER_S)[0].decode(errors="replace")
        except subprocess.TimeoutExpired:  # it is stopped, say
            minder.kill()
            minder.communicate()
            return "late"
        finally:
            os.close(lifeline)


def _late(deadline: Deadline) -> str:
    return f"not done within {TRY_S:g} s: cut off" if deadline.over else ""


def receivers(given: AlarmOptions) -> list[Receiver]:
    found: list[Receiver] = [Webhook(url, given.webhook_token) for url in given.webhooks]
    found += [Mail(given)] if given.mail_to else []
    return [*found, *(Command(argv) for argv in given.commands)]
