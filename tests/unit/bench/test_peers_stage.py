"""Rounds in which contenders take turns: who fails, what is kept, when it ends."""

from __future__ import annotations

import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from bench.peers.journal import FILE, Journal
from bench.peers.results import Figures
from bench.peers.sizes import Sizes
from bench.peers.stage import Stage
from bench.peers.system import Name
from bench.peers.workloads import Contender, Kind, Workload

A, B = Contender("a", Name.TAILRACE), Contender("b", Name.KAFKA)
WORKLOAD = Workload("idle", Kind.IDLE, (A, B))
SIZES = Sizes(rounds=2)


class Work:
    """Does what a contender does in a round: counts, and fails when it is told to."""

    def __init__(self, *fails: tuple[str, int]) -> None:
        self._fails = list(fails)
        self.did: list[str] = []

    def __call__(self, contender: Contender) -> Figures:
        self.did.append(contender.name)
        turn = (contender.name, self.did.count(contender.name))
        if turn in self._fails:
            raise AssertionError("it hung")
        return {"p50_ms": float(turn[1])}


def test_contenders_take_turns_and_rounds_that_warm_up_do_not_count(tmp_path: Path) -> None:
    work = Work()
    with Stage(tmp_path, SIZES) as stage:
        found = stage.in_turns(WORKLOAD, work, warm_ups=1)
    assert "".join(work.did) == "ababab"
    assert found == {"a": {"p50_ms": [2.0, 3.0]}, "b": {"p50_ms": [2.0, 3.0]}}
    assert stage.failures == []


def test_who_fails_once_tries_again_and_it_is_told(tmp_path: Path) -> None:
    with Stage(tmp_path, SIZES) as stage:
        found = stage.in_turns(WORKLOAD, Work(("b", 1)))
    assert found["b"] == {"p50_ms": [2.0, 3.0]}
    assert stage.failures == ["idle, b, round 1: AssertionError: it hung"]


def test_who_fails_twice_keeps_what_it_has_and_the_others_go_on(tmp_path: Path) -> None:
    work = Work(("b", 2), ("b", 3))
    with Stage(tmp_path, Sizes(rounds=3)) as stage:
        found = stage.in_turns(WORKLOAD, work)
    assert found == {"a": {"p50_ms": [1.0, 2.0, 3.0]}, "b": {"p50_ms": [1.0]}}
    assert "".join(work.did) == "ababba"
    assert len(stage.failures) == 2


def test_a_run_goes_on_after_its_last_whole_round(tmp_path: Path) -> None:
    path = tmp_path / FILE

    def cut_off(contender: Contender) -> Figures:
        figures = first(contender)
        if len(first.did) == 4:
            raise KeyboardInterrupt
        return figures

    first, second = Work(), Work()
    with Stage(tmp_path, SIZES, Journal(path, "monday")) as stage, pytest.raises(KeyboardInterrupt):
        stage.in_turns(WORKLOAD, cut_off)
    with Stage(tmp_path, SIZES, Journal(path, "tuesday", is_resumed=True)) as stage:
        assert not stage.is_done(WORKLOAD)
        found = stage.in_turns(WORKLOAD, second, warm_ups=1)
        assert stage.is_done(WORKLOAD)
    # One round to warm up, one that counts: the first one of before is kept.
    assert "".join(second.did) == "abab"
    assert found["a"] == {"p50_ms": [1.0, 2.0]}
    third = Work()
    with Stage(tmp_path, SIZES, Journal(path, "tuesday", is_resumed=True)) as stage:
        assert stage.in_turns(WORKLOAD, third, warm_ups=1) == found
    assert third.did == []


def test_servers_on_a_jvm_are_warmed_up_once_for_each_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[tuple[Name, str, int]] = []

    def fast(_: Stage, name: Name, action: str, topic: str, records: int, size: int) -> None:
        did.append((name, action, records * size))

    monkeypatch.setattr(Stage, "fast", fast)
    monkeypatch.setattr(Stage, "system", lambda *_: Mock())
    sizes = Sizes(jvm_warm_bytes=1 << 20)
    once = [(Name.KAFKA, "produce", 1 << 20), (Name.KAFKA, "consume", 1 << 20)]
    with Stage(tmp_path, sizes) as stage:
        for _ in range(2):
            for name in Name:
                stage.warm(name)
        assert did == once
        stage.drop(Name.KAFKA)
        stage.warm(Name.KAFKA)
    assert did == once * 2


def test_when_the_time_is_over_a_workload_has_one_round(tmp_path: Path) -> None:
    work = Work()
    with Stage(tmp_path, SIZES, ends=time.monotonic() - 1) as stage:
        found = stage.in_turns(WORKLOAD, work)
    assert found == {"a": {"p50_ms": [1.0]}, "b": {"p50_ms": [1.0]}}
