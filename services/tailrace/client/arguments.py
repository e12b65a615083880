"""What a program may hand to a client: looked at before anything is done with it. Pure.

What can never be sent is refused where it was said, by the call itself: an error that comes later,
out of a future or a task, is hard to trace back to the line that made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import pyarrow as pa

from tailrace.errors import InvalidRequest, InvalidTopic
from tailrace.model import TopicPartition, topic_name_problem
from tailrace.record.build import HeaderPair

Headers: TypeAlias = "Sequence[HeaderPair] | Mapping[str, bytes | None]"
"""Pairs of name and value, a name as often as wanted; or a mapping."""

# A program writes to a handful of topics, record by record.
_TOPICS_REMEMBERED: Final = 1_024


def check_place(topic: Any, partition: Any = None, timestamp_ms: Any = None) -> None:
    """TypeError, InvalidTopic or InvalidRequest when there can be no such topic or partition."""
    if type(topic) is not str:
        raise TypeError(f"a topic is named by a str, not {_kind(topic)}")
    problem = _problem_of(topic)
    if problem is not None:
        raise InvalidTopic(problem)
    if partition is not None:
        if not isinstance(partition, int) or isinstance(partition, bool):
            raise TypeError(f"a partition is a number from 0 on, or None, not {_kind(partition)}")
        if partition < 0:
            raise InvalidRequest(
                f"partition {partition}: they are counted from 0 on; None lets the key decide"
            )
    if timestamp_ms is not None and not isinstance(timestamp_ms, int):
        raise TypeError(f"timestamp_ms is whole milliseconds since 1970, not {_kind(timestamp_ms)}")


def check_offset(offset: Any) -> None:
    """TypeError or InvalidRequest when nothing can be there."""
    if not isinstance(offset, int):
        raise TypeError(
            f"an offset is a number from 0 on, not {offset!r}; seek_to_beginning and seek_to_end "
            "need none"
        )
    if offset < 0:
        raise InvalidRequest(f"offset {offset} is below 0")


def check_topics(topics: Iterable[Any]) -> None:
    """TypeError when one of them is anything but a name, as a list of names is."""
    for topic in topics:
        if not isinstance(topic, str):
            raise TypeError(
                f"a topic is named by a str, not {_kind(topic)}; several are given one by one: "
                'Consumer("orders", "refunds")'
            )


def partitions_given(partitions: Iterable[Any]) -> list[TopicPartition]:
    """TypeError when one of them is anything else, as a list of them or a pair is."""
    found = list(partitions)
    for each in found:
        if not isinstance(each, TopicPartition):
            raise TypeError(f"a partition is a TopicPartition(topic, number), not {each!r}")
    return found


def topic_names(topics: Any) -> list[str]:
    """One name, or several; TypeError when it is anything else."""
    if isinstance(topics, str):
        return [topics]
    if not isinstance(topics, Iterable):
        raise TypeError(f"topics are a name, some names or a pattern, not {_kind(topics)}")
    names = list(topics)
    check_topics(names)
    return names


def record_limit(max_records: Any, otherwise: int) -> int:
    """How many records a poll may give; TypeError or InvalidRequest when that cannot be."""
    if max_records is None:
        return otherwise
    if not isinstance(max_records, int):
        raise TypeError(f"max_records is a number from 1 on, or None, not {_kind(max_records)}")
    if max_records < 1:
        raise InvalidRequest(f"max_records={max_records} must be at least 1, or None")
    return max_records


def milliseconds(timeout_s: Any) -> int | None:
    """A time to wait, None for none; TypeError when it is no number."""
    if timeout_s is None:
        return None
    if not isinstance(timeout_s, int | float):
        raise TypeError(
            f"a timeout is a number of seconds, or None, not {type(timeout_s).__name__}"
        )
    return max(int(timeout_s * 1000), 0)


def header_pairs(headers: Any) -> Sequence[HeaderPair]:
    """The headers as pairs; TypeError when they are anything else."""
    if isinstance(headers, str | bytes) or not isinstance(headers, Iterable):
        raise TypeError(f"{_HEADERS}, not {_kind(headers)}")
    # A list of our own: what can be gone through only once is needed more often.
    pairs: list[HeaderPair] = list(headers.items() if isinstance(headers, Mapping) else headers)
    for each in pairs:
        _check_header(each)
    return pairs


def check_columns(columns: Any) -> None:
    """TypeError when it is nothing that columns can be taken from."""
    if not isinstance(columns, pa.RecordBatch | pa.Table | Mapping):
        raise TypeError(
            "send_batch takes columns: an Arrow RecordBatch or Table, or a mapping such as "
            f"{{'value': [b'…', b'…']}}, not {_kind(columns)}"
        )


def _check_header(header: Any) -> None:
    if not isinstance(header, tuple | list) or len(header) != 2:
        raise TypeError(f"{_HEADERS}; one of them is {_kind(header)}")
    name, value = header
    if not isinstance(name, str):
        raise TypeError(f"the name of a header is a str, not {_kind(name)}")
    if value is not None and not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"header {name!r}: its value is bytes or None, not {_kind(value)}")


@lru_cache(_TOPICS_REMEMBERED)
def _problem_of(topic: str) -> str | None:
    return topic_name_problem(topic)


def _kind(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{name}: encode it" if isinstance(value, str) else name


_HEADERS: Final = "headers are a list of (name, value) pairs, or a mapping"
