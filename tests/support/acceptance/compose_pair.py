"""The two services of docker-compose.yml in Docker: query, kill, pause, disconnect from the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.compose_project import ComposeProject
from tests.support.acceptance.docker_image import TREE, run

SERVICES = ("active", "standby")


class Pair(ComposeProject):
    """The pair, with separate ports and a separate volume. ``overrides``: further compose files."""

    def __init__(
        self, image: str, overrides: Sequence[Path] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        files = [TREE / "docker-compose.yml", *overrides]
        super().__init__("tandemmqtest", files, SERVICES, {"TANDEMMQ_IMAGE": image, **(environment or {})})

    def inspect(self, service: str, what: str) -> str:
        return run("docker", "inspect", "--format", what, self.container(service)).strip()

    def role(self, service: str) -> str:
        return str(self.page(service, "status")[1].get("role", "silent"))

    def until_role(self, service: str, role: str) -> None:
        wait_until(lambda: self.role(service) == role, f"{service} becomes {role}; it is {self.role(service)}")

    def until_settled(self) -> tuple[str, str]:
        """Wait for a master and a standby; return both."""
        wait_until(lambda: {self.role(each) for each in SERVICES} == {"master", "standby"}, "a master and a standby")
        return SERVICES if self.role("active") == "master" else SERVICES[::-1]

    def check(self, image: str) -> dict[str, Any]:
        """Stop both brokers; return the store checker's result for the volume."""
        self.compose("stop")
        return self.check_volume(image, "store")
