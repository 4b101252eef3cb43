"""The real ActiveMQ, driven step by step by java/Script.java."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.store.takeover_harness import Held

LIBRARIES = Path("/usr/share/activemq/lib")
SOURCE = Path(__file__).parent / "java" / "Script.java"
JAVA_SECONDS_MAX = 90

Step = dict[str, Any]


class Answers(NamedTuple):
    """What a script printed: the last dump, and the journal files at each `files`."""

    held: Held
    prepared: list[str]
    files: list[list[int]]


Script = Callable[..., Answers]

_classes: list[Path] = []  # where Script was compiled to, once for all tests


def compiled(require_service: Callable[[object, str], None], directory: Path) -> Script:
    """`script(step, step, ...)` runs one life of ActiveMQ."""
    java, javac = shutil.which("java"), shutil.which("javac")
    require_service(java and javac, "no JDK: java and javac are not in the path")
    require_service((LIBRARIES / "activemq-kahadb-store.jar").exists(), f"no ActiveMQ: {LIBRARIES} has no KahaDB")
    if not _classes:
        options = ["-J-XX:TieredStopAtLevel=1", "-nowarn", "-encoding", "UTF-8", "-cp", f"{LIBRARIES}/*"]
        _run([str(javac), *options, "-d", str(directory), str(SOURCE)], "")
        _classes.append(directory)
    classes = _classes[0]

    def script(*steps: Step) -> Answers:
        lines = "".join(json.dumps(step) + "\n" for step in steps)
        path = f"{classes}:{LIBRARIES}/*:{LIBRARIES}/optional/*"
        output = _run([str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path, "Script"], lines)
        answers = Answers({}, [], [])
        for line in map(json.loads, output.splitlines()):
            if "files" in line:
                answers.files.append(line["files"])
            elif "prepared" in line:
                answers.prepared.extend(line["prepared"])
            else:
                name = line["destination"].partition("://")[2]
                if line["subscription"] is not None:
                    name = f"{name} for {line['subscription']}"
                answers.held[name] = line["messages"]
        return answers

    return script


def _run(command: list[str], text: str) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=JAVA_SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
