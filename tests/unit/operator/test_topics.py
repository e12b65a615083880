"""What a Topic resource asks for, compared with what is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace_operator.spec import TopicSpec
from tailrace_operator.topics import (
    AddPartitions,
    Configure,
    Create,
    Existing,
    Made,
    Nothing,
    Refuse,
    decide,
    read_made,
    to_delete,
    write_made,
)

SPEC = TopicSpec(cluster="c", topic="t", partitions=3, replicas=3, config={"retention.ms": "5"})
THERE = Existing(
    topic_id="id", partitions=3, replicas=3, config={"retention.ms": "5"}, in_sync=9, offline=0
)


def test_a_topic_is_made_once() -> None:
    assert decide(SPEC, None) == Create()
    assert decide(SPEC, THERE) == Nothing()


def test_partitions_only_grow() -> None:
    assert decide(replace(SPEC, partitions=6), THERE) == AddPartitions(6)
    fewer = decide(replace(SPEC, partitions=1), THERE)
    assert isinstance(fewer, Refuse)
    assert "not fewer" in fewer.why


def test_settings_follow_the_spec_both_ways() -> None:
    wanted = replace(SPEC, config={"cleanup.policy": "compact"})
    assert decide(wanted, THERE) == Configure({"cleanup.policy": "compact"}, ("retention.ms",))


def test_another_number_of_replicas_is_refused_with_a_way_out() -> None:
    refused = decide(replace(SPEC, replicas=1), THERE)
    assert isinstance(refused, Refuse)
    assert "reassign" in refused.why
    assert decide(replace(SPEC, replicas=0), THERE) == Nothing()


def test_one_that_is_being_deleted_is_waited_for() -> None:
    assert isinstance(decide(SPEC, replace(THERE, deleting=True)), Refuse)


def test_only_what_was_made_for_a_resource_that_is_gone_is_deleted() -> None:
    made = {"a": Made(topic_id="1", uid="u1"), "b": Made(topic_id="2", uid="u2")}
    assert to_delete(made, frozenset({"u1"})) == {"b": made["b"]}
    assert read_made(write_made(made)) == made
    assert read_made(None) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"uid": "u"}'])
def test_what_somebody_wrote_into_the_list_is_not_taken_for_ours(text: str) -> None:
    made = {"t": Made(topic_id="id", uid="u")}
    assert read_made({**write_made(made), "other": text}) == made
