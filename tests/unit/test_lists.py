"""Pages have the lists that the code generates, and the counts in tests do not grow. `make lists` writes both."""

from __future__ import annotations

import pytest

from tests.support import lists


@pytest.mark.parametrize("name", sorted(lists.LISTS.keys() - {"functions"}))
def test_a_page_holds_what_the_code_says(name: str) -> None:
    assert lists.written(name) == lists.LISTS[name].make().strip(), "make lists"


@pytest.mark.parametrize("name", lists.COUNTED)
def test_a_counted_list_does_not_grow(name: str) -> None:
    found = lists.COUNTED[name]()
    assert len(found) <= lists.recorded()[name], f"to see them: python -m tests.support.lists {name}"
