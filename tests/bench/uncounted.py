"""The shipped broker without its counting, to know what counting costs.

Functions of the broker are compiled once more without the statements that count, as if nobody had
written them, and can be switched while it runs. What those statements look like is said here; a
test looks that none of them is missed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Final

# Where requests are counted while they are served.
MODULES: Final = (
    "tailrace.broker.service",
    "tailrace.broker.fetching",
    "tailrace.broker.fetcher",
    "tailrace.broker.leader_links",
)
COUNTERS: Final = frozenset({"counts", "traffic"})


class Uncounted(ast.NodeTransformer):
    """Leaves out what adds to counters, and the look at the clock for the time of a request."""

    def __init__(self) -> None:
        self.left_out: list[str] = []

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        return self._without(node) if COUNTERS & _names(node.target) else node

    def visit_Assign(self, node: ast.Assign) -> ast.stmt:
        is_histogram = isinstance(node.value, ast.Subscript) and "counts" in _names(node.value)
        if is_histogram:
            return self._without(node)
        self.generic_visit(node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        if isinstance(call, ast.Call) and _names(call.func) >= {"times", "observe"}:
            return self._without(node)
        self.generic_visit(node)
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        if node.arg == "began_ms":
            self.left_out.append(ast.unparse(node))
            return ast.keyword(arg=node.arg, value=ast.Constant(0))
        self.generic_visit(node)
        return node

    def _without(self, node: ast.stmt) -> ast.stmt:
        self.left_out.append(ast.unparse(node))
        return ast.copy_location(ast.Pass(), node)


def _names(node: ast.expr) -> set[str]:
    """All names of `a.b.c`, whatever is looked up in between."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


class Switch:
    """The functions that count, and each of them without its counting: `to` puts one in force."""

    def __init__(self, modules: Iterable[ModuleType]) -> None:
        self.left_out: list[str] = []
        self._functions: list[tuple[FunctionType, CodeType, CodeType]] = []
        for module in modules:
            self._take(module)

    def to(self, *, counting: bool) -> None:
        for function, counted, uncounted in self._functions:
            function.__code__ = counted if counting else uncounted

    def _take(self, module: ModuleType) -> None:
        path = module.__file__ or ""
        tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
        transformer = Uncounted()
        changed = ast.fix_missing_locations(transformer.visit(tree))
        self.left_out += [f"{module.__name__}: {each}" for each in transformer.left_out]
        code = compile(changed, path, "exec", dont_inherit=True)
        uncounted = {each.co_qualname: each for each in _codes(code)}
        for function in _functions(module):
            other = uncounted[function.__qualname__]
            if other.co_code != function.__code__.co_code:
                self._functions.append((function, function.__code__, other))


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """Those of the module and of its classes; what is made anew by each call cannot be switched."""
    owners = [module, *(each for each in vars(module).values() if isinstance(each, type))]
    for owner in owners:
        for each in vars(owner).values():
            if isinstance(each, FunctionType) and each.__module__ == module.__name__:
                yield each
