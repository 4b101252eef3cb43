"""What tests of security share."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.security.authority import Authority


@pytest.fixture
def authority(tmp_path: Path, require_program: Callable[[object, str], None]) -> Authority:
    require_program(shutil.which("openssl"), "no openssl in the path")
    return Authority(tmp_path, "root")
