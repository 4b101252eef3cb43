"""Answers that are limited in bytes and made in steps."""

# proves: a-page-ends-at-its-bytes

from __future__ import annotations

import json
from typing import Any

import pytest

from tandemmq.broker.admin.answers import STEP_BYTES, Rows, json_in_steps, rendered
from tandemmq.broker.core.slices import at_once

ROWS = [{"name": f"queue-{number:04}", "text": "x" * 1000} for number in range(500)]
ROW_BYTES = len(json.dumps(ROWS[0])) + 2


def page(value: dict[str, Any], bytes_max: int, **options: Any) -> dict[str, Any]:
    made = at_once(json_in_steps(value, bytes_max, **options))
    assert len(made) <= bytes_max + 2 * ROW_BYTES + 200, "the first row of each list, and what stands around it"
    found: dict[str, Any] = json.loads(made)
    return found


def test_pages_that_end_at_their_bytes_have_each_row_once() -> None:
    seen: list[Any] = []
    following: str | None = ""
    while following is not None:
        rest = [row for row in ROWS if row["name"] > following][:400]
        more = rest[-1]["name"] if rest[-1] != ROWS[-1] else None
        found = page({"items": rest, "following": more}, 100_000, cursor=lambda row: row["name"])
        assert len(found["items"]) == min(100_000 // ROW_BYTES, len(rest))
        seen += found["items"]
        following = found["following"]
    assert seen == ROWS


def test_a_list_without_a_cursor_says_how_much_is_missing_and_where_all_is() -> None:
    value = {"queues": ROWS, "role": "master", "topics": ROWS[:3]}
    found = page(value, 50_000, all_at={"queues": "/queues"})
    shown = len(found["queues"])
    assert found["left_out"] == {"queues": {"rows": 500 - shown, "all_at": "/queues"}, "topics": {"rows": 2}}
    assert "left_out" not in page({"queues": ROWS[:3]}, 50_000)


def test_the_first_row_always_has_room() -> None:
    assert (
        page({"items": ROWS[:2], "following": None}, 100, cursor=lambda row: row["name"])["following"] == "queue-0000"
    )


@pytest.mark.parametrize("rows", [ROWS, [{"name": "x" * 100_000}] * 3])
def test_a_step_makes_no_more_than_its_bytes_and_one_row(rows: list[dict[str, str]]) -> None:
    made: list[int] = []

    class Counted(dict[str, str]):
        """Row that counts its bytes when the encoder reads it."""

        def items(self) -> Any:
            made[-1] += sum(map(len, self.values()))
            return super().items()

    steps = json_in_steps({"items": [Counted(row) for row in rows], "following": None}, 1 << 30)
    while True:
        made.append(0)
        try:
            next(steps)
        except StopIteration:
            break
    assert max(made) <= STEP_BYTES + max(len(row.get("text", row["name"])) for row in rows) + 100
    assert sum(made) == sum(sum(map(len, row.values())) for row in rows)


def test_each_row_is_rendered_in_a_step_of_its_own_until_the_page_is_full() -> None:
    rows = Rows(2 * ROW_BYTES - 2)
    counts = [len(rows.parts) for _ in rendered(rows, ROWS, lambda row: row)]
    assert counts == [1, 2]
    assert at_once(rendered(Rows(2 * ROW_BYTES), ROWS, lambda row: row)) == 2
