"""Promised surface of ZSQ: what users and their programs may rely on, as one tree of texts.

`docs/compatibility.md` says what is promised. This file collects it from the code: public names
with their signatures and defaults, answers and reports, commands with their options, paths of HTTP,
metrics, settings, headers, environment variables, kinds of alarms, options and columns of Spark,
what other libraries are given, error codes, permissions, messages of the wire, and versions of the
formats.

Run it to write `promised.json` again, after something was added: python tests/compat/promised.py
It refuses to write a surface that lacks what is promised.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, is_typeddict

import click
import yaml

import zsq
import zsq.aio
import zsq.inbox
import zsq.outbox
import zsq.testing
from zsq.actors.alarms.backlog import KINDS
from zsq.actors.channel import priorities
from zsq.actors.security.policy import RULES
from zsq.actors.settings import schedule_settings
from zsq.actors.statistics.schema import METRICS
from zsq.apps.cli import exit_codes
from zsq.apps.cli.app import app
from zsq.apps.spark.options import SINK_NAMES, SOURCE_NAMES
from zsq.apps.spark.schema import HEADERS, SINK_COLUMNS, SOURCE_COLUMNS
from zsq.transport import errors, reports, settings
from zsq.transport.wire import answers, codec, dead_letter, lifetime, protocol_client
from zsq.transport.wire.protocol import WORDS

ROOT: Final = Path(zsq.__file__).resolve().parent
FILE: Final = Path(__file__).with_name("promised.json")
API: Final = "/api/v1/"  # to receive messages over HTTP
HOW: Final = "python tests/compat/promised.py"
MODULES: Final = (zsq, zsq.aio, zsq.testing, zsq.inbox, zsq.outbox)
FORMATS: Final = (
    "transport.block.block_format.VERSION",
    "transport.wire.protocol_client.PROTOCOL_VERSION",
    "storage.log.log_format.VERSION",
    "storage.state.state_rows.VERSION",
    "storage.state.snapshot.SNAPSHOT_VERSION",
    "storage.delayed.delayed_format.VERSION",
    "storage.bucket.archive.archive_format.VERSION",
    "storage.bucket.shipping.tick_format.VERSION",
    "storage.cluster.directory.VERSION",
    "storage.checks.backup.VERSION",
)
NEEDED: Final = "required"
# What only ZSQ itself uses. Users get some of these objects and do not make them.
INSIDE: Final = {
    "Admin": {"redrive_to"},
    "Backoff": {"wait_s"},
    "Batch": {"()", "block", "delivery", "message", "owner"},
    "Message": {"()"},
    "MessageBatch": {"()"},
    "Receipt": {"()"},
    "Retries": {"delay_s", "is_over"},
}
# They import other libraries, so they are read and not imported.
INTEGRATIONS: Final = {
    "apps.iceberg": ("append", "schema"),
    "apps.spark": ("behind", "register"),
    "apps.integrations.django": ("ZsqBackend",),
    "apps.integrations.dramatiq": ("ZsqBroker",),
    "apps.integrations.kombu.channel": ("Channel",),
    "apps.integrations.kombu.transport": ("Transport",),
    "apps.integrations.opentelemetry": ("ZsqInstrumentor", "context_of"),
    "apps.integrations.taskiq": ("ZsqBroker", "ZsqResultBackend"),
}
PRODUCT: Final = ("actors", "apps", "storage", "transport")
# Of tests, and of the broker's own processes.
OWN_VARIABLES: Final = {"ZSQ_MALLOC", "ZSQ_ROLE", "ZSQ_SERVE_", "ZSQ_TESTING_CLOCK"}
HEADER_MODULES: Final = (codec, lifetime, schedule_settings, priorities)
Tree = Mapping[str, Any]


def collected() -> dict[str, Any]:
    """Return the surface of this version."""
    openapi = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
    return {
        "python": {module.__name__: dict(_names(module)) for module in MODULES},
        "records": {
            kind.__name__: _keys(kind)
            for module in (answers, reports, settings)
            for kind in vars(module).values()
            if is_typeddict(kind) and not kind.__name__.startswith("_")
        },
        "commands": _command(app),
        "exit codes": _codes(exit_codes, int),
        "errors": _codes(errors, str),
        "http": dict(_paths(openapi)),
        "metrics": {row.metric: row.level for row in METRICS},
        "settings": {
            table.__name__: {
                row.name: f"{row.kind.name} {row.option}, {row.default!r}" for row in rows
            }
            for table, rows in (
                (settings.ChannelSettings, settings.CHANNEL),
                (settings.Retention, settings.TOPIC),
            )
        },
        "headers": {
            value: ""
            for module in HEADER_MODULES
            for name, value in sorted(vars(module).items())
            if name.endswith("_HEADER")
        }
        | {
            value: ""
            for value in sorted(map(str, vars(dead_letter).values()))
            if re.fullmatch(rf"{dead_letter.PREFIX}[a-z-]+", value)
        },
        "environment variables": dict.fromkeys(sorted(_variables()), ""),
        "kinds of alarms": dict.fromkeys(KINDS, ""),
        "integrations": {name: dict(_read(name, public)) for name, public in INTEGRATIONS.items()},
        "spark": {
            "options of the source": dict.fromkeys(SOURCE_NAMES, ""),
            "options of the sink": dict.fromkeys(SINK_NAMES, ""),
            "columns of the source": dict.fromkeys((*SOURCE_COLUMNS, HEADERS), ""),
            "columns of the sink": dict.fromkeys(SINK_COLUMNS, ""),
        },
        "permissions": {action.name: rule.needs for action, rule in RULES.items()},
        # Messages between the broker's own processes are those of one version.
        "wire": {
            f"{op:#04x}": _message(kind)
            for op, kind in sorted(WORDS.items())
            if kind.__name__ in protocol_client.__all__
        },
        "formats": {name: _constant(name) for name in FORMATS},
    }


def _names(module: Any) -> Iterator[tuple[str, Any]]:
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if inspect.isclass(value):
            # A tuple of the library may get more fields at its end.
            inside = INSIDE.get(name, set()) | (
                {"()", "count", "index"} if issubclass(value, tuple) else set()
            )
            members = dict(_members(value))
            yield name, {key: each for key, each in members.items() if key not in inside}
        elif callable(value):
            yield name, _signature(value)
        else:
            yield name, "a module" if inspect.ismodule(value) else type(value).__name__


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    if issubclass(kind, Exception):
        yield (
            "is a",
            {base.__name__: "" for base in kind.__mro__ if base.__module__.startswith("zsq")},
        )
        return
    yield "()", _signature(kind)
    for name in sorted(dir(kind)):
        value = inspect.getattr_static(kind, name)
        if name.startswith("_") or name in dir(object):
            continue
        if isinstance(value, staticmethod | classmethod):
            value = getattr(kind, name)
        if isinstance(value, property | cached_property) or not callable(value):
            yield name, "attribute"
        else:
            yield name, _signature(value)


def _signature(function: Any) -> dict[str, str]:
    """Return each parameter: how it may be given, and whether it must be."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return {}
    return {
        name: f"{one.kind.description}, {NEEDED if _is_needed(one) else _optional(one)}"
        for name, one in parameters.items()
        if name not in ("self", "cls") and not name.startswith("_")
    }


def _optional(one: inspect.Parameter) -> str:
    return "optional" if one.default is one.empty else f"optional, {one.default!r}"


def _is_needed(one: inspect.Parameter) -> bool:
    return one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)


def _read(module: str, public: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the public functions and classes of a module, with their parameters."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for one in ast.parse(file.read_text()).body:
        if getattr(one, "name", "") not in public:
            if isinstance(one, ast.ImportFrom):
                yield from ((each.name, "") for each in one.names if each.name in public)
            continue
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            yield one.name, _arguments(one)
            continue
        assert isinstance(one, ast.ClassDef)
        inits = [
            line
            for line in one.body
            if isinstance(line, ast.FunctionDef) and line.name == "__init__"
        ]
        options = {
            line.value: ""
            for each in one.body
            if isinstance(each, ast.Assign)
            and ast.unparse(each.targets[0]) == "from_transport_options"
            for line in ast.walk(each.value)
            if isinstance(line, ast.Constant)
        }
        yield one.name, {**(_arguments(inits[0]) if inits else {}), **options}


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, str]:
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(plain) - len(given.defaults)), *given.defaults]
    return {
        one.arg: f"{how}, {NEEDED if default is None else 'optional, ' + ast.unparse(default)}"
        for how, one, default in (
            *(("positional or keyword", *pair) for pair in zip(plain, defaults, strict=True)),
            *(
                ("keyword-only", *pair)
                for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)
            ),
        )
        if one.arg != "self" and not one.arg.startswith("_")
    }


def _variables() -> Iterator[str]:
    """Yield the environment variables that the code names."""
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r'"(ZSQ_[A-Z_]+)"', path.read_text()):
                if name not in OWN_VARIABLES:
                    yield name


def _keys(kind: Any) -> dict[str, str]:
    return {
        key: str(getattr(value, "__forward_arg__", getattr(value, "__name__", value)))
        for key, value in sorted(kind.__annotations__.items())
    }


def _command(command: click.Command) -> dict[str, Any]:
    """Return the parameters of a command, and its own commands."""
    found: dict[str, Any] = {}
    for one in command.params:
        if one.name == "help" or getattr(one, "hidden", False):
            continue
        needed = NEEDED if one.required else "optional"
        if isinstance(one, click.Option):
            if not one.required and isinstance(one.default, str | int | float | tuple):
                needed += f", {one.default!r}"
            found |= dict.fromkeys((*one.opts, *one.secondary_opts), f"option, {needed}")
        else:
            found[(one.name or "").upper()] = f"argument, {needed}"
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            found[name] = _command(inner)
    return found


def _codes(module: Any, kind: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in sorted(vars(module).items())
        if name.isupper() and type(value) is kind and not name.startswith("_")
    }


def _paths(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, item in sorted(document["paths"].items()):
        # The console and its API are those of one version.
        if path == "/" or (path.startswith(("/api/", "/console/")) and not path.startswith(API)):
            continue
        for method, what in sorted(item.items()):
            if method in ("get", "post", "put", "delete"):
                given = (*item.get("parameters", ()), *what.get("parameters", ()))
                named = [_resolved(document, one) for one in given]
                yield (
                    f"{method.upper()} {path}",
                    {
                        "parameters": {
                            one[
                                "name"
                            ]: f"{one['in']}, {NEEDED if one.get('required') else 'optional'}"
                            for one in named
                        },
                        **_body(what),
                        "answers": {str(code): "" for code in sorted(map(str, what["responses"]))},
                    },
                )


def _body(what: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names in the JSON body of a request."""
    content = what.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = content.get("schema", {})
    needed = schema.get("required", ())
    names = schema.get("properties", {})
    if not names:
        return {}
    return {"body": {name: NEEDED if name in needed else "optional" for name in names}}


def _resolved(document: Mapping[str, Any], value: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Any = value
    if "$ref" in value:
        found = document
        for step in value["$ref"].removeprefix("#/").split("/"):
            found = found[step]
    return found  # type: ignore[no-any-return]


def _message(kind: type) -> dict[str, Any]:
    """Return a message's name and its fields in their order, which is that of the wire."""
    fields = [field.name for field in dataclasses.fields(kind)]
    return {"name": kind.__name__, "fields": ", ".join(fields)}


def _constant(name: str) -> Any:
    module, _, constant = name.rpartition(".")
    return getattr(importlib.import_module(f"zsq.{module}"), constant)


def missing(promised: Any, now: Any, where: str = "") -> list[str]:
    """Return what the surface `now` has lost or changed, and what callers must newly give."""
    if not isinstance(promised, Mapping) or not isinstance(now, Mapping):
        if promised == now or (f"{promised}".endswith(NEEDED) and _is_loosened(promised, now)):
            return []
        return [f"{where}: was {promised!r}, is {now!r}"]
    lost = [f"{where} / {name} is gone" for name in promised if name not in now]
    # A caller that knows the promised surface does not give it.
    lost += [
        f"{where} / {name} is new and required"
        for name in now
        if name not in promised and f"{now[name]}".endswith(NEEDED)
    ]
    kept = [name for name in promised if name in now]
    for name in kept:
        lost += missing(promised[name], now[name], f"{where} / {name}")
    by_position = [
        name for name in promised if f"{promised[name]}".startswith(("positional", "argument"))
    ]
    if [name for name in now if name in by_position] != [
        name for name in by_position if name in now
    ]:
        lost.append(f"{where}: the order of {', '.join(by_position)} has changed")
    return lost


def _is_loosened(promised: Any, now: Any) -> bool:
    """Return True if what was required is optional now."""
    return f"{now}".startswith(f"{promised}".removesuffix(NEEDED) + "optional")


def as_text(surface: Tree) -> str:
    """Return the surface as the file has it."""
    return json.dumps(surface, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    surface = json.loads(as_text(collected()))
    if FILE.exists() and (lost := missing(json.loads(FILE.read_text()), surface)):
        sys.exit("this would break a promise:\n" + "\n".join(lost))
    FILE.write_text(as_text(surface))
