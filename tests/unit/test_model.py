"""Names of topics and partitions: what is a name, and what a folder's name says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import (
    GROUP_SHARDS,
    TOPIC_NAME_LENGTH_MAX,
    TopicPartition,
    settled_count,
    shard_of,
    topic_name_problem,
)

TOPICS = st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True).filter(
    lambda name: name not in {".", ".."}
)


@pytest.mark.parametrize("name", ["a", "orders", "a.b_c-D", "0", "-", "...", "t" * 200])
def test_a_good_topic_name_has_no_problem(name: str) -> None:
    assert topic_name_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "must not be empty"),
        (".", "is not a topic name"),
        ("..", "is not a topic name"),
        ("t" * (TOPIC_NAME_LENGTH_MAX + 1), "at most 200 characters, not 201"),
        ("a/b", "letters, digits"),
        ("a b", "letters, digits"),
        ("käse", "letters, digits"),
        ("orders\n", "letters, digits"),
        ("\0", "letters, digits"),
    ],
)
def test_a_bad_topic_name_is_explained(name: str, problem: str) -> None:
    found = topic_name_problem(name)
    assert found is not None
    assert problem in found


@given(TOPICS, st.integers(0, 999_999_999))
def test_a_folder_name_is_read_back(topic: str, partition: int) -> None:
    there = TopicPartition(topic, partition)
    assert TopicPartition.parse(str(there)) == there


def test_the_last_hyphen_parts_topic_and_number() -> None:
    assert TopicPartition.parse("a-1-2") == TopicPartition("a-1", 2)
    assert str(TopicPartition("a-1", 2)) == "a-1-2"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "orders-",
        "-1",
        "orders-x",
        "orders--",
        "orders-0-delete",
        "orders-1234567890",
        "orders-٣",
        "orders-0\n",
        "..-0",
        "a/b-0",
        "lost+found",
        "t" * 201 + "-0",
    ],
)
def test_other_names_are_no_partitions(text: str) -> None:
    assert TopicPartition.parse(text) is None


@given(st.text(max_size=30) | st.from_regex(r"[a-z.-]*-[0-9]{1,10}", fullmatch=True))
def test_a_partition_has_one_folder_name(text: str) -> None:
    """Otherwise two folders could claim to be one partition."""
    found = TopicPartition.parse(text)
    assert found is None or str(found) == text


def test_partitions_are_sorted_by_topic_and_number() -> None:
    partitions = [TopicPartition("b", 0), TopicPartition("a", 10), TopicPartition("a", 9)]
    assert sorted(partitions) == [partitions[2], partitions[1], partitions[0]]


@pytest.mark.parametrize(("group", "shard"), [("", 0), ("payments", 6), ("käse", 15), ("a", 7)])
def test_the_shard_of_a_group_never_changes(group: str, shard: int) -> None:
    assert shard_of(group) == shard


def test_groups_spread_over_all_shards() -> None:
    assert {shard_of(f"group-{number}") for number in range(1_000)} == set(range(GROUP_SHARDS))


def test_while_replicas_come_and_go_the_smaller_set_counts() -> None:
    assert settled_count(3, adding=0, removing=0) == 3
    assert settled_count(6, adding=3, removing=3) == 3
    assert settled_count(3, adding=2, removing=0) == 1
    assert settled_count(1, adding=1, removing=0) == 1
