"""The ISR in the store: changed under its guards, refused when they do not hold."""

from __future__ import annotations

from tailrace.meta.keys import state_key
from tailrace.meta.store import Put
from unit.broker.trio import T0, Trio, batch, simulate


@simulate
async def test_a_follower_that_catches_up_is_stored(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0, isr=(0, 1))
    await trio.produce(batch(3))
    await trio.until(lambda: len(trio.hosted(0).machine.isr) == 3)
    assert (await trio.stored()).isr == (0, 1, 2)


@simulate
async def test_a_state_that_somebody_else_wrote_is_taken_over_not_overwritten(trio: Trio) -> None:
    await trio.start(0, 1)
    await trio.lead(0, 0, isr=(0, 1))
    entry = await trio.store.get(state_key(T0))
    assert entry is not None
    # The same words at another revision: the controller, or an attempt whose answer got lost.
    await trio.store.txn([], [Put(state_key(T0), entry.value)])
    await trio.start_broker(2)
    await trio.until(lambda: trio.brokers[2].epoch)
    order = await trio.store.get(state_key(T0))
    assert order is not None
    await trio.lead(0, 0, isr=(0, 1), to=(2,))
    await trio.until(lambda: len(trio.hosted(0).machine.isr) == 3)
    assert (await trio.stored()).isr == (0, 1, 2)


@simulate
async def test_without_a_registration_nothing_is_stored(trio: Trio) -> None:
    await trio.start()
    await trio.lead(0, 0, isr=(0, 1))
    await trio.until(lambda: len(trio.hosted(0).machine.isr) == 3)
    await trio.stop_broker(2)
    assert (await trio.stored()).isr == (0, 1, 2)
