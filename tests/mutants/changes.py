"""Possible faults of a marked line: its mutants. Pure: source in, changed source out. For C: c_changes.py.

    a statement                  is removed
    if, while; a condition that  is never true; is always true; without each operand of `and` and `or`;
    is returned or assigned      each of < <= > >= decides the other way if both sides are equal
    an operand, a condition of   is removed; < <= > >= as above
    a comprehension
    another returned value       is replaced by an empty one of its type: None, 0, (), ...
    a keyword argument           is False, or True if it was False
    with                         is removed; its body remains
    a mark with `order`          the two statements change places; a plain call is also removed
    a mark with a quoted part    that part is removed, or replaced by the second one; there is no other mutant

There is no mutant with a negated condition: a test that catches "never" or "always" catches it, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.mutants.marks import Mark, MarkError

_OTHER_BOUND = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}
_SIGN = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
_NOTHING = {"int": "0", "float": "0.0", "str": "''", "bytes": "b''", "dict": "{}", "set": "set()", "list": "[]"}
_EMPTY = ("Sequence", "Iterable", "tuple")
_SHOWN_MAX = 60


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change at ``mark``. ``what``: the change, for people. ``source``: the whole file with the change."""

    mark: Mark
    what: str
    source: str

    @property
    def name(self) -> str:
        return f"{self.mark.name}: {self.what}"

    def demand_syntax(self) -> None:
        """Raise MarkError if the source is not valid Python."""
        try:
            ast.parse(self.source)
        except SyntaxError as error:
            raise MarkError(f"{self.mark.place}: {self.name}: is not valid Python: {error}") from error


# A change of a text: its first byte, the byte after its last one, and the new text.
_Edit = tuple[int, int, str]


def mutants_of(source: str, marks: Sequence[Mark]) -> list[Mutant]:
    """Return all mutants of the marks of one Python file, each different from the file. Raises MarkError for a mark
    without mutants."""
    tree = ast.parse(source)
    return [mutant for mark in marks for mutant in _Text(source, tree, mark, marks).mutants()]


class _Text:
    """Text of a file, with one of its marks."""

    def __init__(self, source: str, tree: ast.Module, mark: Mark, marks: Sequence[Mark]) -> None:
        self._mark = mark
        self._marks = marks
        self._tree = tree
        self._bytes = source.encode()
        lengths = [len(line) for line in self._bytes.splitlines(keepends=True)]
        self._starts = [0, *_sums(lengths)]

    def mutants(self) -> Iterator[Mutant]:
        found: dict[str, str] = {}
        for what, edits in self._changes():
            found.setdefault(self._changed(edits), what)
        if not found:
            raise self._error("nothing can be changed there")
        for changed, what in found.items():
            yield Mutant(self._mark, what, changed)

    def _changes(self) -> Iterator[tuple[str, list[_Edit]]]:
        mark = self._mark
        if mark.part is not None:
            yield self._other_part(mark.part, mark.instead)
            return
        node = self._target()
        if mark.order is not None:
            yield self._swapped(node, mark.order)
        if mark.order is None or isinstance(node, ast.Expr):
            yield from self._of_node(node)

    # The node that a mark is about

    def _target(self) -> ast.AST:
        line = self._mark.line
        within = [node for node in ast.walk(self._tree) if isinstance(node, ast.stmt) and _head(node)[0] <= line]
        statements = [node for node in within if line <= _head(node)[1]]
        if not statements:
            raise self._error("no statement ends there")
        statement = max(statements, key=lambda node: node.lineno)
        first, last = _head(statement)
        if first < last:
            parts = [part for part in _parts(statement) if part.end_lineno == line]
            if parts:
                return min(parts, key=lambda part: (part.lineno, part.col_offset))
            if line not in (first, last):
                raise self._error("no operand, condition or keyword argument ends there")
        return statement

    def _of_node(self, node: ast.AST) -> Iterator[tuple[str, list[_Edit]]]:
        match node:
            case ast.keyword(value=value):
                new = "True" if isinstance(value, ast.Constant) and value.value is False else "False"
                yield f"{node.arg}={new}", [self._replaced(value, new)]
            case ast.If(test=test) | ast.While(test=test):
                yield from self._of_condition(test)
            case ast.Return(value=value) if value is not None and (_is_truth(value) or self._returned() == "bool"):
                yield from self._of_condition(value)
            case ast.Return(value=value) if value is not None:
                new = self._nothing()
                yield f"returns {new}", [self._replaced(value, new)]
            case ast.Assign(value=value) if _is_truth(value):
                yield from self._of_condition(value)
            case ast.With():
                start = self._place(node.lineno, node.col_offset)
                stop = self._starts[node.body[0].lineno - 1]
                yield f"without {self._shown(node)}", [(start, stop, "if True:\n")]
            case ast.stmt():
                yield f"without {self._shown(node)}", [(*self._span(node), "pass")]
            case ast.expr():
                yield f"without {self._shown(node)}", [self._replaced(node, self._neutral(node))]
                yield from self._bounds(node)

    def _of_condition(self, test: ast.expr) -> Iterator[tuple[str, list[_Edit]]]:
        start, stop = self._span(test)
        if isinstance(test, ast.Constant):
            yield f"{not test.value}", [(start, stop, str(not test.value))]
            return
        is_all, is_any = _joins(test, ast.And), _joins(test, ast.Or)
        # "always" is not needed for `and`: a test that catches a removed operand catches it, too. The same holds for
        # `or` and "never".
        if not is_any:
            yield f"never {self._shown(test)}", [(start, start, "(("), (stop, stop, ") and False)")]
        if not is_all:
            yield f"always {self._shown(test)}", [(start, start, "(("), (stop, stop, ") or True)")]
        yield from self._drops(test)
        yield from self._bounds(test)

    def _drops(self, test: ast.expr) -> Iterator[tuple[str, list[_Edit]]]:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield from self._drops(operand)
            case ast.BoolOp(op=op, values=values):
                for value in values:
                    neutral = "True" if isinstance(op, ast.And) else "False"
                    yield f"without {self._shown(value)}", [self._replaced(value, neutral)]
                    yield from self._drops(value)

    def _bounds(self, test: ast.expr) -> Iterator[tuple[str, list[_Edit]]]:
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield from self._bounds(operand)
            case ast.BoolOp(values=values):
                for value in values:
                    yield from self._bounds(value)
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for op, (one, two) in zip(ops, pairwise([left, *comparators]), strict=True):
                    if type(op) in _OTHER_BOUND:
                        start, stop = self._span(one)[1], self._span(two)[0]
                        between = self._bytes[start:stop].decode()
                        other = between.replace(_SIGN[type(op)], _OTHER_BOUND[type(op)], 1)
                        yield f"{other.strip()} in {self._shown(test)}", [(start, stop, other)]

    def _neutral(self, operand: ast.expr) -> str:
        """Return the value of an operand, or a condition of a comprehension, that has no effect."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.BoolOp) and operand in node.values:
                return "True" if isinstance(node.op, ast.And) else "False"
        return "True"

    def _swapped(self, node: ast.AST, later: str) -> tuple[str, list[_Edit]]:
        other = next((mark for mark in self._marks if mark.name == later), None)
        if other is None:
            raise self._error(f"no mark {later} in this file")
        second = _Text(self._bytes.decode(), self._tree, other, self._marks)._target()
        for block in _blocks(self._tree):
            places = {self._span(statement): number for number, statement in enumerate(block)}
            if not isinstance(node, ast.stmt) or self._span(node) not in places or self._span(second) not in places:
                continue
            if places[self._span(node)] >= places[self._span(second)]:
                raise self._error(f"{later} is not after it")
            assert isinstance(second, ast.stmt), "a block contains statements"
            start, stop = self._starts[node.lineno - 1], self._starts[node.end_lineno or 0]
            behind = self._starts[second.end_lineno or 0]
            moved = self._bytes[start:stop].decode()
            return f"behind {self._shown(second)}", [(start, stop, ""), (behind, behind, moved)]
        raise self._error(f"{later} is not in the same block")

    def _other_part(self, part: str, instead: str | None) -> tuple[str, list[_Edit]]:
        start, stop = self._starts[self._mark.line - 1], self._starts[self._mark.line]
        code = self._bytes[start:stop].decode().partition("# prove:")[0]
        if code.count(part) != 1:
            raise self._error(f"the line contains {part!r} {code.count(part)} times")
        begin = start + len(code.partition(part)[0].encode())
        what = f"without {part!r}" if instead is None else f"{instead!r} for {part!r}"
        return what, [(begin, begin + len(part.encode()), instead or "")]

    # The function around it

    def _returned(self) -> str:
        functions = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.lineno <= self._mark.line <= (node.end_lineno or 0)
        ]
        inner = max(functions, key=lambda node: node.lineno, default=None)
        return ast.unparse(inner.returns) if inner is not None and inner.returns is not None else ""

    def _nothing(self) -> str:
        kind = self._returned().partition("[")[0]
        return "()" if kind in _EMPTY else _NOTHING.get(kind, "None")

    # Text

    def _place(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.stmt | ast.expr | ast.keyword), "other nodes have no position"
        return self._place(node.lineno, node.col_offset), self._place(node.end_lineno or 0, node.end_col_offset or 0)

    def _replaced(self, node: ast.expr, new: str) -> _Edit:
        return (*self._span(node), new)

    def _changed(self, edits: Iterable[_Edit]) -> str:
        content = self._bytes
        for start, stop, new in sorted(edits, reverse=True):
            content = content[:start] + new.encode() + content[stop:]
        return content.decode()

    def _shown(self, node: ast.AST) -> str:
        if isinstance(node, ast.With):
            text = f"with {', '.join(map(ast.unparse, node.items))}"
        else:
            text = ast.unparse(node).partition("\n")[0]
        return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"

    def _error(self, what: str) -> MarkError:
        return MarkError(f"{self._mark.place}: {self._mark.name}: {what}")


def _sums(lengths: Iterable[int]) -> Iterator[int]:
    total = 0
    for length in lengths:
        total += length
        yield total


def _head(statement: ast.stmt) -> tuple[int, int]:
    """Return the first and the last line of a statement, without its body."""
    body = getattr(statement, "body", None)
    if not body:
        return statement.lineno, statement.end_lineno or statement.lineno
    match statement:
        case ast.If(test=last) | ast.While(test=last) | ast.For(iter=last):
            # The closing bracket belongs to no node. Comments above the body are not part of the head.
            is_closed_below = statement.lineno < (last.end_lineno or 0)
            return statement.lineno, (last.end_lineno or 0) + is_closed_below
        case _:
            return statement.lineno, statement.lineno


def _parts(statement: ast.stmt) -> Iterator[ast.expr | ast.keyword]:
    """Yield the operands, conditions and keyword arguments of a statement, without those of its body."""
    inside: list[ast.AST] = [
        child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt | ast.ExceptHandler)
    ]
    while inside:
        node = inside.pop()
        inside += ast.iter_child_nodes(node)
        match node:
            case ast.keyword():
                yield node
            case ast.BoolOp(values=values):
                yield from values
            case ast.comprehension(ifs=conditions):
                yield from conditions


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _is_truth(value: ast.expr) -> bool:
    return isinstance(value, ast.Compare | ast.BoolOp) or (
        isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
    )


def _joins(test: ast.expr, op: type[ast.boolop]) -> bool:
    return isinstance(test, ast.BoolOp) and isinstance(test.op, op)
