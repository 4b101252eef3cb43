"""The check of texts finds each text that describes a name."""

from __future__ import annotations

import ast

from tests.support.language import descriptions

MODULE = '''"""Of the module."""
#: Of a constant,
#: and more of it.
ONE = 1
"text" + "that describes nothing"


class Kind:
    """Of a class."""

    plain: int
    """Of a field."""
    other = 2
    """Of a field without a type."""

    def method(self):
        """Of a method."""
        "neither this"
'''


def test_all_that_describes_a_name_is_found_with_its_line() -> None:
    assert sorted(descriptions(ast.parse(MODULE), MODULE)) == [
        (1, "Of the module."),
        (2, "Of a constant,"),
        (9, "Of a class."),
        (12, "Of a field."),
        (14, "Of a field without a type."),
        (17, "Of a method."),
    ]
