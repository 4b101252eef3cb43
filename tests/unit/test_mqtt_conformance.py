"""mqtt_statements.txt has each statement of the standards once, and the tests and cases that it names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.tree import ROOT
from tests.unit.broker.protocols.mqtt.test_packets import MISTAKES, SAMPLES

pytestmark = pytest.mark.promise("mqtt-conforms")

ROW = re.compile(r"^\| MQTT-(\S+) \| (.+?) \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`(test_\w+)`(?: \(([^)]+)\))?")
CASES = {
    "test_a_mistake_has_its_reason_code": {row[0] for row in MISTAKES},
    "test_a_sample_is_read_in_any_pieces": {row[0] for row in SAMPLES},
}
#: As many as the appendices of the standards list, so that none is lost.
STATEMENTS = {"MQTT 3.1.1": 141, "MQTT 5.0": 251}


def tables() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """The rows of each version."""
    for section in (ROOT / "tests/unit/mqtt_statements.txt").read_text().split("\n## ")[1:]:
        version, _, table = section.partition("\n")
        yield version, ROW.findall(table)


TABLES = dict(tables())


@pytest.mark.parametrize(("version", "rows"), TABLES.items(), ids=TABLES)
class TestStatements:
    def test_each_stands_there_once(self, version: str, rows: list[tuple[str, str, str]]) -> None:
        numbers = [number for number, _, _ in rows]
        assert len(numbers) == len(set(numbers)) == STATEMENTS[version]

    def test_each_has_a_test_a_party_or_a_reason(self, version: str, rows: list[tuple[str, str, str]]) -> None:
        empty = [number for number, _, shown in rows if not shown.strip()]
        assert empty == []

    def test_each_test_that_is_named_is_there(self, version: str, rows: list[tuple[str, str, str]]) -> None:
        every = "".join(path.read_text() for path in (ROOT / "tests").glob("**/test_*.py"))
        known = set(re.findall(r"def (test_\w+)\(", every))
        named = {(number, test) for number, _, shown in rows for test, _ in TEST.findall(shown)}
        assert {(number, test) for number, test in named if test not in known} == set()

    def test_each_case_that_is_named_is_there(self, version: str, rows: list[tuple[str, str, str]]) -> None:
        named = {(number, test, case) for number, _, shown in rows for test, case in TEST.findall(shown) if case}
        assert {each for each in named if each[2] not in CASES.get(each[1], {each[2]})} == set()


def test_the_page_of_deviations_names_statements() -> None:
    named = set(re.findall(r"MQTT-(\d+(?:\.\d+)+-\d+)", (ROOT / "docs/mqtt-conformance.md").read_text()))
    assert named
    assert named - {number for rows in TABLES.values() for number, _, _ in rows} == set()
