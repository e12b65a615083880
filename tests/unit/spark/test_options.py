"""Options: what is wrong is told with the option's name; times go before offsets."""

from __future__ import annotations

import pytest

from tailrace_spark.options import (
    EARLIEST,
    LATEST,
    InvalidOption,
    Kind,
    Place,
    Places,
    Selection,
    read_options,
    write_options,
)

BASE = {"bootstrap.servers": "a:1, b:2", "subscribe": "t"}


def test_what_is_meant_without_more() -> None:
    batch = read_options(BASE, streaming=False)
    assert batch.bootstrap == "a:1,b:2"
    assert (batch.starting.everywhere, batch.ending.everywhere) == (EARLIEST, LATEST)
    assert read_options(BASE, streaming=True).starting.everywhere == LATEST
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert batch.max_offsets_per_trigger is None


def test_all_options_are_taken_whatever_their_case() -> None:
    found = read_options(
        {
            "KAFKA.bootstrap.servers": "a:1",
            "SUBSCRIBEPATTERN": "or.*",
            "startingoffsets": '{"t": {"0": 7, "1": -1, "2": -2}}',
            "maxoffsetspertrigger": "10",
            "minpartitions": "4",
            "failondataloss": "FALSE",
            "includeheaders": "true",
            "readername": "night job",
            "checkpointLocation": "/x",
        },
        streaming=True,
    )
    assert found.selection.matches("orders")
    assert not found.selection.matches("my-orders")
    assert found.starting.of_topic("t", range(3)) == {
        0: Place(Kind.OFFSET, 7),
        1: LATEST,
        2: EARLIEST,
    }
    assert (found.max_offsets_per_trigger, found.min_partitions) == (10, 4)
    assert (found.fail_on_data_loss, found.include_headers) == (False, True)
    assert found.reader_name == "night job"


def test_times_go_before_offsets() -> None:
    times = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t": {"0": 5}}'}
    found = read_options({**BASE, **times}, streaming=False)
    assert found.starting == Places(
        "startingOffsetsByTimestamp", None, {"t": {0: Place(Kind.TIME, 5)}}
    )
    found = read_options({**BASE, **times, "startingTimestamp": "9"}, streaming=False)
    assert found.starting == Places("startingTimestamp", Place(Kind.TIME, 9))


def test_assigned_partitions() -> None:
    given = {"bootstrap.servers": "a:1", "assign": '{"t": [2, 0, 2], "u": [1]}'}
    chosen = read_options(given, streaming=False).selection
    assert chosen.named == ("t", "u")
    assert chosen.partitions("t", 3) == (0, 2)
    with pytest.raises(InvalidOption, match=r"assign: t has partitions 0 to 1, not \[2\]"):
        chosen.partitions("t", 2)
    assert Selection(option="subscribe", names=("t",)).partitions("t", 2) == (0, 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bootstrap.servers": ""}, "bootstrap.servers: say where"),
        ({"bootstrap.servers": "nowhere"}, "bootstrap.servers: 'nowhere' is not host:port"),
        ({"bootstrap.servers": "a:99999"}, "bootstrap.servers: 'a:99999' is not host:port"),
        ({"subscribe": ""}, "subscribe, subscribePattern, assign: give exactly one"),
        ({"assign": '{"t": [0]}'}, "subscribe, assign: give exactly one"),
        ({"subscribe": " , "}, "subscribe"),
        ({"startingOffset": "earliest"}, "startingOffset: .* do you mean startingOffsets"),
        ({"path": "x"}, "path: the Tailrace source has no such option"),
        ({"startingOffsets": "first"}, "startingOffsets: 'first' is not 'earliest'"),
        ({"startingOffsets": '{"t": 5}'}, "startingOffsets"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "startingOffsets"),
        ({"startingOffsets": '{"t": {"0": true}}'}, "startingOffsets"),
        ({"startingOffsets": "[1]"}, "startingOffsets"),
        ({"startingOffsets": "latest"}, "startingOffsets: .* always empty"),
        ({"endingOffsets": "earliest"}, "endingOffsets: nothing ends at"),
        ({"startingTimestamp": "yesterday"}, "startingTimestamp: 'yesterday' is not a whole"),
        ({"startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "startingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestampStrategy": "x"}, "Strategy: 'x' is not 'error' or"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: '0' is not a whole number from 1"),
        ({"minPartitions": "many"}, "minPartitions: 'many'"),
        ({"onCorrupt": "ignore"}, "onCorrupt: 'ignore' is not 'raise' or 'skip'"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss: 'no' is not true or false"),
        ({"fetchCreditBytes": "1"}, "fetchCreditBytes: '1'"),
        ({"readerName": "a\nb"}, "readerName"),
        ({"bootstrap.servers": "a:²"}, "bootstrap.servers: 'a:²' is not host:port"),
        ({"maxOffsetsPerTrigger": "²"}, "maxOffsetsPerTrigger: '²' is not a whole number"),
        ({"maxOffsetsPerTrigger": str(2**63)}, "maxOffsetsPerTrigger: .* a number of 64 bits"),
        ({"startingTimestamp": str(2**63)}, "startingTimestamp: .* a number of 64 bits"),
        ({"startingOffsets": '{"t": {"²": 1}}'}, "startingOffsets"),
        ({"startingOffsets": '{"t": {"0": 9223372036854775808}}'}, "startingOffsets"),
        ({"kafka.group.id": "g"}, "kafka.group.id: .* readerName is the name under which"),
        ({"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger: .* leave it out"),
        ({"kafka.security.protocol": "SSL"}, "the settings of Kafka's clients mean nothing"),
    ],
)
def test_what_is_wrong_is_told_with_its_name(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        read_options({**BASE, **given}, streaming=False)


@pytest.mark.parametrize(
    "given", [{"subscribePattern": "("}, {"assign": '{"t": 3}'}, {"assign": "x"}, {"assign": "{}"}]
)
def test_a_selection_that_cannot_be(given: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(given))):
        read_options({"bootstrap.servers": "a:1", **given}, streaming=False)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidOption, match="endingOffsets: a stream has no end"):
        read_options({**BASE, "endingOffsets": "latest"}, streaming=True)


def test_every_partition_needs_its_place() -> None:
    places = read_options(
        {**BASE, "startingOffsets": '{"t": {"0": 7, "5": 1}}'}, streaming=False
    ).starting
    with pytest.raises(InvalidOption, match=r"t is read in partitions \[0, 1\].*nothing of \[1\]"):
        places.of_topic("t", range(2))
    with pytest.raises(InvalidOption, match=r"names \[5\]"):
        places.of_topic("t", [0])
    assert Places("x", EARLIEST).of_topic("t", [3]) == {3: EARLIEST}


def test_options_of_the_sink() -> None:
    found = write_options(
        {
            "bootstrap.servers": "a:1",
            "topic": "out",
            "compression": "LZ4",
            "checkpointLocation": "x",
        }
    )
    assert (found.topic, found.compression, found.producer_name) == ("out", "lz4", "")
    for given, message in (
        ({"compression": "gzip"}, "compression: 'gzip'"),
        ({"subscribe": "t"}, "subscribe: the Tailrace sink has no such option"),
        ({"producerBatch": "-1"}, "producerBatch"),
    ):
        with pytest.raises(InvalidOption, match=message):
            write_options({"bootstrap.servers": "a:1", **given})
