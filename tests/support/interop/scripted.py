"""ActiveMQ, controlled step by step by java/Script.java."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.interop.java_programs import DEBIAN, Release, program
from tests.support.store.takeover_harness import Held

Step = dict[str, Any]


class Answers(NamedTuple):
    """The output of a script: the last dump, and the journal files at each step `files`."""

    held: Held
    prepared: list[str]
    files: list[list[int]]


Script = Callable[..., Answers]


def compiled(require_service: Callable[[object, str], None], directory: Path, release: Release = DEBIAN) -> Script:
    """Return a function: `script(step, step, ...)` runs one life of ActiveMQ."""
    run = program(require_service, directory, "Script", release)

    def script(*steps: Step) -> Answers:
        output = run(text="".join(json.dumps(step) + "\n" for step in steps))
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
