"""The shipped broker without its counting, to know what counting costs.

Modules of the broker are compiled without the statements that count: as if nobody had written them.
What those statements look like is said here; how many were left out is told, so that a change of
the code that makes this look for nothing is noticed.
"""

from __future__ import annotations

import ast
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from types import ModuleType
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


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, left_out: list[str]) -> None:
        super().__init__(name, path)
        self._left_out = left_out

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        # Not from the cache of compiled modules, and nothing goes into it.
        tree = ast.parse(self.get_data(self.path), self.path)
        transformer = Uncounted()
        changed = ast.fix_missing_locations(transformer.visit(tree))
        self._left_out += [f"{fullname}: {each}" for each in transformer.left_out]
        return compile(changed, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, found: dict[str, str]) -> None:
        self._found = found
        self.left_out: list[str] = []

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._found:
            return None
        loader: Loader = _Loader(name, self._found[name], self.left_out)
        return ModuleSpec(name, loader, origin=self._found[name])


def install() -> list[str]:
    """From now on these modules are loaded without counting; gives what will have been left out."""
    loaded = [each for each in MODULES if each in sys.modules]
    if loaded:
        raise ImportError(f"loaded with counting already: {loaded}")
    package = find_spec("tailrace")
    if package is None or package.submodule_search_locations is None:
        raise ImportError("there is no tailrace")
    root = package.submodule_search_locations[0]
    finder = _Finder(
        {each: f"{root}/{'/'.join(each.split('.')[1:])}.py" for each in MODULES},
    )
    sys.meta_path.insert(0, finder)
    return finder.left_out
