"""What holds where nothing is said of an option of `zsq serve`, for those whose default is not click's. Pure but for the imports."""

from __future__ import annotations

from typing import Any, Final

# What no number says.
WORDS: Final = {
    "listen_push": "port 4154 beside port 4153, else any free port of the same host",
    "stage_timeout": "15m, 24h once a task has sealed them",
    "alarm_mail_from": "zsq@ this machine",
    "nsq_listen": "127.0.0.1:4150 if free",
    "http_listen": "127.0.0.1:4151 if free, where zsq[http] is installed",
    "nsq_broadcast_address": "where it listens",
    "nsq_broadcast_tcp_port": "that of --nsq-listen",
    "nsq_broadcast_http_port": "that of --http-listen",
}


def usual(name: str) -> Any:
    """By an option's name; None where nothing is in force. Times in seconds."""
    if name in WORDS:
        return WORDS[name]
    value = _of_objects().get(name)
    return None if value in ("", (), -1) else value


def _of_objects() -> dict[str, Any]:
    """The defaults of the objects that the options end up in."""
    from dataclasses import fields
    from pathlib import Path

    from ...actors.alarm_options import AlarmOptions
    from ...actors.nsq.options import HttpOptions, NsqOptions, TlsOptions
    from ...actors.options import ServeOptions
    from ...storage.retention import Retention

    found: dict[str, Any] = {"chunk_bytes": ServeOptions(Path()).chunk_bytes}
    for prefix, of in (("nsq_tls_", TlsOptions()), ("nsq_", NsqOptions()), ("http_", HttpOptions()), ("alarm_", AlarmOptions())):
        for field in fields(of):
            value = getattr(of, field.name)
            if field.name.endswith("_ms"):
                value = value / 1000
            found.setdefault(prefix + field.name.removesuffix("_ms").removesuffix("_s"), value)
    kept = Retention()
    return found | {"keep_bytes": kept.keep_bytes, "keep_time": kept.keep_s, "keep_chunks": kept.keep_chunks}
