"""What a coordinator that traces tells of rebalances: who joined, and how long each phase took.

A rebalance begins when a group leaves a generation (or begins to have one) and ends when all
members have their partitions; below it are the two phases, joining and syncing. Facts come as they
are stored, so a phase that begins and ends in one step is not told.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tailrace.coordinator.records import Change, GroupFacts, GroupStored, Phase
from tailrace.tracing import Span, Tracer

OPEN_MAX: Final = 1_000
"""Rebalances at the same time; more are not traced."""

_PHASES: Final = {Phase.JOINING: "join", Phase.SYNCING: "sync"}


class _Rebalance:
    """One that goes on: the whole of it, and the phase that it is in."""

    def __init__(self, span: Span, phase: Phase) -> None:
        self.span = span
        self.phase = phase
        self.step = span.child(_PHASES[phase])


class RebalanceTraces:
    """The rebalances of the groups of one coordinator."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._open: dict[str, _Rebalance] = {}

    def seen(self, changes: Iterable[Change]) -> None:
        """What was decided for groups."""
        for change in changes:
            if isinstance(change, GroupStored):
                self._seen(change.group, change.facts)

    def joined(self, group: str, *, client_id: str, host: str) -> None:
        """Somebody wants to be a member."""
        known = self._open.get(group)
        if known is not None:
            known.span.note("join", client_id=client_id, host=host)

    def lost(self, group: str, why: str) -> None:
        """It is another coordinator's from now on."""
        known = self._open.pop(group, None)
        if known is not None:
            known.step.end(why)
            known.span.end(why)

    def _seen(self, group: str, facts: GroupFacts | None) -> None:
        phase = Phase.EMPTY if facts is None else facts.phase
        if phase in _PHASES:
            self._goes_on(group, phase)
        known = self._open.get(group)
        if known is None:
            return
        if facts is not None:
            known.span.about(generation=facts.generation, members=len(facts.members))
        if phase not in _PHASES:
            del self._open[group]
            known.step.end()
            known.span.end()

    def _goes_on(self, group: str, phase: Phase) -> None:
        known = self._open.get(group)
        if known is None:
            if len(self._open) < OPEN_MAX:
                span = self._tracer.begin("rebalance", group=group)
                self._open[group] = _Rebalance(span, phase)
        elif known.phase is not phase:
            known.step.end()
            known.phase, known.step = phase, known.span.child(_PHASES[phase])
