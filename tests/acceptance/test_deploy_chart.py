"""The Helm chart and the manifest of a set: their settings exist, their parts fit together, and a broker takes them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from tandemmq.config.settings import Settings
from tests.support.tree import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML reads the chart")
CHART = ROOT / "deploy" / "helm" / "tandemmq"
PAIR = "usersSecret=users"
SET = "mode=set,set.zookeeper=zookeeper:2181,set.tokenSecret=token"
POD = "orders-1"


def templates() -> str:
    return "\n".join(path.read_text() for path in sorted((CHART / "templates").iterdir()))


def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return loaded


@pytest.mark.promise("charts-fit")
def test_the_settings_that_it_names_exist() -> None:
    names = set(re.findall(r"TANDEMMQ_(\w+)", templates()))
    assert names
    for name in names:
        model: Any = Settings
        *sections, key = name.lower().split("__")
        for section in sections:
            annotation = model.model_fields[section].annotation
            model, *_ = {*(get_args(annotation) or [annotation])} - {type(None)}
        assert key in model.model_fields, name


def test_the_schema_has_each_value_and_no_other() -> None:
    def agree(given: dict[str, Any], schema: dict[str, Any], at: str) -> None:
        properties = {name: each for name, each in schema["properties"].items() if name != "global"}
        assert given.keys() == properties.keys(), at
        assert not schema["additionalProperties"], at
        for name, each in properties.items():
            if "properties" in each:
                agree(given[name], each, f"{at}.{name}")
            assert given[name] in each.get("enum", [given[name]])

    agree(values(), json.loads((CHART / "values.schema.json").read_text()), "values")


def test_the_templates_use_each_value_and_no_other() -> None:
    used = set(re.findall(r"\.Values\.([\w.]+)", templates()))
    flat = {
        f"{name}.{inner}" if isinstance(value, dict) and name != "resources" else name
        for name, value in values().items()
        for inner in (value if isinstance(value, dict) else [""])
    }
    assert used == flat


@pytest.fixture
def render(require_program: Callable[[object, str], None]) -> Callable[[str], list[dict[str, Any]]]:
    """Return the output of `helm template orders` for the given values."""
    require_program(shutil.which("helm"), "no helm")

    def rendered(given: str) -> list[dict[str, Any]]:
        command = ["helm", "template", "orders", str(CHART), "--set", given]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        return [each for each in yaml.safe_load_all(result.stdout) if each]

    return rendered


def pods(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [each["spec"] for each in objects if each["kind"] == "StatefulSet"]
    return dict(found)


@pytest.mark.parametrize("given", [PAIR, "pair.lock=file", SET])
def test_a_broker_takes_the_settings_of_a_pod(
    given: str, render: Callable[[str], list[dict[str, Any]]], tmp_path: Path
) -> None:
    objects = render(given)
    (container,) = pods(objects)["template"]["spec"]["containers"]
    (config,) = [each["data"] for each in objects if each["kind"] == "ConfigMap"]
    for name, text in {**config, "users": "", "token": "a secret\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    environment = {
        name: str(tmp_path / Path(value).name) if value.startswith("/etc/") else value.replace("$(POD)", POD)
        for name, value in environment.items()
        if "POD_IP" not in value
    }
    command = [sys.executable, "-m", "tandemmq", "config", "show", "--config", str(tmp_path / "tandemmq.toml")]
    shown = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "stomp://0.0.0.0:61613" in shown.stdout


@pytest.mark.parametrize(("given", "replicas"), [(PAIR, 2), (SET, 3)])
def test_its_objects_fit_together(given: str, replicas: int, render: Callable[[str], list[dict[str, Any]]]) -> None:
    objects = render(given)
    found = pods(objects)
    labels = found["template"]["metadata"]["labels"]
    named = {(each["kind"], each["metadata"]["name"]) for each in objects}
    assert found["replicas"] == replicas
    assert ("Service", found["serviceName"]) in named
    assert ("ServiceAccount", found["template"]["spec"]["serviceAccountName"]) in named
    selectors = [each["spec"]["selector"] for each in objects if each["kind"] == "Service"]
    assert selectors
    assert all(each == labels for each in selectors)
    (budget,) = [each["spec"]["selector"] for each in objects if each["kind"] == "PodDisruptionBudget"]
    assert budget == found["selector"] == {"matchLabels": labels}
    (container,) = found["template"]["spec"]["containers"]
    claims = [each["metadata"]["name"] for each in found.get("volumeClaimTemplates", [])]
    volumes = [each["name"] for each in found["template"]["spec"]["volumes"]]
    assert {each["name"] for each in container["volumeMounts"]} == {*volumes, *claims}
    ports = {each["name"] for each in container["ports"]}
    (rules,) = [each["spec"]["ingress"] for each in objects if each["kind"] == "NetworkPolicy"]
    assert {each["port"] for rule in rules for each in rule["ports"]} == ports


NODE = "tandemmq-set-1"


def manifest() -> dict[str, Any]:
    text = (ROOT / "deploy" / "kubernetes" / "replicated.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def environment(container: dict[str, Any], path: Path) -> dict[str, str]:
    """Return the environment of a pod, with the secrets in ``path``."""
    (path / "token").write_text("a secret\n")
    (path / "users").touch(0o600)
    given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    files = {
        "TANDEMMQ_REPLICATION__SECURITY_TOKEN_FILE": str(path / "token"),
        "TANDEMMQ_SECURITY__USERS_FILE": str(path / "users"),
    }
    assert files.keys() <= given.keys()
    return {name: value.replace("$(POD)", NODE) for name, value in {**given, **files}.items()}


@pytest.mark.promise("charts-fit")
def test_its_settings_are_those_of_a_node(tmp_path: Path) -> None:
    (container,) = manifest()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    given = {**os.environ, **environment(container, tmp_path), "TANDEMMQ_BROKER__NAME": "orders"}
    command = [sys.executable, "-m", "tandemmq", "config", "show"]
    shown = subprocess.run(command, env=given, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert f'node = "{NODE}"' in shown.stdout
    assert f'hostname = "{NODE}.tandemmq-set"' in shown.stdout


def test_pods_are_found_by_the_names_they_tell() -> None:
    found = manifest()
    service, pods, budget = found["Service"], found["StatefulSet"], found["PodDisruptionBudget"]
    labels = pods["spec"]["template"]["metadata"]["labels"]
    assert pods["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["publishNotReadyAddresses"]  # no node is ready before all have found each other
    assert service["spec"]["selector"] == pods["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    (claim,) = pods["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] in {each["name"] for each in container["volumeMounts"]}
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {each["name"]: each["port"] for each in service["spec"]["ports"]}
