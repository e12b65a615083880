"""How questions are asked: deadlines and doubts. What they share is tested through `admin`."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.client.asking import Call
from tailrace.errors import NotController, RequestTimedOut


def test_a_call_knows_how_long_it_has(simulate: Any) -> None:
    async def main(world: Any) -> None:
        call = Call(world.clock, 100)
        assert call.left_ms() == 100
        assert not call.in_doubt

    simulate(main)


def test_an_answer_from_before_says_more_than_our_own_deadline(simulate: Any) -> None:
    async def main(world: Any) -> None:
        admin = world.admin(request_timeout_ms=300)
        world.cluster.controller.errors = [NotController("me not"), *[RequestTimedOut("?")] * 99]
        with pytest.raises(NotController, match=r"not done within 300 ms: me not"):
            await admin.create_topic("t")
        await admin.close()

    simulate(main)
