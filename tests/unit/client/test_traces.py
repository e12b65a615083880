"""What a client that traces tells: requests until they are answered, and what came to be read."""

from __future__ import annotations

from typing import Any

from opentelemetry.trace import SpanKind, StatusCode

from simulation.model_cluster import Fate
from tailrace.client.consumer import ConsumerCore
from tailrace.client.consumer_settings import ConsumerSettings
from tailrace.client.producer import ProducerCore
from tailrace.client.settings import ProducerSettings
from tailrace.transport.envelopes import FetchResponse, ProduceRequest
from tailrace.transport.rpc import Network
from unit.spans import Spans, about


class Wires:
    """The network of a client, where the test hears what is asked and marks what is answered."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.asked: list[str] = []
        self.mark = ""

    def channel(self, address: str) -> Any:
        wires, channel = self, self._network.channel(address)

        class Marked:
            def __init__(self, stream: Any) -> None:
                self.finish, self.cancel = stream.finish, stream.cancel
                self._stream = stream

            async def send(self, message: Any) -> None:
                if isinstance(message, ProduceRequest):
                    wires.asked.append(message.traceparent)
                await self._stream.send(message)

            async def recv(self) -> Any:
                message = await self._stream.recv()
                if isinstance(message, FetchResponse):
                    message.traceparent = wires.mark
                return message

        plain = channel.open
        channel.open = lambda *given: Marked(plain(*given))  # type: ignore[method-assign]
        return channel

    async def serve(self, *_: Any) -> Any:
        raise AssertionError("a client does not listen")

    async def probe(self, address: str, *, timeout_ms: int) -> Any:
        return await self._network.probe(address, timeout_ms=timeout_ms)


def producer(
    world: Any, spans: Spans, network: Network | None = None, **settings: Any
) -> ProducerCore:
    return ProducerCore(
        world.cluster.bootstrap,
        ProducerSettings(**settings),
        network=network or world.host,
        clock=world.clock,
        rng=world.rng,
        tracer=spans.tracer,
    )


def test_a_request_is_told_from_sending_to_answer(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        spans = Spans()
        client = producer(world, spans, linger_ms=50)
        for each in [await client.send("t", b"v") for _ in range(3)]:
            await each
        await client.close()
        told = spans.one("produce")
        assert told.kind is SpanKind.CLIENT
        assert told.parent is None
        for name, value in (("records", 3), ("batches", 1), ("partitions", 1), ("attempt", 1)):
            assert about(told, name) == value
        assert about(told, "which") == "t-0"
        waited_ms = about(told, "waited_ms")
        assert isinstance(waited_ms, int)
        assert 50 <= waited_ms < 1_000
        assert told.status.status_code is not StatusCode.ERROR

    simulate(main)


def test_a_producer_that_samples_nothing_tells_nothing(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        spans = Spans(ratio=0.0)
        client = producer(world, spans)
        await (await client.send("t", b"v"))
        await client.close()
        assert spans.all() == []

    simulate(main)


def test_what_a_broken_stream_carried_is_told_as_failed_and_sent_again(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        fates = [Fate.LOST]
        world.cluster.fate = lambda: fates.pop(0) if fates else Fate.SERVED
        spans = Spans()
        client = producer(world, spans)
        await (await client.send("t", b"v"))
        await client.close()
        lost, answered = spans.named("produce")
        assert (lost.status.description or "").startswith("UNREACHABLE")
        assert (about(lost, "attempt"), about(answered, "attempt")) == (1, 2)
        assert answered.status.status_code is not StatusCode.ERROR

    simulate(main)


def test_without_acknowledgements_it_ends_when_it_is_sent(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        spans = Spans()
        client = producer(world, spans, acks=0, enable_idempotence=False)
        await (await client.send("t", b"v"))
        await client.close()
        assert len(spans.named("produce")) == 1

    simulate(main)


def test_the_broker_is_told_of_the_trace_and_what_it_refuses_is_told(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        fates = [Fate.REFUSED]
        world.cluster.fate = lambda: fates.pop(0) if fates else Fate.SERVED
        spans, wires = Spans(), Wires(world.host)
        client = producer(world, spans, wires)
        await (await client.send("t", b"v"))
        await client.close()
        refused, served = spans.named("produce")
        assert (refused.status.description or "").startswith("OVERLOADED: ")
        assert wires.asked == [
            f"00-{each.context.trace_id:032x}-{each.context.span_id:016x}-01"
            for each in (refused, served)
            if each.context is not None
        ]

    simulate(main)


def test_a_consumer_goes_on_with_what_brokers_trace(simulate: Any) -> None:
    async def main(world: Any) -> None:
        world.cluster.create("t")
        broker, spans, wires = Spans(), Spans(), Wires(world.host)
        writer = world.producer()
        core = ConsumerCore(
            world.cluster.bootstrap,
            ConsumerSettings(auto_offset_reset="earliest"),
            network=wires,
            clock=world.clock,
            rng=world.rng,
            tracer=spans.tracer,
        )
        await core.start()
        await core.assign_topics(["t"])
        await (await writer.send("t", b"untraced"))
        assert await core.poll(timeout_ms=5_000)
        assert spans.all() == []
        pushed = broker.tracer.begin("broker fetch")
        wires.mark = pushed.context
        await (await writer.send("t", b"traced"))
        assert [each.value for each in await core.poll(timeout_ms=5_000)] == [b"traced"]
        pushed.end()
        told, parent = spans.named("receive")[0], broker.one("broker fetch")
        assert told.kind is SpanKind.CONSUMER
        assert told.parent is not None
        assert parent.context is not None
        assert told.parent.span_id == parent.context.span_id
        size = about(told, "bytes")
        assert isinstance(size, int)
        assert size > 0
        await writer.close()
        await core.close()

    simulate(main)
