"""A plan of faults comes from its seed alone, and ends in a calm."""

from __future__ import annotations

from itertools import pairwise

from nemesis.plan import NETWORK, WEIGHTS, Kind, Processes, Step, plan

ALL = Processes(
    brokers=["broker-1", "broker-2", "broker-3"],
    controllers=["controller-1", "controller-2"],
    coordinators=["coordinator-1", "coordinator-2"],
    clients=["client-1", "client-2"],
)
SERVICES = {*ALL.brokers, *ALL.controllers, *ALL.coordinators}


def planned(seed: int, kinds: list[Kind] | None = None, seconds: float = 600) -> list[Step]:
    return plan(seed, seconds, processes=ALL, kinds=kinds or list(WEIGHTS))


def test_the_same_seed_gives_the_same_plan() -> None:
    assert planned(7) == planned(7)
    assert planned(7) != planned(8)


def test_all_kinds_are_drawn_and_every_round_ends_in_a_calm() -> None:
    steps = [step for seed in range(5) for step in planned(seed)]
    assert {step.kind for step in steps} == set(Kind)
    assert planned(1)[-1].kind is Kind.CALM
    calms = [step.at_s for step in planned(1) if step.kind is Kind.CALM]
    assert max(b - a for a, b in pairwise(calms)) < 80


def test_only_what_is_possible_is_planned() -> None:
    kinds = [kind for kind in WEIGHTS if kind not in NETWORK]
    assert not {step.kind for step in planned(3, kinds)} & NETWORK


def test_targets_are_processes() -> None:
    steps = planned(4, seconds=3_000)
    for step in steps:
        names = step.target.split("|")
        if step.kind in NETWORK and step.kind is not Kind.CUT_STORE:
            assert len(set(names)) == 2
            assert set(names) <= {*SERVICES, *ALL.clients, "etcd"}
        else:
            assert set(names) <= {*SERVICES, "etcd", "", "leader of partition 0"}
    assert {name for step in steps for name in step.target.split("|")} >= SERVICES


def test_any_two_processes_are_cut_one_way_in_either_direction() -> None:
    pairs = {
        tuple(step.target.split("|"))
        for seed in range(40)
        for step in planned(seed, [Kind.CUT_ONE_WAY], seconds=3_000)
        if step.kind is Kind.CUT_ONE_WAY
    }
    names = [*SERVICES, *ALL.clients, "etcd"]
    wanted = {(a, b) for a in names for b in names if a != b}
    unheard = {(a, b) for a in ALL.clients for b in ALL.clients if a != b}
    assert pairs == wanted - unheard
