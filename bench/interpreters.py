"""Other Pythons than the running one: without the interpreter's lock, or of another version.

Each needs the packages of the running one.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from typing import Any

from tandemmq.bench.driver.stomp import BenchError
from tandemmq.bench.peers.tandemmq import TREE

_CALL = """
import importlib, json, sys
module, function, arguments = sys.argv[1:]
print(json.dumps(getattr(importlib.import_module(module), function)(*json.loads(arguments))))
"""


def name() -> str:
    """Return the version of the running Python, and whether its threads compute in parallel."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    return platform.python_version() + ("" if has_lock else ", free threading")


def ask(python: str, module: str, function: str, *arguments: float) -> Any:
    """Call a function of this tree with the interpreter ``python``; its result must be JSON. Raises BenchError."""
    command = [python, "-c", _CALL, module, function, json.dumps(arguments)]
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{python}: {module}.{function} failed:\n{done.stderr.strip()}")
    return json.loads(done.stdout)
