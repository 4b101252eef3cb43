"""Possible faults of a marked line of C: its mutants, similar to those of Python (changes.py). Pure.

    a statement of one line      is removed
    if, while; a condition that  is never true; is always true; without each operand of `&&` or `||`;
    is returned                  each of < <= > >= decides the other way if both sides are equal
    a mark with `order`          the two lines change places; a plain statement is also removed
    a mark with a quoted part    that part is removed, or replaced by the second one; there is no other mutant

The C source is not parsed: a marked line must be a whole statement, or the beginning of a statement whose condition
ends on that line. A mutant that does not compile is an error of the mark (trial.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tests.mutants.changes import Mutant
from tests.mutants.marks import Mark, MarkError

_OTHER_BOUND = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_BOUND = re.compile(r" (<=?|>=?) ")
_COMMENT = re.compile(r"\s*(?://|/\*).*$")
_CONDITION = re.compile(r"(?P<before>\s*(?:} *)?(?:else +)?(?:if|while) *)\((?P<test>.*)\)(?P<behind>[^()]*)$")
_RETURNED = re.compile(r"(?P<before>\s*return )(?P<test>.*(?:&&|\|\||[=!<>]=| [<>] ).*)(?P<behind>;)$")


def mutants_of_c(source: str, marks: Sequence[Mark]) -> list[Mutant]:
    """Return all mutants of the marks of one file, each different from the file. Raises MarkError for a mark without
    mutants."""
    lines = source.splitlines(keepends=True)
    found = []
    for mark in marks:
        changed: dict[str, str] = {}
        for what, other in _changes(lines, mark, marks):
            text = "".join(other)
            if text != source:
                changed.setdefault(text, what)
        if not changed:
            raise _error(mark, "nothing can be changed there")
        found += [Mutant(mark, what, text) for text, what in changed.items()]
    return found


def _changes(lines: Sequence[str], mark: Mark, marks: Sequence[Mark]) -> Iterator[tuple[str, list[str]]]:
    at = mark.line - 1
    code = _COMMENT.sub("", lines[at].rstrip("\n"))
    tail = lines[at][len(code) :]

    def with_line(line: str) -> list[str]:
        return [*lines[:at], line + tail, *lines[at + 1 :]]

    if mark.part is not None:
        if code.count(mark.part) != 1:
            raise _error(mark, f"the line contains {mark.part!r} {code.count(mark.part)} times")
        what = f"without {mark.part!r}" if mark.instead is None else f"{mark.instead!r} for {mark.part!r}"
        yield what, with_line(code.replace(mark.part, mark.instead or ""))
        return
    if mark.order is not None:
        yield _swapped(lines, mark, marks)
    if condition := _CONDITION.match(code) or _RETURNED.match(code):
        if mark.order is None:
            before, test, behind = condition["before"], condition["test"], condition["behind"]
            is_in_brackets = condition.re is _CONDITION
            for what, other in _of_condition(test):
                yield what, with_line(before + (f"({other})" if is_in_brackets else other) + behind)
    elif code.rstrip().endswith(";"):
        indentation = code[: len(code) - len(code.lstrip())]
        yield f"without {code.strip()}", with_line(f"{indentation};")


def _of_condition(test: str) -> Iterator[tuple[str, str]]:
    operands, operator = _operands(test)
    if operator != "||":
        yield f"never {test}", "0"
    if operator != "&&":
        yield f"always {test}", "1"
    if operator:
        for number, operand in enumerate(operands):
            rest = operands[:number] + operands[number + 1 :]
            yield f"without {operand}", f" {operator} ".join(rest)
    for bound in _BOUND.finditer(test):
        other = _OTHER_BOUND[bound[1]]
        yield f"{other} in {test}", f"{test[: bound.start(1)]}{other}{test[bound.end(1) :]}"


def _operands(test: str) -> tuple[list[str], str]:
    """Return the operands of `&&` or `||` outside of brackets, and that operator. The whole condition and an empty
    operator if it has none, or both."""
    depth, start, parts = 0, 0, []
    operators = {operator for operator in ("&&", "||") if operator in re.sub(r"\(.*\)", "", test)}
    operator = operators.pop() if len(operators) == 1 else ""
    for at, sign in enumerate(test):
        depth += (sign == "(") - (sign == ")")
        if operator and not depth and test.startswith(operator, at):
            parts.append(test[start:at].strip())
            start = at + 2
    return [*parts, test[start:].strip()], operator if parts else ""


def _swapped(lines: Sequence[str], mark: Mark, marks: Sequence[Mark]) -> tuple[str, list[str]]:
    other = next((each for each in marks if each.name == mark.order), None)
    if other is None:
        raise _error(mark, f"no mark {mark.order} in this file")
    if other.line <= mark.line:
        raise _error(mark, f"{mark.order} is not after it")
    between = [line for line in lines[mark.line - 1 : other.line] if line.strip()]
    if len({len(line) - len(line.lstrip()) for line in between}) > 1 or any("{" in line for line in between):
        raise _error(mark, f"{mark.order} is not in the same block")
    first, second = mark.line - 1, other.line - 1
    shown = _COMMENT.sub("", lines[second]).strip()
    return f"behind {shown}", [*lines[:first], *lines[first + 1 : second + 1], lines[first], *lines[second + 1 :]]


def _error(mark: Mark, what: str) -> MarkError:
    return MarkError(f"{mark.place}: {mark.name}: {what}")
