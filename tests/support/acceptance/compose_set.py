"""The six services of deploy/docker-compose.replicated.yml, for real: brokers asked, killed, stopped, started again."""

from __future__ import annotations

from typing import Any

from tests.support.acceptance.broker_process import wait_until
from tests.support.acceptance.compose_project import ComposeProject
from tests.support.acceptance.docker_image import TREE

FILE = TREE / "deploy" / "docker-compose.replicated.yml"
BROKERS = ("broker1", "broker2", "broker3")


class ComposeSet(ComposeProject):
    """The set on ports of its own and volumes of its own."""

    def __init__(self, image: str, zookeeper: str) -> None:
        environment = {"TANDEMMQ_IMAGE": image, "ZOOKEEPER_IMAGE": zookeeper, "SECURITY_TOKEN": "a secret"}
        super().__init__("tandemmqset", [FILE], BROKERS, environment)

    def replication(self, service: str) -> dict[str, Any]:
        return self.page(service, "replication")[1]

    def masters(self) -> list[str]:
        return [each for each in BROKERS if self.page(each, "health/ready")[0] == 200]

    def until_master(self, *, but: str = "") -> str:
        """Whoever serves clients."""
        return wait_until(lambda: next((each for each in self.masters() if each != but), None), "a master serves")

    def until_complete(self) -> str:
        """The master, once both others follow it and have all that it wrote."""

        def complete() -> str | None:
            for master in self.masters():
                followers = self.replication(master).get("followers", {}).values()
                if len([each for each in followers if each["is_voter"] and not each["is_behind"]]) == len(BROKERS) - 1:
                    return master
            return None

        return wait_until(complete, "a master whom two follow")

    def check(self, image: str, service: str) -> dict[str, Any]:
        """What the store checker says of one broker's volume; nobody runs there."""
        return self.check_volume(image, f"store{BROKERS.index(service) + 1}")
