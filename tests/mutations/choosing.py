# SPDX-License-Identifier: Apache-2.0
"""Mutations: small changes of one line of the source, chosen by a seed over all rooms.

Only code of functions is changed: what runs at import is reached by whatever test runs first.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import pathlib
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass

# The worker's program may run before the package is found, and so before marks are.
LEFT_OUT = frozenset({"src/pytriton/runtime/worker_process/__main__.py"})
FLOORS_OF_ROOMS = frozenset({"runtime", "serving", "tools"})
PAIRS = {
    "order": (("<", "<="), (">", ">=")),
    "equality": (("==", "!="),),
    "identity": (("is", "is not"),),
    "membership": (("in", "not in"),),
    "logic": (("and", "or"),),
    "sign": (("+", "-"), ("+=", "-=")),
    "bool": (("True", "False"),),
    "loop": (("break", "continue"),),
}
CHANGES = {
    old: (kind, new)
    for kind, pairs in PAIRS.items()
    for pair in pairs
    for old, new in (pair, pair[::-1])
}
SIGNS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.And: "and",
    ast.Or: "or", ast.Add: "+", ast.Sub: "-",
}  # fmt: skip
LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
MARKS = '__import__("pytriton_reached")'  # which is `marks.py`


@dataclass(frozen=True)
class Mutation:
    """A change of one line; places are offsets in the bytes of the file."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    old: str
    new: str
    marked: tuple[int, int]  # the expression that is changed; for a statement, where it starts

    @property
    def words(self) -> str:
        """The change in a few words."""
        words = {"call": "the call is left out", "return": "returns `None`", "not": "without `not`"}
        return words.get(self.kind, f"`{self.old}` is `{self.new}`")

    def apply(self, source: bytes) -> bytes:
        """The source with the change."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def diff(self, source: bytes) -> str:
        """The change as a unified diff."""
        before, after = (text.decode().splitlines() for text in (source, self.apply(source)))
        names = (f"a/{self.file}", f"b/{self.file}")
        return "\n".join(difflib.unified_diff(before, after, *names, n=1, lineterm=""))


def mark(source: bytes, mutations: dict[int, Mutation]) -> bytes:
    """The source with a call of `marks.mark` at each place; places have numbers."""
    inserted = []
    for number, mutation in mutations.items():
        (start, end), call = mutation.marked, f"{MARKS}.mark({number})"
        is_statement = start == end
        inserted += (
            [(start, f"{call}; ")] if is_statement else [(start, f"({call} or "), (end, ")")]
        )
    for offset, text in sorted(inserted, reverse=True):
        source = source[:offset] + text.encode() + source[offset:]
    return source


def room_of(file: str) -> str:
    """The room of docs/architecture.md in which a file of the package lies."""
    folders = pathlib.PurePosixPath(file).parts[2:-1]
    depth = 2 if folders and folders[0] in FLOORS_OF_ROOMS else 1
    return "/".join(folders[:depth]) or "public modules"


def choose(
    sources: dict[str, bytes], seed: int, count: int, among: Container[str] | None = None
) -> list[Mutation]:
    """One mutation for each room, or for each among some, then more where there is most code.

    All kinds of changes are equally likely, however many places the code has for them.
    """
    rooms: dict[str, list[Mutation]] = defaultdict(list)
    sizes: Counter[str] = Counter()
    for file, source in sorted(sources.items()):
        room = room_of(file)
        if file not in LEFT_OUT and (among is None or room in among):
            sizes[room] += source.count(b"\n")
            rooms[room] += mutations_of(file, source)
    chosen: dict[str, list[Mutation]] = {room: [] for room in sorted(rooms) if rooms[room]}
    draws = {room: random.Random(f"{seed} {room}") for room in chosen}
    for _ in range(count):
        room = max(
            chosen, key=lambda each: (not chosen[each], sizes[each] / max(1, len(chosen[each])))
        )
        taken = {(each.file, each.line) for each in chosen[room]}
        kinds = defaultdict(list)
        for each in rooms[room]:
            if (each.file, each.line) not in taken:
                kinds[each.kind].append(each)
        chosen[room].append(draws[room].choice(kinds[draws[room].choice(sorted(kinds))]))
    return [each for mutations in chosen.values() for each in mutations]


def mutations_of(file: str, source: bytes) -> list[Mutation]:
    """All possible mutations of a file."""
    found = []
    finder = _Finder(source)
    for kind, node, start, end, new in finder.walk(ast.parse(source), in_function=False):
        old = source[start:end].decode()
        if "\n" not in old:
            marked = finder.place(node)
            marked = (marked[0], marked[0]) if isinstance(node, ast.stmt) else marked
            line = source.count(b"\n", 0, start) + 1
            found.append(Mutation(file, line, kind, start, end, old, new, marked))
    return found


def equivalent(mutations: list[Mutation], sources: dict[str, bytes], text: str) -> dict[int, str]:
    """The numbers of mutations that change nothing, by equivalent.toml, and why they do not."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    reasons = {
        (each["file"], each["line"], each["change"]): each["why"]
        for each in toml.loads(text).get("equivalent", [])
    }
    lines = [sources[each.file].decode().splitlines()[each.line - 1].strip() for each in mutations]
    keys = [(each.file, line, each.words) for each, line in zip(mutations, lines, strict=True)]
    return {number: reasons[key] for number, key in enumerate(keys) if key in reasons}


_Change = tuple[str, ast.expr | ast.stmt, int, int, str]


class _Finder:
    """Finds changes in the syntax tree of a file."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def place(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node starts and ends."""
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset

    def walk(self, node: ast.AST, *, in_function: bool) -> Iterator[_Change]:
        if _is_left_out(node):
            return
        if in_function and isinstance(node, (ast.expr, ast.stmt)):
            yield from self._operators(node)
            yield from self._others(node, *self.place(node))
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        children = ast.iter_child_nodes(node)
        if is_function or isinstance(node, ast.ClassDef):
            children = node.body  # not decorators and defaults
        elif isinstance(node, ast.AnnAssign):
            children = [node.value] if node.value is not None else []
        for child in children:
            yield from self.walk(child, in_function=in_function or is_function)

    def _operators(self, node: ast.expr | ast.stmt) -> Iterator[_Change]:
        """What lies between two operands."""
        operands, operators = [], []
        if isinstance(node, ast.Compare):
            operands, operators = [node.left, *node.comparators], node.ops
        elif isinstance(node, ast.BoolOp):
            operands, operators = node.values, [node.op] * (len(node.values) - 1)
        elif isinstance(node, ast.BinOp):
            operands, operators = [node.left, node.right], [node.op]
        elif isinstance(node, ast.AugAssign):
            operands, operators = [node.target, node.value], [node.op]
        for left, operator, right in zip(operands, operators, operands[1:], strict=False):
            sign = SIGNS.get(type(operator), "") + "=" * isinstance(node, ast.AugAssign)
            if sign in CHANGES and not (sign[0] in "+-" and any(map(_has_no_minus, operands))):
                kind, new = CHANGES[sign]
                after = self.place(left)[1]
                between = self._source[after : self.place(right)[0]]
                # There may be parentheses, but no comment, which could have the sign, too.
                if found := re.fullmatch(rb"[\s)]*(%s)[\s(]*" % re.escape(sign.encode()), between):
                    yield kind, node, after + found.start(1), after + found.end(1), new

    def _others(self, node: ast.expr | ast.stmt, start: int, end: int) -> Iterator[_Change]:
        text = self._source[start:end].decode()
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield "not", node, start, start + len("not "), ""
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield "integer", node, start, end, str(node.value + 1)
        elif isinstance(node, (ast.Constant, ast.Break, ast.Continue)) and text in CHANGES:
            kind, new = CHANGES[text]
            yield kind, node, start, end, new
        elif isinstance(node, ast.Return) and text not in {"return", "return None"}:
            yield "return", node, start + len("return "), end, "None"
        elif isinstance(node, ast.Expr):
            inner = node.value.value if isinstance(node.value, ast.Await) else node.value
            if isinstance(inner, ast.Call) and not _is_left_out(inner):
                yield "call", node, start, end, "pass"


def _is_left_out(node: ast.AST) -> bool:
    """Whether a test need not notice a change in this."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.dump(node.test)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in LOG_METHODS and "log" in ast.unparse(node.func.value).lower()
    if isinstance(node, ast.FunctionDef):
        return node.name in {"__repr__", "__str__"}
    # Places inside f-strings are wrong before Python 3.12; a pattern cannot have a mark.
    return isinstance(node, (ast.Assert, ast.Raise, ast.JoinedStr, ast.pattern))


def _has_no_minus(node: ast.expr) -> bool:
    """With a minus, any test that gets there would fail."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    return is_text or isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp))
