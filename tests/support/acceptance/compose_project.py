"""Services of one or more compose files in Docker, under a separate project name: queried, and removed."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tandemmq.bench.peers.ports import free_port
from tests.support.acceptance.docker_image import compose_command, run


class ComposeProject:
    """``brokers``: services whose ports the files take from the environment, such as ACTIVE_STOMP_PORT. ``stomp``,
    ``admin``, ``openwire``: these ports, by service."""

    def __init__(
        self, name: str, files: Sequence[Path], brokers: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        command = compose_command()
        assert command is not None, "the caller checks this before"
        self.project = f"{name}{os.getpid()}"
        self._command = [*command, "-p", self.project, *(word for file in files for word in ("-f", str(file)))]
        self.stomp, self.admin, self.openwire = ({each: free_port() for each in brokers} for _ in range(3))
        ports = {"STOMP": self.stomp, "ADMIN": self.admin, "OPENWIRE": self.openwire}
        self._env = {
            **{f"{each.upper()}_{kind}_PORT": str(of[each]) for kind, of in ports.items() for each in brokers},
            **environment,
        }

    def compose(self, *arguments: str) -> str:
        return run(*self._command, *arguments, env=self._env)

    def container(self, service: str) -> str:
        return self.compose("ps", "-q", service).strip()

    def page(self, service: str, page: str) -> tuple[int, dict[str, Any]]:
        """Return the status code and the JSON of an admin page; code 0 if there is no answer."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"http://127.0.0.1:{self.admin[service]}/{page}", timeout=5) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, {}
        except (OSError, ValueError):
            return 0, {}

    def check_volume(self, image: str, volume: str) -> dict[str, Any]:
        """Return the store checker's result for a volume of the project. No broker may run on it."""
        where = f"{self.project}_{volume}:/var/lib/tandemmq"
        answer = run("docker", "run", "--rm", "-v", where, image, "store", "check", "/var/lib/tandemmq", "--json")
        found = json.loads(answer)
        assert isinstance(found, dict)
        return found

    def down(self) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")
