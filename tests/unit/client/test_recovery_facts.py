"""Answers of brokers that rebuild a store: whole or not at all, each broker once."""

from __future__ import annotations

from collections.abc import Sequence

from simulation.loop import SimLoop, run
from simulation.network import SimNetwork
from tailrace.client.recovery_facts import GatheredFacts, gather_facts
from tailrace.meta.copies import StoredMetadata, encode_copy
from tailrace.transport import methods
from tailrace.transport.rpc import Stream
from tailrace.v1 import control_pb2 as pb

Answer = Sequence[pb.ReadRecoveryFactsResponse]
ABOUT = pb.ReadRecoveryFactsResponse(
    broker=pb.RecoveryBroker(broker_id=1, cluster_id="c", incarnation="i")
)


def asked(answers: dict[str, Answer]) -> GatheredFacts:
    found: list[GatheredFacts] = []

    async def body(loop: SimLoop) -> None:
        network = SimNetwork(loop)
        for name, answer in answers.items():
            host = network.host(name, loop.process(name))
            await host.serve(f"{name}:1", {methods.CONTROL_READ_RECOVERY_FACTS: _teller(answer)})
        client = network.host("client", loop.process("client"))
        addresses = [f"{name}:1" for name in answers]
        found.append(await gather_facts(client, addresses, timeout_ms=1_000))

    run(body, 1)
    return found[0]


def _teller(answer: Answer):  # type: ignore[no-untyped-def]
    async def tell(
        _: pb.ReadRecoveryFactsRequest,
        stream: Stream[pb.ReadRecoveryFactsResponse, pb.ReadRecoveryFactsRequest],
    ) -> None:
        for each in answer:
            await stream.send(each)

    return tell


def test_one_broker_at_two_addresses_counts_once() -> None:
    found = asked({"a": [ABOUT], "b": [ABOUT]})
    assert [each.broker_id for each in found.facts] == [1]
    assert found.silent == {}


def test_a_copy_comes_in_pieces() -> None:
    data = encode_copy(StoredMetadata())
    pieces = [pb.ReadRecoveryFactsResponse(copy=data[at : at + 7]) for at in range(0, len(data), 7)]
    found = asked({"a": [ABOUT, *pieces]})
    assert found.facts[0].stored == StoredMetadata()


def test_half_an_answer_is_none() -> None:
    data = encode_copy(StoredMetadata())
    half = pb.ReadRecoveryFactsResponse(copy=data[:-1])
    found = asked({"a": [ABOUT, half], "b": [], "c": [ABOUT]})
    assert len(found.facts) == 1
    assert "checksum" in found.silent["a:1"]
    assert "did not say which broker" in found.silent["b:1"]
