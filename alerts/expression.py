"""Expressions over readings, as `acceptance_rate < 0.65 and window_requests >= 50`. Pure.

    expression  = term with: or; and; not; one comparison < <= > >= == !=; + -; * /; unary -; ( )
    term        = a number (0.65, 1e3, 65%) or the name of a reading

Each of these binds tighter than the one before. Logic has three values (Kleene): a comparison with a reading that is
not known is unknown, `false and unknown` is false, `true or unknown` is true. What is divided by zero, or too large to
be a number, is unknown.
"""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

#: Characters, and operators or parentheses inside one another.
MOST_CHARACTERS, MOST_DEPTH = 2_000, 40

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?%?)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign><=|>=|==|!=|[-<>+*/()])|(?P<other>\S))"
)
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_COMPUTE: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
#: How tightly each binds. A unary minus is written `neg` here.
_BINDS = {"or": 0, "and": 1, "not": 2, **dict.fromkeys(_COMPARE, 3), "+": 4, "-": 4, "*": 5, "/": 5, "neg": 6}
_ATOM = 7


class ExpressionError(ValueError):
    """An expression that cannot be read: where, and what to write."""


class Look(NamedTuple):
    """What an expression says of the readings of one moment."""

    #: None: not known.
    holds: bool | None
    #: The readings of the expression that are not known.
    missing: tuple[str, ...]
    #: The first reading of the expression.
    value: float | None


@dataclass(frozen=True, slots=True)
class _Number:
    value: float

    def __str__(self) -> str:
        return repr(self.value).removesuffix(".0")


@dataclass(frozen=True, slots=True)
class _Reading:
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class _Operation:
    sign: str
    parts: "tuple[_Node, ...]"

    @property
    def logical(self) -> bool:
        return _BINDS[self.sign] < _BINDS["+"]

    def __str__(self) -> str:
        binds = _BINDS[self.sign]
        # Operators lean to the left, so that an equal one on the right needs its parentheses.
        shown = [
            f"({part})" if _binds(part) < binds + (place > 0) else str(part) for place, part in enumerate(self.parts)
        ]
        if len(shown) == 2:
            return f"{shown[0]} {self.sign} {shown[1]}"
        return f"not {shown[0]}" if self.sign == "not" else f"-{shown[0]}"


_Node = _Number | _Reading | _Operation


def _binds(node: _Node) -> int:
    return _BINDS[node.sign] if isinstance(node, _Operation) else _ATOM


@dataclass(frozen=True, slots=True)
class Expression:
    """Made by `parse`; `str()` of it is parsed to the same."""

    _root: _Node
    #: Names of readings, each once, as they appear.
    readings: tuple[str, ...]

    def __str__(self) -> str:
        return str(self._root)

    def look(self, readings: Mapping[str, float | None]) -> Look:
        """A reading that is None, not finite or not there is not known."""
        known = {name: _finite(readings.get(name)) for name in self.readings}
        holds = _truth(self._root, known)
        return Look(holds, tuple(name for name, value in known.items() if value is None), known[self.readings[0]])


def parse(text: str) -> Expression:
    """Raises ExpressionError. Whether there are such readings is not looked at."""
    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(f"is longer than {MOST_CHARACTERS} characters")
    parser = _Parser(text)
    root = parser.whole()
    if not isinstance(root, _Operation) or not root.logical:
        raise ExpressionError("is a number: compare it, as in acceptance_rate < 0.65")
    readings = tuple(dict.fromkeys(_names(root)))
    if not readings:
        raise ExpressionError("names no reading, so it would always say the same")
    return Expression(root, readings)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [
            (match.lastgroup or "", match[match.lastgroup or 0], match.start(match.lastgroup or 0) + 1)
            for match in _TOKEN.finditer(text.rstrip())
        ]
        self._at = 0
        self._depth = 0

    def whole(self) -> _Node:
        node = self._or()
        kind, text, column = self._peek()
        if kind:
            raise ExpressionError(f"{_quoted(text)} at column {column} is not expected{_hint(text)}")
        return node

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("", "", 0)

    def _take(self, *texts: str) -> str | None:
        kind, text, _ = self._peek()
        if kind in ("word", "sign") and text in texts:
            self._at += 1
            return text
        return None

    def _or(self) -> _Node:
        return self._chain(self._and, "or")

    def _and(self) -> _Node:
        return self._chain(self._not, "and")

    def _sum(self) -> _Node:
        return self._chain(self._product, "+", "-")

    def _product(self) -> _Node:
        return self._chain(self._unary, "*", "/")

    def _chain(self, inner: Callable[[], _Node], *signs: str) -> _Node:
        node = inner()
        links = 0
        while sign := self._take(*signs):
            # Each link puts what came before one level deeper.
            links += 1
            self._deeper(links)
            node = _operation(sign, node, inner())
        return node

    def _not(self) -> _Node:
        if not self._take("not"):
            return self._comparison()
        return self._nested(lambda: _operation("not", self._not()))

    def _comparison(self) -> _Node:
        node = self._sum()
        if sign := self._take(*_COMPARE):
            node = _operation(sign, node, self._sum())
            if self._peek()[1] in _COMPARE:
                raise ExpressionError("compares twice in a row: write a < b and b < c")
        return node

    def _unary(self) -> _Node:
        if self._take("-"):
            return self._nested(lambda: _operation("neg", self._unary()))
        if self._take("("):
            node = self._nested(self._or)
            if not self._take(")"):
                raise ExpressionError("a ) is missing")
            return node
        kind, text, column = self._peek()
        if kind == "number":
            self._at += 1
            return _Number(_number(text))
        if kind == "word" and text not in ("and", "or", "not"):
            self._at += 1
            return _Reading(text)
        if not kind:
            raise ExpressionError("ends where a reading or a number is expected")
        raise ExpressionError(
            f"{_quoted(text)} at column {column}, where a reading or a number is expected{_hint(text)}"
        )

    def _nested(self, inner: Callable[[], _Node]) -> _Node:
        self._depth += 1
        self._deeper(0)
        node = inner()
        self._depth -= 1
        return node

    def _deeper(self, links: int) -> None:
        if self._depth + links > MOST_DEPTH:
            raise ExpressionError(f"is nested more than {MOST_DEPTH} deep")


def _operation(sign: str, *parts: _Node) -> _Node:
    """Raises ExpressionError where a truth stands for a number, or the other way round."""
    wants_truth = sign in ("and", "or", "not")
    for part in parts:
        if (isinstance(part, _Operation) and part.logical) != wants_truth:
            shown = "-" if sign == "neg" else sign
            if wants_truth:
                raise ExpressionError(f"{shown!r} is for comparisons: compare {_short(part)} with a number")
            raise ExpressionError(f"{shown!r} is for numbers, and {_short(part)} is a comparison")
    return _Operation(sign, parts)


def _number(text: str) -> float:
    value = float(Decimal(text[:-1]) / 100 if text.endswith("%") else Decimal(text))
    if not math.isfinite(value):
        raise ExpressionError("holds a number that is too large")
    return value


def _hint(text: str) -> str:
    words = {"=": ": write ==", "&": ": write and", "|": ": write or", "!": ": write not", "AND": ": write and"}
    return words.get(text, {"OR": ": write or", "NOT": ": write not"}.get(text, ""))


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")


def _short(node: _Node) -> str:
    return _quoted(str(node))


def _names(node: _Node) -> Iterator[str]:
    if isinstance(node, _Reading):
        yield node.name
    elif isinstance(node, _Operation):
        for part in node.parts:
            yield from _names(part)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _truth(node: _Node, known: Mapping[str, float | None]) -> bool | None:
    assert isinstance(node, _Operation)
    if node.sign == "not":
        inner = _truth(node.parts[0], known)
        return None if inner is None else not inner
    if node.sign in ("and", "or"):
        parts = [_truth(part, known) for part in node.parts]
        decides = node.sign == "or"
        if decides in parts:
            return decides
        return None if None in parts else not decides
    left, right = (_figure(part, known) for part in node.parts)
    return None if left is None or right is None else _COMPARE[node.sign](left, right)


def _figure(node: _Node, known: Mapping[str, float | None]) -> float | None:
    if isinstance(node, _Number):
        return node.value
    if isinstance(node, _Reading):
        return known[node.name]
    figures = [_figure(part, known) for part in node.parts]
    if None in figures:
        return None
    if node.sign == "neg":
        return -figures[0]  # type: ignore[operator]
    left, right = figures
    if node.sign == "/" and right == 0:
        return None
    return _finite(_COMPUTE[node.sign](left, right))  # type: ignore[arg-type]
