"""How the doctor asks and prints: a simulated cluster, an etcd that is a socket, no cluster."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest
from typer.testing import CliRunner

from simulation.loop import LoopClock
from tailrace.cli.commands import app
from tailrace.cli.diagnosis import Finding, Severity, examine
from tailrace.cli.doctor import _facts, etcd_trouble, show, summary
from unit.client.test_operations import World, simulate

WRONG = Finding("disks", Severity.CRITICAL, "it is full\x1b[2J", "make room")
WELL = Finding("etcd", Severity.OK, "etcd answers")


def test_the_worst_comes_first_and_nothing_that_was_read_gets_at_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([WELL, WRONG], as_json=False)
    first, do, second, last = capsys.readouterr().out.splitlines()
    assert first.split(None, 2) == ["critical", "disks", r"it is full\x1b[2J"]
    assert do.strip() == "→ make room"
    assert second.split(None, 2) == ["ok", "etcd", "etcd answers"]
    assert last == "1 critical finding."
    show([WELL, WRONG], as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["severity"] for each in lines] == ["critical", "ok"]


def test_a_summary() -> None:
    warning = Finding("clocks", Severity.WARNING, "they differ")
    assert summary([WELL]) == "Nothing is wrong."
    assert summary([WRONG, warning, warning]) == "1 critical finding and 2 warnings."


@contextmanager
def etcd(answer: bytes) -> Iterator[str]:
    """Something that answers one request."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4_096)
                connection.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "trouble"),
    [
        ("200 OK", b'{"health":"true","reason":""}', ""),
        ("503 No", b'{"health":"false","reason":"ALARM NOSPACE"}', "it says 'ALARM NOSPACE'"),
        ("200 OK", b"hello", "it does not answer: Expecting value"),
    ],
)
def test_etcd_is_asked_how_it_is(status: str, body: bytes, trouble: str) -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with etcd(head.encode() + body) as address:
        found = etcd_trouble(address)
    assert found.startswith(trouble)
    assert bool(found) == bool(trouble)


def test_an_etcd_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert "Connection refused" in etcd_trouble(address)


def test_a_cluster_is_asked_for_all_that_is_looked_at() -> None:
    async def main(world: World) -> None:
        # Brokers get a picture with the leaders of a new topic a moment later.
        await asyncio.sleep(0.1)
        facts = await _facts(world.admin, LoopClock(world.loop), {}, None)
        assert sorted(facts.picture.brokers) == sorted(facts.conditions) == [0, 1, 2, 3, 4]
        assert [each.topic for each in facts.topics] == ["t"]
        assert facts.brokers is not None
        assert facts.moves is None
        wrong = [each for each in examine(facts) if each.severity > Severity.OK]
        assert [each.check for each in wrong] == ["groups"]
        # A move is looked at twice.
        await world.write(40)
        await world.admin.reassign(drain=0)
        facts = await _facts(world.admin, LoopClock(world.loop), {}, None)
        assert facts.moves is not None
        assert facts.moves[1].at_ms > facts.moves[0].at_ms

    simulate(main)


def test_without_a_cluster_only_the_machine_is_looked_at(tmp_path: Path) -> None:
    environment = {"TAILRACE_DEV_DIR": str(tmp_path / "none"), "TAILRACE_BOOTSTRAP": ""}
    done = CliRunner().invoke(app, ["doctor", "--json"], env=environment)
    found = {each["check"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert found["cluster"]["severity"] == "hint"
    assert "partitions" not in found
    bad = tmp_path / "bad.properties"
    bad.write_text("brokr.id=1\n")
    done = CliRunner().invoke(app, ["doctor", "--config", str(bad)], env=environment)
    assert done.exit_code == 1
    assert "did you mean 'broker.id'" in done.stdout


def test_a_cluster_of_which_nobody_answers_is_a_finding(tmp_path: Path) -> None:
    environment = {"TAILRACE_DEV_DIR": str(tmp_path / "none")}
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    given = ["--bootstrap", f"127.0.0.1:{port}", "--etcd", f"127.0.0.1:{port}", "--timeout", "0.3"]
    done = CliRunner().invoke(app, ["doctor", "--json", *given], env=environment)
    assert done.exit_code == 1
    found = {each["check"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert found["cluster"]["severity"] == found["etcd"]["severity"] == "critical"
