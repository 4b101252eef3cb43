"""The manifest of a set for Kubernetes: its settings are taken as they stand there, and its parts fit together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tree import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML reads the manifest")

POD = "tandemmq-set-1"


def objects() -> dict[str, Any]:
    text = (ROOT / "deploy" / "kubernetes" / "replicated.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def environment(container: dict[str, Any], path: Path) -> dict[str, str]:
    """As a pod has it, with the secrets in ``path``."""
    (path / "token").write_text("a secret\n")
    (path / "users").touch(0o600)
    given = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    files = {
        "TANDEMMQ_REPLICATION__SECURITY_TOKEN_FILE": str(path / "token"),
        "TANDEMMQ_SECURITY__USERS_FILE": str(path / "users"),
    }
    assert files.keys() <= given.keys()
    return {name: value.replace("$(POD)", POD) for name, value in {**given, **files}.items()}


@pytest.mark.promise("charts-fit")
def test_its_settings_are_those_of_a_node(tmp_path: Path) -> None:
    (container,) = objects()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    given = {**os.environ, **environment(container, tmp_path), "TANDEMMQ_BROKER__NAME": "orders"}
    command = [sys.executable, "-m", "tandemmq", "config", "show"]
    shown = subprocess.run(command, env=given, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert f'node = "{POD}"' in shown.stdout
    assert f'hostname = "{POD}.tandemmq-set"' in shown.stdout


def test_pods_are_found_by_the_names_they_tell() -> None:
    found = objects()
    service, pods, budget = found["Service"], found["StatefulSet"], found["PodDisruptionBudget"]
    labels = pods["spec"]["template"]["metadata"]["labels"]
    assert pods["spec"]["serviceName"] == service["metadata"]["name"]
    assert service["spec"]["publishNotReadyAddresses"]  # nobody is ready before all have found each other
    assert service["spec"]["selector"] == pods["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    (claim,) = pods["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] in {each["name"] for each in container["volumeMounts"]}
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {each["name"]: each["port"] for each in service["spec"]["ports"]}
