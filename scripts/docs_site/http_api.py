"""Page of the HTTP API, made from docs/openapi.yaml: a table for each path and method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

HEAD: Final = """# HTTP API

This page is generated from [openapi.yaml](openapi.yaml), the description of the HTTP API in OpenAPI 3.1, for code generators and tools.
A test compares its paths and methods with those of the gateway. [HTTP](http-reference.md) has limits and refusals.
"""


def http_api_page(source: str) -> str:
    """Return the page as Markdown."""
    document = yaml.safe_load(source)
    lines = [HEAD]
    for tag in document["tags"]:
        lines += [f"## {tag['name']}", "", tag["description"], ""]
        for path, item in document["paths"].items():
            for method in ("get", "post", "put"):
                if tag["name"] in item.get(method, {}).get("tags", ()):
                    lines += _operation(document, path, method, item)
    return "\n".join(lines)


def _operation(
    document: Mapping[str, Any], path: str, method: str, item: Mapping[str, Any]
) -> Iterator[str]:
    operation = item[method]
    yield from (
        f"### {method.upper()} {path}",
        "",
        operation.get("description") or operation["summary"],
        "",
    )
    given = [
        _resolved(document, one)
        for one in (*item.get("parameters", ()), *operation.get("parameters", ()))
    ]
    if given:
        yield from ("| parameter | in | type | meaning |", "|---|---|---|---|")
        for one in given:
            required = "" if not one.get("required") else " Required."
            yield (
                f"| `{one['name']}` | {one['in']} | {_type(document, one['schema'])} | "
                f"{one['description']}{required} |"
            )
        yield ""
    if "requestBody" in operation:
        body = _resolved(document, operation["requestBody"])
        yield from (
            "Body: "
            + "; ".join(f"`{kind}`" for kind in body["content"])
            + f". {body['description']}",
            "",
        )
        fields = [
            field
            for content in body["content"].values()
            for field in _fields(document, content.get("schema", {}))
        ]
        if fields:
            yield from ("| field | type | meaning |", "|---|---|---|", *fields, "")
    yield from ("| status | answer |", "|---|---|")
    for status, answer in operation["responses"].items():
        found = _resolved(document, answer)
        kinds = ", ".join(f"`{kind}`" for kind in found.get("content", {}))
        yield f"| {status} | {found['description']}{f' ({kinds})' if kinds else ''} |"
    yield ""


def _fields(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    schema = _resolved(document, schema)
    for name, one in schema.get("properties", {}).items():
        required = " Required." if name in schema.get("required", ()) else ""
        yield f"| `{name}` | {_type(document, one)} | {one.get('description', '')}{required} |"


def _type(document: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    kind = _resolved(document, schema).get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _resolved(document: Mapping[str, Any], item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the item that `$ref` names, or the item itself if it has no `$ref`."""
    reference = item.get("$ref")
    if reference is None:
        return item
    found: Any = document
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    assert isinstance(found, Mapping)
    return found
