"""The two services of docker-compose.yml, for real: asked, killed, paused, cut from the network."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docker_image import TREE, compose_command, run, until

from bench.peers.ports import free_port

SERVICES = ("active", "standby")


class Pair:
    """The pair on ports of its own and a volume of its own; ``overrides`` are further compose files."""

    def __init__(
        self, image: str, overrides: Sequence[Path] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        command = compose_command()
        assert command is not None, "asked for before"
        self.project = f"tandemmqtest{os.getpid()}"
        files = [TREE / "docker-compose.yml", *overrides]
        self._command = [*command, "-p", self.project, *(word for file in files for word in ("-f", str(file)))]
        ports = [free_port() for _ in range(6)]
        self.stomp = {"active": ports[0], "standby": ports[1]}
        self.admin = {"active": ports[2], "standby": ports[3]}
        self.openwire = {"active": ports[4], "standby": ports[5]}
        self._env = {
            "TANDEMMQ_IMAGE": image,
            "ACTIVE_STOMP_PORT": str(ports[0]),
            "STANDBY_STOMP_PORT": str(ports[1]),
            "ACTIVE_ADMIN_PORT": str(ports[2]),
            "STANDBY_ADMIN_PORT": str(ports[3]),
            "ACTIVE_OPENWIRE_PORT": str(ports[4]),
            "STANDBY_OPENWIRE_PORT": str(ports[5]),
            **(environment or {}),
        }

    def compose(self, *arguments: str) -> str:
        return run(*self._command, *arguments, env=self._env)

    def container(self, service: str) -> str:
        return self.compose("ps", "-q", service).strip()

    def inspect(self, service: str, what: str) -> str:
        return run("docker", "inspect", "--format", what, self.container(service)).strip()

    def page(self, service: str, page: str) -> tuple[int, dict[str, Any]]:
        """Status code and JSON of an admin page; code 0 when nobody answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.admin[service]}/{page}", timeout=5) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, {}
        except (OSError, ValueError):
            return 0, {}

    def role(self, service: str) -> str:
        return str(self.page(service, "status")[1].get("role", "silent"))

    def until_role(self, service: str, role: str) -> None:
        until(lambda: self.role(service) == role, f"{service} becomes {role}; it is {self.role(service)}")

    def until_settled(self) -> tuple[str, str]:
        """Master and standby, as soon as there is one of each."""
        until(lambda: {self.role(each) for each in SERVICES} == {"master", "standby"}, "a master and a standby")
        return SERVICES if self.role("active") == "master" else SERVICES[::-1]

    def check(self, image: str) -> dict[str, Any]:
        """Stop both brokers; what the store checker says of the volume then."""
        self.compose("stop")
        volume = f"{self.project}_store:/var/lib/tandemmq"
        said = run("docker", "run", "--rm", "-v", volume, image, "store", "check", "/var/lib/tandemmq", "--json")
        found = json.loads(said)
        assert isinstance(found, dict)
        return found

    def down(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")
