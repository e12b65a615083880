"""The options of the source and the sink, named as those of Spark's Kafka source. Pure.

What is wrong with an option is told before anything is asked of a cluster, with its name and what
it may be. An option that nobody knows is refused too: a misspelt `startingOffset` that is silently
ignored reads the wrong records.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum, auto
from typing import Any, Final, NoReturn

BOOTSTRAP: Final = "bootstrap.servers"
RAISE: Final = "raise"
SKIP: Final = "skip"
KAFKA_PREFIX: Final = "kafka."
EARLIEST_NUMBER: Final = -2
LATEST_NUMBER: Final = -1
POLL_TIMEOUT_MS: Final = 120_000
METADATA_TIMEOUT_MS: Final = 10_000
CREDIT_BYTES: Final = 8 << 20
READER_NAME_LENGTH_MAX: Final = 200
NUMBER_MAX: Final = 2**63 - 1
"""Spark and the protocol both have 64 bits for an offset, a time and a count."""


class InvalidOption(ValueError):
    """An option that cannot be; the message begins with its name."""


class Kind(Enum):
    """What a place is given by."""

    EARLIEST = auto()
    LATEST = auto()
    OFFSET = auto()
    TIME = auto()


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a partition: an end of it, an offset, or the first record from a time (ms) on."""

    kind: Kind
    number: int = 0


EARLIEST: Final = Place(Kind.EARLIEST)
LATEST: Final = Place(Kind.LATEST)


@dataclass(frozen=True, slots=True)
class Places:
    """One place for all partitions, or one for each; `option` is who said so."""

    option: str
    everywhere: Place | None = None
    by_partition: Mapping[str, Mapping[int, Place]] = field(default_factory=dict)

    def check_topics(self, topics: Iterable[str]) -> None:
        """InvalidOption when it names a topic that is not read: a slip of the pen, or a rename."""
        unknown = sorted(set(self.by_partition) - set(topics))
        if unknown:
            raise InvalidOption(
                f"{self.option}: it names {', '.join(unknown)}, but what is read is "
                f"{', '.join(sorted(topics)) or 'no topic'}"
            )

    def of_topic(self, topic: str, partitions: Iterable[int]) -> dict[int, Place]:
        """The place in each partition; InvalidOption when one has none, or is not there."""
        if self.everywhere is not None:
            return dict.fromkeys(partitions, self.everywhere)
        given, wanted = self.by_partition.get(topic, {}), set(partitions)
        missing, unknown = sorted(wanted - set(given)), sorted(set(given) - wanted)
        if missing or unknown:
            what = f"says nothing of {missing}" if missing else f"names {unknown}"
            raise InvalidOption(
                f"{self.option}: {topic} is read in partitions {sorted(wanted)}, but it {what}"
            )
        return dict(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which topics are read; `assigned` has the partitions of each, with the option `assign`."""

    option: str
    names: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that must be there; none when a pattern selects them."""
        return self.names or tuple(self.assigned)

    def matches(self, topic: str) -> bool:
        if self.pattern:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.named

    def partitions(self, topic: str, count: int) -> tuple[int, ...]:
        """Those that are read of a topic with so many; InvalidOption when one is not there."""
        chosen = self.assigned.get(topic)
        if chosen is None:
            return tuple(range(count))
        unknown = [each for each in chosen if each >= count]
        if unknown:
            raise InvalidOption(
                f"{self.option}: {topic} has partitions 0 to {count - 1}, not {unknown}"
            )
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    bootstrap: str
    selection: Selection
    starting: Places
    ending: Places
    # What to do when no record is as late as the time asked for: go to the end, or fail.
    latest_when_too_late: bool = False
    max_offsets_per_trigger: int | None = None
    min_partitions: int = 0
    fail_on_data_loss: bool = True
    # At a stored batch that cannot be decoded: "raise" or "skip".
    on_corrupt: str = RAISE
    include_headers: bool = False
    reader_name: str = ""
    poll_timeout_ms: int = POLL_TIMEOUT_MS
    metadata_timeout_ms: int = METADATA_TIMEOUT_MS
    credit_bytes: int = CREDIT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    bootstrap: str
    topic: str = ""
    producer_name: str = ""
    producer_batch: int = 0
    compression: str = "none"
    metadata_timeout_ms: int = METADATA_TIMEOUT_MS
    delivery_timeout_ms: int = POLL_TIMEOUT_MS
    max_request_bytes: int = 0


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """The options of a reader; InvalidOption names what is wrong."""
    values = _known(given, _READ_NAMES, "source")
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name in values:
                raise InvalidOption(f"{name}: a stream has no end; use it with spark.read")
    strategy = values.get("startingOffsetsByTimestampStrategy", "error").lower()
    if strategy not in {"error", "latest"}:
        _refuse("startingOffsetsByTimestampStrategy", strategy, "'error' or 'latest'")
    starting = _places(values, "starting", LATEST if streaming else EARLIEST)
    if not streaming and starting.everywhere == LATEST:
        raise InvalidOption("startingOffsets: a batch that starts at 'latest' is always empty")
    ending = _places(values, "ending", LATEST)
    if ending.everywhere == EARLIEST:
        raise InvalidOption("endingOffsets: nothing ends at 'earliest'; give 'latest' or JSON")
    fail_on_data_loss = _flag(values, "failOnDataLoss", True)
    on_corrupt = values.get("onCorrupt", RAISE if fail_on_data_loss else SKIP).lower()
    if on_corrupt not in {RAISE, SKIP}:
        _refuse("onCorrupt", on_corrupt, "'raise' or 'skip'")
    return ReadOptions(
        bootstrap=_bootstrap(values),
        selection=_selection(values),
        starting=starting,
        ending=ending,
        latest_when_too_late=strategy == "latest",
        max_offsets_per_trigger=_number(values, "maxOffsetsPerTrigger", None, least=1),
        min_partitions=_number(values, "minPartitions", 0, least=1) or 0,
        fail_on_data_loss=fail_on_data_loss,
        on_corrupt=on_corrupt,
        include_headers=_flag(values, "includeHeaders", False),
        reader_name=_name(values, "readerName"),
        poll_timeout_ms=_number(values, "pollTimeoutMs", POLL_TIMEOUT_MS, least=1) or 0,
        metadata_timeout_ms=_number(values, "metadataTimeoutMs", METADATA_TIMEOUT_MS, least=1) or 0,
        credit_bytes=_number(values, "fetchCreditBytes", CREDIT_BYTES, least=64 << 10) or 0,
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a writer; InvalidOption names what is wrong."""
    values = _known(given, _WRITE_NAMES, "sink")
    compression = values.get("compression", "none").lower()
    if compression not in {"none", "lz4", "zstd"}:
        _refuse("compression", compression, "'none', 'lz4' or 'zstd'")
    return WriteOptions(
        bootstrap=_bootstrap(values),
        topic=values.get("topic", ""),
        producer_name=_name(values, "producerName"),
        producer_batch=_number(values, "producerBatch", 0, least=0) or 0,
        compression=compression,
        metadata_timeout_ms=_number(values, "metadataTimeoutMs", METADATA_TIMEOUT_MS, least=1) or 0,
        delivery_timeout_ms=_number(values, "deliveryTimeoutMs", POLL_TIMEOUT_MS, least=1) or 0,
        max_request_bytes=_number(values, "maxRequestBytes", 0, least=1024) or 0,
    )


_SELECTING: Final = ("subscribe", "subscribePattern", "assign")
_COMMON: Final = (BOOTSTRAP, "metadataTimeoutMs")
_READ_NAMES: Final = (
    *_COMMON,
    *_SELECTING,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "onCorrupt",
    "includeHeaders",
    "readerName",
    "pollTimeoutMs",
    "fetchCreditBytes",
)
_WRITE_NAMES: Final = (
    *_COMMON,
    "topic",
    "producerName",
    "producerBatch",
    "compression",
    "deliveryTimeoutMs",
    "maxRequestBytes",
)
# What Spark's Kafka source and sink have beyond that, and what to do without it.
_OF_KAFKA: Final = {
    "kafka.group.id": "readerName is the name under which the tools show progress",
    "groupIdPrefix": "readerName is the name under which the tools show progress",
    "minOffsetsPerTrigger": "a trigger with few rows costs little here, leave it out",
    "maxTriggerDelay": "it belongs to minOffsetsPerTrigger, leave it out",
    "maxRecordsPerPartition": "minPartitions splits large ranges",
    "kafkaConsumer.pollTimeoutMs": "its name here is pollTimeoutMs",
    "fetchOffset.numRetries": "metadataTimeoutMs says how long it is tried",
    "fetchOffset.retryIntervalMs": "metadataTimeoutMs says how long it is tried",
    "includeTimestampType": "topics say it: message.timestamp.type",
    "kafka.compression.type": "its name here is compression",
    "kafka.max.request.size": "its name here is maxRequestBytes",
    "kafka.delivery.timeout.ms": "its name here is deliveryTimeoutMs",
}
# Spark hands its own options of a query to the sink as well.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})


def _known(given: Mapping[str, str], names: tuple[str, ...], what: str) -> dict[str, str]:
    """The options by their proper names; Spark does not tell upper from lower case."""
    proper = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    for name, value in given.items():
        plain = name.lower()
        if plain == KAFKA_PREFIX + BOOTSTRAP:
            # So that a query moves over from Kafka by its format's name alone.
            plain = BOOTSTRAP
        if plain in _OF_SPARK:
            continue
        if plain not in proper:
            raise InvalidOption(
                f"{name}: the Tailrace {what} has no such option{_hint(plain, proper)} "
                f"It has {', '.join(names)}"
            )
        found[proper[plain]] = value.strip()
    return found


def _hint(plain: str, proper: Mapping[str, str]) -> str:
    """What somebody may have meant; those who come from Kafka are told where it went."""
    for name, instead in _OF_KAFKA.items():
        if plain == name.lower():
            return f": {instead}."
    if plain.startswith(KAFKA_PREFIX):
        return ": the settings of Kafka's clients mean nothing here, leave it out."
    close = get_close_matches(plain, proper, 1)
    return f"; do you mean {proper[close[0]]}?" if close else "."


def _bootstrap(values: Mapping[str, str]) -> str:
    text = values.get(BOOTSTRAP, "")
    addresses = [each.strip() for each in text.split(",") if each.strip()]
    if not addresses:
        raise InvalidOption(f"{BOOTSTRAP}: say where brokers are, as host:port,host:port")
    for each in addresses:
        host, _, port = each.rpartition(":")
        if not host or not _is_digits(port) or not 0 < int(port) < 65_536:
            _refuse(BOOTSTRAP, each, "host:port")
    return ",".join(addresses)


def _selection(values: Mapping[str, str]) -> Selection:
    given = [name for name in _SELECTING if values.get(name)]
    if len(given) != 1:
        raise InvalidOption(
            f"{', '.join(given or _SELECTING)}: give exactly one of {', '.join(_SELECTING)}"
        )
    option, text = given[0], values[given[0]]
    if option == "subscribe":
        names = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
        if not names:
            _refuse(option, text, "topics with commas between them")
        return Selection(option=option, names=names)
    if option == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidOption(f"{option}: {text!r} is no regular expression: {error}") from error
        return Selection(option=option, pattern=text)
    assigned: dict[str, tuple[int, ...]] = {}
    for topic, numbers in _json(option, text).items():
        if not isinstance(numbers, list) or not all(_is_whole(each) for each in numbers):
            _refuse(option, text, '{"topic": [0, 1]}')
        assigned[topic] = tuple(sorted(set(numbers)))
    if not any(assigned.values()):
        _refuse(option, text, "at least one partition")
    return Selection(option=option, assigned=assigned)


def _places(values: Mapping[str, str], side: str, default: Place) -> Places:
    """What is said by one of three options; times go before offsets, as in the Kafka source."""
    option = f"{side}Timestamp"
    if option in values:
        number = _number(values, option, None, least=0)
        return Places(option, Place(Kind.TIME, number or 0))
    option = f"{side}OffsetsByTimestamp"
    if option in values:
        return Places(option, None, _by_partition(option, values[option], Kind.TIME))
    option = f"{side}Offsets"
    text = values.get(option, "")
    named = {"": default, "earliest": EARLIEST, "latest": LATEST}
    if text.lower() in named:
        return Places(option, named[text.lower()])
    return Places(option, None, _by_partition(option, text, Kind.OFFSET))


def _by_partition(option: str, text: str, kind: Kind) -> dict[str, dict[int, Place]]:
    wanted = "'earliest', 'latest' or JSON such as " if kind is Kind.OFFSET else "JSON such as "
    example = wanted + '{"topic": {"0": 23, "1": -2}}'
    found: dict[str, dict[int, Place]] = {}
    for topic, numbers in _json(option, text, example).items():
        if not isinstance(numbers, dict):
            _refuse(option, text, example)
        for partition, number in numbers.items():
            if not _is_digits(partition) or not _is_whole(number, EARLIEST_NUMBER):
                _refuse(option, text, example)
            place = {EARLIEST_NUMBER: EARLIEST, LATEST_NUMBER: LATEST}.get(number)
            if kind is Kind.TIME or place is None:
                if number < 0:
                    _refuse(option, text, example)
                place = Place(kind, number)
            found.setdefault(topic, {})[int(partition)] = place
    return found


def _json(option: str, text: str, wanted: str = "a JSON object") -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        _refuse(option, text, wanted)
    if not isinstance(found, dict):
        _refuse(option, text, wanted)
    return found


def _is_whole(value: object, least: int = 0) -> bool:
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return least <= value <= NUMBER_MAX


def _is_digits(text: str) -> bool:
    """Of the ten that everybody means: Python calls ² a digit, too."""
    return text.isascii() and text.isdigit()


def _number(values: Mapping[str, str], name: str, default: int | None, *, least: int) -> int | None:
    text = values.get(name)
    if text is None:
        return default
    if not _is_digits(text.removeprefix("-")) or int(text) < least:
        _refuse(name, text, f"a whole number from {least} on")
    if int(text) > NUMBER_MAX:
        _refuse(name, text, "a number of 64 bits")
    return int(text)


def _flag(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name)
    if text is None:
        return default
    if text.lower() not in {"true", "false"}:
        _refuse(name, text, "true or false")
    return text.lower() == "true"


def _name(values: Mapping[str, str], option: str) -> str:
    text = values.get(option, "")
    if len(text) > READER_NAME_LENGTH_MAX or not text.isprintable():
        _refuse(option, text, f"at most {READER_NAME_LENGTH_MAX} printable characters")
    return text


def _refuse(option: str, value: str, wanted: str) -> NoReturn:
    raise InvalidOption(f"{option}: {value!r} is not {wanted}")
