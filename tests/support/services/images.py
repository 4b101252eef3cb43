"""The image of the broker, built once for all tests of a worker; tests/conftest.py assigns them to one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.acceptance.docker_image import Image, base_image, built, demand_docker


@pytest.fixture(scope="session")
def broker_image(
    tmp_path_factory: pytest.TempPathFactory, require_service: Callable[[object, str], None]
) -> Iterator[Image]:
    """Build the image of this tree (docker_image.py)."""
    demand_docker(require_service)
    with built(base_image(), tmp_path_factory.mktemp("context")) as image:
        yield image
