"""The model test of the producer finds it when one of the rules that it guards is broken.

Each mutant takes one rule away; some of the first seeds must then fail.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tailrace.client import refusals
from tailrace.client.accumulator import Accumulator, State
from tailrace.errors import OutOfOrderSequence, TailraceError, UnknownProducer

SEEDS = range(40)


def _model() -> Callable[..., None]:
    path = Path(__file__).with_name("test_producer.py")
    spec = importlib.util.spec_from_file_location("model_of_the_producer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., None] = module.test_each_record_once_and_in_order_whatever_happens
    return found


def _renumber_what_is_in_doubt(patch: pytest.MonkeyPatch) -> None:
    """What stands in doubt behind a gap is sent again under a new number."""

    def keep(_: Any, batches: Any) -> list[Any]:
        for batch in batches:
            if batch.after_gap and batch.state is State.WAITING:
                batch.in_doubt = False
        return []

    patch.setattr(Accumulator, "_give_up_doubtful", keep)


def _send_more_than_is_remembered(patch: pytest.MonkeyPatch) -> None:
    """Batches that were acknowledged in between do not count as open."""

    def find(self: Any, queue: Any) -> Any:
        waiting = [each for each in queue.batches if each.state is not State.IN_FLIGHT]
        if not waiting or len(queue.batches) - len(waiting) >= 5:
            return None
        batch = waiting[0]
        is_blocked = self.needs_epoch and (batch.sequence < 0 or batch.after_gap)
        return None if is_blocked else batch

    patch.setattr(Accumulator, "_next", find)


def _doubt_nothing(patch: pytest.MonkeyPatch) -> None:
    """A lost answer counts as a refusal."""
    patch.setattr(Accumulator, "unanswered", Accumulator.refused)


def _begin_epochs_at_once(patch: pytest.MonkeyPatch) -> None:
    """A new epoch does not wait for what is on its way or in doubt."""
    patch.setattr(Accumulator, "can_begin_epoch", lambda self: True)


def _let_new_batches_overtake(patch: pytest.MonkeyPatch) -> None:
    """The newest batch goes first."""
    original = Accumulator._next

    def find(self: Any, queue: Any) -> Any:
        for batch in reversed(queue.batches):
            if batch.state is State.WAITING and batch.ordinal < 0 and not self.needs_epoch:
                return batch
        return original(self, queue)

    patch.setattr(Accumulator, "_next", find)


def _fail_what_overtook(patch: pytest.MonkeyPatch) -> None:
    """OUT_OF_ORDER_SEQUENCE is final also for a batch behind one that is being retried."""
    decide = refusals.verdict

    def impatient(error: TailraceError, refused: refusals.Refused) -> refusals.Verdict:
        found = decide(error, refused)
        is_late = isinstance(error, OutOfOrderSequence | UnknownProducer) and not refused.is_first
        return refusals.Verdict.FAILED if is_late and found is refusals.Verdict.AGAIN else found

    patch.setattr("tailrace.client.producer.verdict", impatient)


def _use_numbers_again(patch: pytest.MonkeyPatch) -> None:
    """A batch that is given up leaves its number to the next one, in doubt or not."""

    def reuse(_: Any, batch: Any, **__: Any) -> list[Any]:
        queue = batch.queue
        if batch.sequence >= 0:
            queue.next_sequence, queue.next_ordinal = batch.sequence, batch.ordinal
            for each in queue.batches:
                if each.ordinal > batch.ordinal:
                    each.sequence = each.ordinal = -1
        return []

    patch.setattr(Accumulator, "_lose_number", reuse)


MUTANTS = [
    _renumber_what_is_in_doubt,
    _send_more_than_is_remembered,
    _doubt_nothing,
    _begin_epochs_at_once,
    _let_new_batches_overtake,
    _fail_what_overtook,
    _use_numbers_again,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda each: each.__name__.strip("_"))
def test_the_model_finds(mutant: Any, simulate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    play = _model()
    mutant(monkeypatch)
    for seed in SEEDS:
        try:
            play(simulate, seed)
        except Exception:  # noqa: BLE001 - whatever it is, it was found.
            return
    pytest.fail(f"{mutant.__doc__} {len(SEEDS)} seeds did not find that.")
