"""Tests of the Helm chart in docs/examples/helm.

The templates use only `.Values.NAME` and `.Release.Name`, so that a replacement of text renders
them. The structure is checked here. kubernetes-validate, whose schemas of Kubernetes have 100 MB,
checks the rest if it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from typing import Any, Final

import pytest
import yaml

from zsq.apps.cli.run.option_table import ROWS, key

from .test_examples import understood
from .walking import ROOT

CHART: Final = ROOT / "docs" / "examples" / "helm" / "zsq"
TEMPLATES: Final = sorted((CHART / "templates").iterdir())
VALUES: Final[dict[str, str]] = yaml.safe_load((CHART / "values.yaml").read_text())
RELEASE: Final = "pair"
KUBERNETES: Final = "1.31"


def rendered(text: str) -> str:
    """Return a template with the values of the chart. Raises KeyError for an unknown value."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name == ".Release.Name":
            return RELEASE
        return VALUES[name.removeprefix(".Values.")]

    return re.sub(r"\{\{ ([.\w]+) \}\}", value, text)


def documents() -> dict[str, dict[str, Any]]:
    """Return the rendered objects by their kinds."""
    texts = [rendered(path.read_text()) for path in TEMPLATES if path.suffix == ".yaml"]
    found = [document for text in texts for document in yaml.safe_load_all(text)]
    return {document["kind"]: document for document in found}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = documents()["StatefulSet"]["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    [found] = pod()["containers"]
    return dict(found)


def variables() -> dict[str, str]:
    return {row["name"]: row["value"] for row in container()["env"]}


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_uses_only_values_that_exist(path: Any) -> None:
    assert "{{" not in rendered(path.read_text())


def test_every_value_is_used_and_explained() -> None:
    used = "".join(path.read_text() for path in TEMPLATES)
    lines = (CHART / "values.yaml").read_text().splitlines()
    for name, value in VALUES.items():
        assert f".Values.{name} " in used, name
        assert isinstance(value, str), f"{name} needs quotes"
        at = next(number for number, line in enumerate(lines) if line.startswith(f"{name}:"))
        assert lines[at - 1].startswith("# "), name
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["name"] == CHART.name


def test_the_pods_run_commands_and_options_that_exist() -> None:
    given = {name for name in variables() if name.startswith("ZSQ_SERVE_")}
    options = {f"ZSQ_SERVE_{key(name).upper().replace('-', '_')}" for name in ROWS}
    assert given <= options
    [shell, flag, script] = container()["command"]
    assert (shell, flag) == ("sh", "-c")
    words = script.split("exec zsq ", 1)[1].split()
    url = variables()["ZSQ_SERVE_BUCKET"]
    understood([*words, "--no-nsq", url])
    stop = container()["lifecycle"]["preStop"]["exec"]["command"][-1]
    understood(stop.split(" &&")[0].split()[1:])
    assert variables()["ZSQ_URL"] == f"ipc://{words[-1]}/run"


def test_the_parts_of_the_chart_fit_together() -> None:
    found = documents()
    stateful, service = found["StatefulSet"]["spec"], found["Service"]["spec"]
    labels = stateful["template"]["metadata"]["labels"]
    assert stateful["selector"]["matchLabels"] == labels
    assert service["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert stateful["serviceName"] == found["Service"]["metadata"]["name"]
    assert (stateful["replicas"], service["clusterIP"]) == (2, "None")
    volumes = {row["name"] for row in pod()["volumes"]}
    volumes |= {row["metadata"]["name"] for row in stateful["volumeClaimTemplates"]}
    assert {row["name"] for row in container()["volumeMounts"]} == volumes
    ports = {row["name"]: row["containerPort"] for row in container()["ports"]}
    assert {row["targetPort"]: row["port"] for row in service["ports"]} == ports
    listens = [value for name, value in variables().items() if name.count("LISTEN")]
    assert sorted(int(value.rpartition(":")[2]) for value in listens) == sorted(ports.values())
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        assert container()[probe]["httpGet"] == {"path": "/health", "port": "http"}


@pytest.mark.parametrize("kind", sorted(documents()))
def test_kubernetes_accepts_the_object(kind: str) -> None:
    if importlib.util.find_spec("kubernetes_validate") is None:
        pytest.skip("kubernetes-validate is not installed")
    validate = importlib.import_module("kubernetes_validate").validate
    validate(documents()[kind], KUBERNETES, strict=True)
