"""The six services of deploy/docker-compose.replicated.yml in Docker: query, kill, stop and restart brokers."""

from __future__ import annotations

from typing import Any

from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.compose_project import ComposeProject
from tests.support.acceptance.docker_image import TREE

FILE = TREE / "deploy" / "docker-compose.replicated.yml"
BROKERS = ("broker1", "broker2", "broker3")


class ComposeSet(ComposeProject):
    """The set, with separate ports and volumes."""

    def __init__(self, image: str, zookeeper: str) -> None:
        environment = {"TANDEMMQ_IMAGE": image, "ZOOKEEPER_IMAGE": zookeeper, "SECURITY_TOKEN": "a secret"}
        super().__init__("tandemmqset", [FILE], BROKERS, environment)

    def replication(self, service: str) -> dict[str, Any]:
        return self.page(service, "replication")[1]

    def masters(self) -> list[str]:
        return [each for each in BROKERS if self.page(each, "health/ready")[0] == 200]

    def until_master(self, *, but: str = "") -> str:
        """Wait for a broker other than ``but`` that serves clients; return it."""
        return wait_until(lambda: next((each for each in self.masters() if each != but), None), "a master serves")

    def until_complete(self) -> str:
        """Wait until both other brokers follow the master and have all its data; return the master."""

        def complete() -> str | None:
            for master in self.masters():
                followers = self.replication(master).get("followers", {}).values()
                if len([each for each in followers if each["is_voter"] and not each["is_behind"]]) == len(BROKERS) - 1:
                    return master
            return None

        return wait_until(complete, "a master whom two follow")

    def check(self, image: str, service: str) -> dict[str, Any]:
        """Return the store checker's result for one broker's volume. No broker may run on it."""
        return self.check_volume(image, f"store{BROKERS.index(service) + 1}")
