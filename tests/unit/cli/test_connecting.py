from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.cli.connecting import connection, run
from tailrace.dev.processes import identify
from tailrace.dev.state import lay_out, save
from tailrace.errors import InvalidConfig, Unreachable


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TAILRACE_DEV_DIR", str(tmp_path))
    return tmp_path


def test_what_is_given_counts() -> None:
    assert connection("a:1, b:2", 2.5).bootstrap == ("a:1", "b:2")
    assert connection("a:1", 2.5).timeout_ms == 2_500
    with pytest.raises(InvalidConfig, match="'a' is not host:port"):
        connection("a", 1)


def test_without_it_the_brokers_of_the_dev_cluster_that_run_are_asked(folder: Path) -> None:
    state = lay_out(3, 1, 9_000)
    # This very process stands in for a broker: it runs.
    member = replace(state.member("broker-2"), identity=identify(os.getpid()))
    save(folder, state.with_member(member))
    assert connection(None, 1).bootstrap == ("127.0.0.1:9001",)


@pytest.mark.parametrize("text", [None, "no JSON"])
def test_without_anything_the_question_is_which_cluster(folder: Path, text: str | None) -> None:
    if text is not None:
        (folder / "cluster.json").write_text(text)
    with pytest.raises(InvalidConfig, match=r"which cluster.*--bootstrap HOST:PORT"):
        connection(None, 1)


def test_nobody_there_is_told_within_the_time() -> None:
    async def ask() -> None:
        async with connection("127.0.0.1:1", 0.3).admin() as admin:
            await admin.list_topics()

    with pytest.raises(Unreachable, match=r"no broker of 127\.0\.0\.1:1 answered within 300 ms"):
        run(ask())


def test_ctrl_c_comes_out_as_such() -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(interrupted())
    assert run(asyncio.sleep(0, "done")) == "done"
