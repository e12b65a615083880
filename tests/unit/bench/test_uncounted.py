"""What counting costs is measured against brokers without it: all of it has to be found."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

from bench.uncounted import MODULES, Switch, Uncounted

COUNTING = """
def answered(self, request):
    times = self.counts.produced[request.acks]
    times.observe(self.clock.monotonic_ms() - request.began_ms)
    hosted.traffic.bytes_in += len(part)
    self.refused[error.code] += 1
    request = Request(size, began_ms=clock.monotonic_ms())
    return request
"""


def test_what_counts_is_left_out_and_nothing_else() -> None:
    uncounted = Uncounted()
    changed = ast.unparse(ast.fix_missing_locations(uncounted.visit(ast.parse(COUNTING))))
    assert [each.strip() for each in changed.splitlines()] == [
        "def answered(self, request):",
        "pass",
        "pass",
        "pass",
        "self.refused[error.code] += 1",
        "request = Request(size, began_ms=0)",
        "return request",
    ]
    assert len(uncounted.left_out) == 4


def test_all_that_a_broker_counts_of_requests_is_found() -> None:
    """When this fails the counting has moved: say in `bench.uncounted` where to."""
    switch = Switch(map(import_module, MODULES))
    found = "\n".join(switch.left_out)
    for part in (
        *("traffic.bytes_in +=", "traffic.records_in +=", "times.observe(", "began_ms="),
        *("traffic.bytes_out +=", "traffic.records_out +=", "counts.fetch_responses +="),
        *("traffic.replica_bytes_in +=", "traffic.replica_bytes_out +="),
    ):
        assert part in found


def test_functions_are_switched_while_they_are_in_use(tmp_path: Path) -> None:
    path = tmp_path / "served.py"
    path.write_text(
        "class Service:\n"
        "    def __init__(self):\n"
        "        self.traffic = 0\n"
        "    def serve(self):\n"
        "        self.traffic += 1\n"
        "        return 'served'\n"
    )
    module = ModuleType("served")
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    service, switch = module.Service(), Switch([module])
    for counting in (True, False, False, True):
        switch.to(counting=counting)
        assert service.serve() == "served"
    assert service.traffic == 2
