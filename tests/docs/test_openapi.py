"""Tests that docs/openapi.yaml is valid OpenAPI, and has the paths, methods and answers of the HTTP
gateway.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import yaml
from openapi_spec_validator import validate
from openapi_spec_validator.validation.exceptions import OpenAPIValidationError
from starlette.applications import Starlette
from starlette.routing import Route
from support.http_api import NODE, FakeBroker

import zsq
from docs_site.http_api import http_api_page
from zsq.actors.gateways.http.app import make_app
from zsq.actors.gateways.http.console.console import Console
from zsq.actors.gateways.http.consume.consume_handlers import ConsumePaths
from zsq.actors.gateways.http.messages.messages import MessagePaths
from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.gateways.http.web.places import Limiters
from zsq.transport.names import NAME_CHARS_MAX

from .walking import ROOT

SOURCE: Final = (ROOT / "docs" / "openapi.yaml").read_text()
DOCUMENT: Final[dict[str, Any]] = yaml.safe_load(SOURCE)
METHODS: Final = ("get", "post", "put", "delete", "patch", "head", "options")


def served() -> set[tuple[str, str]]:
    """Return the path and method of each route of the gateway, including the console's."""
    console: Any = Console(
        FakeBroker(),  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        "",
        Limiters(HttpLimits()),
        str(ROOT / "apps" / "console"),
    )
    messages = MessagePaths(None, None, Limiters(HttpLimits()))  # type: ignore[arg-type]
    guard = make_app(
        FakeBroker(),  # type: ignore[arg-type]
        FakeBroker(),  # type: ignore[arg-type]
        NODE,
        console=console,
        messages=messages,
        consume=ConsumePaths("", Limiters(HttpLimits())),
    )
    application: Any = guard._app
    assert isinstance(application, Starlette)
    routes = [route for route in application.routes if isinstance(route, Route)]
    return {
        (route.path.replace(":path}", "}"), method)
        for route in routes
        for method in (route.methods or ())
        if method != "HEAD"
    }


def described() -> set[tuple[str, str]]:
    return {
        (path, method.upper())
        for path, item in DOCUMENT["paths"].items()
        for method in METHODS
        if method in item
    }


def test_the_document_is_valid_openapi() -> None:
    validate(DOCUMENT)


def test_the_validator_can_fail() -> None:
    with pytest.raises(OpenAPIValidationError):
        validate({**DOCUMENT, "paths": {"ping": {}}})


def test_openapi_has_exactly_the_paths_and_methods_of_the_gateway() -> None:
    assert described() == served()
    assert len(described()) > 50


def test_every_operation_has_an_id_of_its_own_and_a_known_tag() -> None:
    operations = [
        item[method] for item in DOCUMENT["paths"].values() for method in METHODS if method in item
    ]
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)
    assert {tag for operation in operations for tag in operation["tags"]} == {
        tag["name"] for tag in DOCUMENT["tags"]
    }


def test_openapi_has_the_version_and_the_limits_of_the_code() -> None:
    assert DOCUMENT["info"]["version"] == zsq.__version__
    assert DOCUMENT["components"]["schemas"]["Name"]["maxLength"] == NAME_CHARS_MAX


def test_the_page_of_the_site_has_every_operation() -> None:
    page = http_api_page(SOURCE)
    for path, method in described():
        assert f"### {method} {path}\n" in page
