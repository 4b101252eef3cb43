"""The image of the broker, built once for all tests of a worker; tests/conftest.py gives them to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.acceptance.docker_image import Image, base_image, built, demand_docker


@pytest.fixture(scope="session")
def broker_image(
    tmp_path_factory: pytest.TempPathFactory, require_service: Callable[[object, str], None]
) -> Iterator[Image]:
    """Of this tree, as docker_image.py makes it."""
    demand_docker(require_service)
    with built(base_image(), tmp_path_factory.mktemp("context")) as image:
        yield image
