"""Language of selectors, and the report of mistakes (the grammar of ActiveMQ's SelectorParser, as LALR).

There are two grammars: in Classic's, NOT binds tighter than a comparison; in JMS it binds looser.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterable
from itertools import islice

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from tandemmq.broker.core.selector.words import WORD

_CLASSIC_NOT = """
?junction: equality
?unary: value | sign | _NOT unary -> negation
?argument: unary
"""

_JMS_NOT = """
?junction: equality | _NOT junction -> negation
?unary: value | sign
?argument: unary | _NOT argument -> negation
"""

_GRAMMAR = r"""
?start: conjunction | conjunction (_OR conjunction)+ -> any_of
?conjunction: junction | junction (_AND junction)+ -> all_of

?equality: comparison
    | equality "=" comparison -> equal
    | equality UNEQUAL comparison -> not_equal
    | equality _IS _NULL -> is_null
    | equality _IS _NOT _NULL -> is_not_null

?comparison: sum
    | comparison ORDER sum -> ordered
    | comparison _LIKE STRING [_ESCAPE STRING] -> like
    | comparison _NOT _LIKE STRING [_ESCAPE STRING] -> not_like
    | comparison _BETWEEN sum _AND sum -> between
    | comparison _NOT _BETWEEN sum _AND sum -> not_between
    | comparison _IN "(" STRING ("," STRING)* ")" -> among
    | comparison _NOT _IN "(" STRING ("," STRING)* ")" -> not_among

?sum: product | sum (PLUS | MINUS) product -> calculation
?product: unary | product (TIMES | DIVIDED | MODULO) unary -> calculation

?sign: PLUS unary -> positive | MINUS unary -> negative
?value: NAME "(" [argument ("," argument)*] ")" -> call
    | (_XPATH | _XQUERY) STRING -> xpath
    | STRING -> text
    | DECIMAL -> decimal
    | HEXADECIMAL -> hexadecimal
    | OCTAL -> octal
    | FLOATING -> floating
    | word
    | NAME -> property
    | "(" start ")"

!word: _TRUE | _FALSE | _NULL

UNEQUAL.2: "<>"
ORDER: />=|<=|>|</
PLUS: "+"
MINUS: "-"
TIMES: "*"
DIVIDED: "/"
MODULO: "%"
STRING: /'(?:[^']|'')*'/
FLOATING.4: /(?:[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)/
HEXADECIMAL.3: /0[xX][0-9a-fA-F]+/
DECIMAL: /[1-9][0-9]*[lL]?/
OCTAL: /0[0-7]*/
NAME: /[A-Za-z_$][A-Za-z0-9_$]*/

BLANK: /[ \t\n\r\f]+/
%ignore BLANK
"""

_KEYWORDS = frozenset(
    ("NOT", "AND", "OR", "BETWEEN", "LIKE", "ESCAPE", "IN", "IS", "TRUE", "FALSE", "NULL", "XPATH", "XQUERY")
)
_DECLARED = f"%declare {' '.join(sorted(f'_{word}' for word in _KEYWORDS))}\n"

# Names of the tokens that are not keywords, for error messages.
_VALUE = "a value"
_OPERATOR = "an operator"
_SAID = {
    **dict.fromkeys(("NAME", "DECIMAL", "HEXADECIMAL", "OCTAL", "FLOATING", "LPAR"), _VALUE),
    **dict.fromkeys(("EQUAL", "UNEQUAL", "ORDER", "TIMES", "DIVIDED", "MODULO"), _OPERATOR),
    "STRING": "a text in single quotes",
    "PLUS": "+",
    "MINUS": "-",
    "RPAR": ")",
    "COMMA": ",",
    "$END": "the end",
}
_PART_OF_VALUE = frozenset(("STRING", "PLUS", "MINUS", "_TRUE", "_FALSE", "_NULL", "_XPATH", "_XQUERY", "_NOT"))
_FOUND_CHARACTERS_MAX = 20
# Names, numbers, texts and signs: 4,000 conditions, or 8,000 texts of an IN. They take a third of a second.
TOKENS_MAX = 16_000
_PARSERS = threading.Lock()
_LINE_END = re.compile(r"\r\n?|\n")
_BEGINNINGS = re.compile(r"'|--|/\*")


class Mistake(Exception):
    """Mistake in a selector, and its position (counted from 0)."""

    def __init__(self, what: str, position: int) -> None:
        super().__init__(what)
        self.what = what
        self.position = position


def read(text: str, is_classic: bool) -> Tree[Token]:
    """Parse a selector into its tree. Raises Mistake. Takes time in proportion to the text, and no stack."""
    try:
        text = without_comments(text)
        too_many = next(islice(WORD.finditer(text), TOKENS_MAX, None), None)
        if too_many is not None:
            raise Mistake(f"it has more than {TOKENS_MAX} words, texts and signs", too_many.start())
        tree = _parser(is_classic).parse(text)
    except UnexpectedInput as error:
        raise _mistake(error, text) from None
    # a single token always has a rule around it: every alias above makes a tree
    assert isinstance(tree, Tree), "the grammar gave a token"
    return tree


def without_comments(text: str) -> str:
    """Return ``text`` with its comments replaced by blanks, in time in proportion to its length.

    As in Classic, a line comment ends with its line; without a line end "--" is two signs, and "/*" without its end is
    two operators.
    """
    pieces = []
    taken = position = 0
    line_end = block_end = 0  # end of the next one; -1: there are no more
    while (begins := _BEGINNINGS.search(text, position)) is not None:
        start, after = begins.span()
        position = start + 1
        if begins[0] == "'":
            closed = text.find("'", after)
            if closed < 0:
                break
            position = closed + 1
            continue
        if begins[0] == "--":
            if 0 <= line_end < after:
                found = _LINE_END.search(text, after)
                line_end = -1 if found is None else found.end()
            ends = line_end
        else:
            if 0 <= block_end < after + 2:
                found_at = text.find("*/", after)
                block_end = -1 if found_at < 0 else found_at + 2
            ends = block_end
        if ends >= 0:
            pieces += [text[taken:start], " " * (ends - start)]
            taken = position = ends
    return "".join(pieces) + text[taken:] if pieces else text


def _parser(is_classic: bool) -> Lark:
    with _PARSERS:  # a second thread waits: it would need longer to make another one
        return _made_parser(is_classic)


@functools.cache
def _made_parser(is_classic: bool) -> Lark:
    grammar = _DECLARED + _GRAMMAR + (_CLASSIC_NOT if is_classic else _JMS_NOT)
    return Lark(grammar, parser="lalr", lexer="basic", lexer_callbacks={"NAME": _keyword_or_name})


def _keyword_or_name(token: Token) -> Token:
    word = token.upper()
    return Token.new_borrow_pos(f"_{word}", token.value, token) if word in _KEYWORDS else token


def _mistake(error: UnexpectedInput, text: str) -> Mistake:
    if isinstance(error, UnexpectedToken):
        token = error.token
        if token.type == "$END":
            return Mistake(f"it ends where {_described(error.expected)} is expected", len(text))
        return Mistake(f"{_described(error.expected)} is expected instead of {_shown(token)}", token.start_pos or 0)
    assert isinstance(error, UnexpectedCharacters), "lark knows a third kind of mistake"
    position = error.pos_in_stream or 0
    found = text[position]
    if found == "'":
        return Mistake("a text in single quotes has no end", position)
    if found == '"':
        return Mistake('" is not allowed: write texts in single quotes', position)
    if found == "!":
        return Mistake("! is not an operator: write <> for unequal", position)
    return Mistake(f"the character {found!r} is not allowed", position)


def _shown(text: str) -> str:
    return text if len(text) <= _FOUND_CHARACTERS_MAX else f"{text[:_FOUND_CHARACTERS_MAX]}..."


def _described(expected: Iterable[str]) -> str:
    names = set(expected) or {"$END"}  # lark names nothing if only the end fits
    if "NAME" in names:  # signs and the like begin a value, too
        names -= _PART_OF_VALUE
    elif "TIMES" in names:
        names -= {"PLUS", "MINUS"}
    words = sorted({_SAID.get(name, name.lstrip("_")) for name in names})
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
