from __future__ import annotations

import socket
from pathlib import Path

from typer.testing import CliRunner

from tailrace.cli.commands import app
from tailrace.cli.console import allowed
from tailrace.errors import AddressInUse, Unreachable


def test_names_that_it_may_be_called_by() -> None:
    found = allowed("10.0.0.1:8787", 8787, ("console.example",))
    assert {"10.0.0.1:8787", "localhost:8787", "console.example", "console.example:8787"} <= found
    assert "evil.example:8787" not in found


def test_a_cluster_that_does_not_answer_and_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nobody = ["console", "--bootstrap", f"127.0.0.1:{port}", "--timeout", "0.3"]
    done = CliRunner().invoke(app, [*nobody, "--listen", "127.0.0.1:0"])
    assert isinstance(done.exception, Unreachable)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = CliRunner().invoke(app, [*nobody, "--listen", listen])
        assert isinstance(done.exception, AddressInUse)
