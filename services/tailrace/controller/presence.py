"""Who is there: registrations that came and went, why, and who is spared by the damper. Pure.

The damper. A broker whose registration is gone is replaced at once. But when more than half of at
least three brokers lose theirs within one lease period, and nobody can say why, it is more likely
that the store had a hiccup (a leader that hung, was deposed, and ended all leases) than that the
brokers did. So those brokers are *spared*: they keep their leaderships and their places in the ISRs
while they are asked whether they are there, and get one more lease period to register anew. A
controller that takes over and finds more than half of the brokers missing does the same.

A store that was seen to hang or to be away within the last lease period is a hiccup that is known:
then one broker whose registration is gone is spared as well. Its lease may have ended because it
could not be renewed, and whoever is gone indeed does not answer.

Brokers that stopped in order, or whose process is known to be gone, are explained: they count
neither as a hiccup nor are they spared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from tailrace.controller.facts import Cause
from tailrace.meta.image import ClusterImage, LiveBroker
from tailrace.meta.keys import NO_BROKER
from tailrace.model import BrokerId

DAMPER_BROKERS_MIN: Final = 3


class Presence:
    """What one controller has seen of the brokers. All sets are in the order of ids."""

    def __init__(
        self, *, window_ms: int, remembered: Mapping[BrokerId, LiveBroker] | None = None
    ) -> None:
        """`remembered`: registrations that an earlier term of this process saw last."""
        self._window_ms = window_ms
        # The last registration of each broker, also of one that is gone: where it can be asked.
        self.registrations: dict[BrokerId, LiveBroker] = dict(remembered or {})
        # Until when each spared broker keeps what it has.
        self.spared: dict[BrokerId, int] = {}
        self.causes: dict[BrokerId, Cause] = {}
        self.draining: dict[BrokerId, int] = {}
        # Why each should lead nothing while another can.
        self.unfit: dict[BrokerId, str] = {}
        self._live: Mapping[BrokerId, LiveBroker] = {}
        self._explained: dict[BrokerId, int] = {}
        self._vanished_ms: dict[BrokerId, int] = {}

    def take_over(
        self, image: ClusterImage, *, now_ms: int, wall_ms: int, shaken: bool = False
    ) -> list[BrokerId]:
        """Begin with the first image; gives those who are spared.

        `shaken`: the store was in trouble within the last lease period.
        """
        for broker, live in sorted(image.brokers.items()):
            self._arrived(broker, live, wall_ms)
        self._live = image.brokers
        missing = [each for each in _needed(image) if each not in image.brokers]
        for broker in missing:
            self._vanished_ms[broker] = now_ms
            self.causes[broker] = Cause(
                f"broker {broker} was not registered when this controller took over", wall_ms
            )
        if shaken or _is_mass(len(missing), len(image.brokers)):
            return self._spare(missing, now_ms)
        return []

    def observe(
        self, image: ClusterImage, *, now_ms: int, wall_ms: int, shaken: bool = False
    ) -> list[BrokerId]:
        """Take the next image; gives those who are spared from now on. `shaken`: as above."""
        old, new = self._live, image.brokers
        if new is old:
            return []
        for broker in sorted(new):
            known = old.get(broker)
            if known is None or known.epoch != new[broker].epoch:
                self._arrived(broker, new[broker], wall_ms)
            self._note_draining(broker, new[broker], wall_ms)
            self.registrations[broker] = new[broker]
        for broker in sorted(old):
            if broker not in new:
                self._vanished(broker, old[broker], now_ms, wall_ms)
        self._live = new
        recent = self._recent(now_ms)
        if _is_mass(len(recent), len(new)):
            return self._spare(recent, now_ms)
        if shaken:
            # Those who vanished before the trouble have been replaced.
            return self._spare([each for each in recent if each in old], now_ms)
        return []

    def has_puzzle(self, image: ClusterImage) -> bool:
        """Whether a registration is newly gone for no known reason, where there is a damper."""
        gone = any(b not in image.brokers and not self._is_explained(b) for b in self._live)
        return gone and len(self._live) >= DAMPER_BROKERS_MIN

    def looks_like_a_hiccup(self, image: ClusterImage, *, now_ms: int) -> bool:
        """Whether taking this image would spare somebody: look twice before."""
        gone = [b for b in self._live if b not in image.brokers and not self._is_explained(b)]
        recent = [each for each in self._recent(now_ms) if each not in image.brokers]
        return bool(gone) and _is_mass(len({*gone, *recent}), len(image.brokers))

    def explain(self, broker: BrokerId, epoch: int, cause: Cause) -> None:
        """The registration of this epoch is being taken away, for this reason."""
        self._explained[broker] = epoch
        self.causes[broker] = cause

    def drain(self, broker: BrokerId, epoch: int, wall_ms: int) -> bool:
        """A broker asks to be relieved; says whether that is news."""
        if self.draining.get(broker) == epoch:
            return False
        self.draining[broker] = epoch
        self.causes[broker] = Cause(f"broker {broker} is shutting down", wall_ms)
        return True

    def note_fitness(self, broker: BrokerId, why: str, wall_ms: int) -> bool:
        """A broker says why it should not lead, or that it may; says whether that is news."""
        is_news = bool(why) != (broker in self.unfit)
        if why:
            self.unfit[broker] = why
        else:
            self.unfit.pop(broker, None)
        if is_news:
            text = f"broker {broker} is unfit to lead: {why}" if why else f"broker {broker} is fit"
            self.causes[broker] = Cause(text, wall_ms)
        return is_news

    def give_up(self, broker: BrokerId, why: str, wall_ms: int) -> bool:
        """A spared broker is gone after all; says whether it was spared."""
        if self.spared.pop(broker, None) is None:
            return False
        self.causes[broker] = Cause(f"broker {broker}: its lease ended, and {why}", wall_ms)
        return True

    def _arrived(self, broker: BrokerId, live: LiveBroker, wall_ms: int) -> None:
        self.registrations[broker] = live
        self.spared.pop(broker, None)
        self._vanished_ms.pop(broker, None)
        self._explained.pop(broker, None)
        self.unfit.pop(broker, None)
        what = f"broker {broker} registered (epoch {live.epoch})"
        if live.registration.tail_may_be_lost:
            what += " after its machine went down: its tail may be lost"
        self.causes[broker] = Cause(what, wall_ms)
        self._note_draining(broker, live, wall_ms)

    def _note_draining(self, broker: BrokerId, live: LiveBroker, wall_ms: int) -> None:
        if live.registration.draining:
            self.drain(broker, live.epoch, wall_ms)

    def _vanished(self, broker: BrokerId, last: LiveBroker, now_ms: int, wall_ms: int) -> None:
        if self._explained.get(broker) == last.epoch:
            return
        if self.draining.get(broker) == last.epoch:
            self.causes[broker] = Cause(f"broker {broker} stopped in order", wall_ms)
            return
        self.causes[broker] = Cause(f"broker {broker}: its lease ended", wall_ms)
        self._vanished_ms[broker] = now_ms

    def _is_explained(self, broker: BrokerId) -> bool:
        epoch = self._live[broker].epoch
        return epoch in {self._explained.get(broker), self.draining.get(broker)}

    def _recent(self, now_ms: int) -> list[BrokerId]:
        self._vanished_ms = {
            broker: at for broker, at in self._vanished_ms.items() if now_ms - at <= self._window_ms
        }
        return sorted(self._vanished_ms)

    def _spare(self, brokers: Collection[BrokerId], now_ms: int) -> list[BrokerId]:
        new = [each for each in sorted(brokers) if each not in self.spared]
        for broker in new:
            self.spared[broker] = now_ms + self._window_ms
        return new


def _is_mass(vanished: int, live: int) -> bool:
    population = vanished + live
    return population >= DAMPER_BROKERS_MIN and 2 * vanished > population


def _needed(image: ClusterImage) -> list[BrokerId]:
    """The brokers that lead, or are in sync with one that does."""
    needed: dict[BrokerId, None] = {}
    for name, states in image.states.items():
        if name in image.deletions:
            continue
        for stored in states.values():
            if stored.state.leader != NO_BROKER:
                needed.update(dict.fromkeys(stored.state.isr))
    return sorted(needed)
