"""Check that each attack in attacks.txt names a test, and that the test exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.tree import ROOT

NAME = re.compile(r"`(…|tests/[\w/]+\.py)::(\w+)`")


def test_every_attack_of_the_list_has_a_test_that_tries_it() -> None:
    rows = [line for line in Path(__file__).with_name("attacks.txt").read_text().splitlines() if line.startswith("| ")]
    attacks = rows[rows.index("| attack | what happens | test |") + 2 :]
    assert len(attacks) > 100
    path, missing = "", []
    for row in attacks:
        named = NAME.findall(row)
        assert named, f"no test is named: {row}"
        for file, name in named:
            path = path if file == "…" else file
            text = (ROOT / path).read_text() if (ROOT / path).exists() else ""
            if not re.search(rf"def {name}\(", text):
                missing.append(f"{path}::{name}")
    assert missing == []
