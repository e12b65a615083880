"""Checkpoint files: what is written is read again, what is damaged is refused, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.storage import SimFiles, SimulatedCrash
from tailrace.epochs import EpochEntry, EpochHistory
from tailrace.errors import CorruptCheckpoint, InvariantViolation
from tailrace.log.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANED,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    TEMPORARY_SUFFIX,
    CleanPartition,
    CleanShutdown,
    Kind,
    MetaProperties,
    PartitionMetadata,
    decode,
    decode_named,
    encode,
    read_or_none,
    write_atomically,
)
from tailrace.model import BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from tailrace.record.codec import crc32c

ORDERS: Final = TopicPartition("orders", 0)
EVENTS: Final = TopicPartition("my.events", 12)
OFFSETS: Final = {ORDERS: Offset(7), EVENTS: Offset(2**63 - 1)}
META: Final = MetaProperties("c-1", BrokerId(3), "inc-9", "boot-5")
CLEAN: Final = CleanShutdown(
    "boot-5", {ORDERS: CleanPartition(Offset(0), Offset(90), Offset(50), 4096, 77)}
)
EPOCHS: Final = EpochHistory([(1, 0), (4, 100)]).entries

SAMPLES: Final = {
    HIGH_WATERMARKS.name: encode(HIGH_WATERMARKS, OFFSETS),
    RECOVERY_POINTS.name: encode(RECOVERY_POINTS, OFFSETS),
    LOG_STARTS.name: encode(LOG_STARTS, {}),
    CLEANED.name: encode(CLEANED, OFFSETS),
    LEADER_EPOCHS.name: encode(LEADER_EPOCHS, EPOCHS),
    PARTITION_METADATA.name: encode(PARTITION_METADATA, PartitionMetadata(TopicId("t-1"))),
    META_PROPERTIES.name: encode(META_PROPERTIES, META),
    CLEAN_SHUTDOWN.name: encode(CLEAN_SHUTDOWN, CLEAN),
}
by_kind = pytest.mark.parametrize("name", SAMPLES)


def framed(name: str, *lines: str, count: int | None = None, version: int = 1) -> bytes:
    """A checkpoint whose CRC is right, whatever it says."""
    promised = len(lines) if count is None else count
    head = f"tailrace-checkpoint {version} {name}\nlines {promised}\n"
    body = (head + "".join(f"{line}\n" for line in lines)).encode()
    return body + b"crc32c %08x\n" % crc32c(body)


def test_the_files_are_made_for_people_too() -> None:
    text = encode(HIGH_WATERMARKS, OFFSETS)
    assert text == framed(
        "replication-offset-checkpoint", "my.events 12 9223372036854775807", "orders 0 7"
    )
    assert encode(LEADER_EPOCHS, EPOCHS) == framed("leader-epoch-checkpoint", "1 0", "4 100")
    assert SAMPLES["partition-metadata"] == framed("partition-metadata", "topic_id t-1")
    assert SAMPLES["meta-properties"] == framed(
        "meta-properties", "cluster_id c-1", "broker_id 3", "incarnation inc-9", "boot_id boot-5"
    )
    assert SAMPLES["clean-shutdown"] == framed(
        "clean-shutdown", "boot_id boot-5", "orders 0 0 90 50 4096 77"
    )


def test_every_value_is_read_again() -> None:
    assert decode(HIGH_WATERMARKS, encode(HIGH_WATERMARKS, OFFSETS)) == OFFSETS
    assert decode(LOG_STARTS, encode(LOG_STARTS, {})) == {}
    assert decode(LEADER_EPOCHS, encode(LEADER_EPOCHS, EPOCHS)) == EPOCHS
    assert decode(META_PROPERTIES, encode(META_PROPERTIES, META)) == META
    assert decode(CLEAN_SHUTDOWN, encode(CLEAN_SHUTDOWN, CLEAN)) == CLEAN
    metadata = PartitionMetadata(TopicId("t-1"))
    assert decode(PARTITION_METADATA, encode(PARTITION_METADATA, metadata)) == metadata


@by_kind
def test_a_file_names_its_kind(name: str) -> None:
    found, value = decode_named(SAMPLES[name])
    assert found == name
    assert value is not None


@pytest.mark.parametrize("data", [b"", b"\n", b"hello\n", framed("no-such-kind"), b"\xff" * 99])
def test_a_file_of_no_known_kind_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint, match="its first line is"):
        decode_named(data)


@by_kind
def test_every_cut_and_every_flipped_bit_is_found(name: str) -> None:
    data = SAMPLES[name]
    for size in range(len(data)):
        with pytest.raises(CorruptCheckpoint):
            decode_named(data[:size])
    for position in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[position] ^= 1 << bit
            with pytest.raises(CorruptCheckpoint):
                decode_named(bytes(bad))
    with pytest.raises(CorruptCheckpoint):
        decode_named(data + b"\n")


def test_a_file_is_not_taken_for_one_of_another_kind() -> None:
    with pytest.raises(CorruptCheckpoint, match="first line"):
        decode(RECOVERY_POINTS, encode(HIGH_WATERMARKS, OFFSETS))


OFFSET_KIND: Final = RECOVERY_POINTS.name


@pytest.mark.parametrize(
    "data",
    [
        framed(OFFSET_KIND, version=2),
        framed(OFFSET_KIND, "orders 0 7", count=2),
        framed(OFFSET_KIND, "orders 0 7", count=0),
        framed(OFFSET_KIND, "orders 0"),
        framed(OFFSET_KIND, "orders 0 7 8"),
        framed(OFFSET_KIND, "orders  0 7"),
        framed(OFFSET_KIND, "orders 0 -7"),
        framed(OFFSET_KIND, "orders 0 +7"),
        framed(OFFSET_KIND, "orders 0 07"),
        framed(OFFSET_KIND, "orders 0 1_0"),
        framed(OFFSET_KIND, "orders 0 9223372036854775808"),
        framed(OFFSET_KIND, "orders x 7"),
        framed(OFFSET_KIND, "or/ders 0 7"),
        framed(OFFSET_KIND, "orders 0 7", "orders 0 7"),
        framed(OFFSET_KIND, "örders 0 7"),
        framed(LEADER_EPOCHS.name, "1 0", "1 5"),
        framed(LEADER_EPOCHS.name, "1 0", "2 0"),
        framed(LEADER_EPOCHS.name, "1"),
        framed(LEADER_EPOCHS.name, "-1 0"),
        framed(PARTITION_METADATA.name),
        framed(PARTITION_METADATA.name, "topic_id"),
        framed(PARTITION_METADATA.name, "topic_id "),
        framed(PARTITION_METADATA.name, "topic 5"),
        framed(META_PROPERTIES.name, "cluster_id c"),
        framed(META_PROPERTIES.name, "cluster_id c", "broker_id x", "incarnation i", "boot_id b"),
        framed(CLEAN_SHUTDOWN.name),
        framed(CLEAN_SHUTDOWN.name, "orders 0 0 90 50 4096 77"),
        framed(CLEAN_SHUTDOWN.name, "boot_id b", "orders 0 91 90 50 4096"),
        framed(CLEAN_SHUTDOWN.name, "boot_id b", "orders 0 0 90 91 4096"),
        framed(CLEAN_SHUTDOWN.name, "boot_id b", "orders 0 0 90 50"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        decode_named(data)


def test_a_frame_without_lines_is_refused() -> None:
    body = b"tailrace-checkpoint 1 " + OFFSET_KIND.encode()
    with pytest.raises(CorruptCheckpoint, match="lines of ASCII text"):
        decode(RECOVERY_POINTS, body + b"crc32c %08x\n" % crc32c(body))


def _writers() -> list[Callable[[], bytes]]:
    return [
        lambda: encode(RECOVERY_POINTS, {ORDERS: Offset(-1)}),
        lambda: encode(RECOVERY_POINTS, {ORDERS: Offset(2**63)}),
        lambda: encode(RECOVERY_POINTS, {TopicPartition("a b", 0): Offset(1)}),
        lambda: encode(RECOVERY_POINTS, {TopicPartition("a", -1): Offset(1)}),
        lambda: encode(LEADER_EPOCHS, [EpochEntry(LeaderEpoch(-1), Offset(0))]),
        lambda: encode(PARTITION_METADATA, PartitionMetadata(TopicId("two words"))),
        lambda: encode(PARTITION_METADATA, PartitionMetadata(TopicId(""))),
        lambda: encode(META_PROPERTIES, MetaProperties("c\n", BrokerId(1), "i", "b")),
        lambda: encode(META_PROPERTIES, MetaProperties("c", BrokerId(-1), "i", "b")),
        lambda: encode(CLEAN_SHUTDOWN, CleanShutdown("", {})),
    ]


@pytest.mark.parametrize("write", _writers())
def test_what_could_not_be_read_is_not_written(write: Callable[[], bytes]) -> None:
    with pytest.raises(InvariantViolation):
        write()


def tiny(lines_max: int) -> Kind[list[str]]:
    return Kind("tiny", "tiny", lines_max, lambda lines: lines, lambda lines: lines)


def test_the_number_of_lines_is_bounded() -> None:
    assert decode(tiny(2), encode(tiny(2), ["a", "b"])) == ["a", "b"]
    with pytest.raises(InvariantViolation, match="3 lines are more than its limit of 2"):
        encode(tiny(2), ["a", "b", "c"])


def test_a_file_beyond_its_limit_is_refused() -> None:
    data = encode(tiny(100), ["x" * 300] * 100)
    with pytest.raises(CorruptCheckpoint, match="more than its limit"):
        decode(tiny(2), data)


def test_a_marker_of_an_earlier_release_is_read() -> None:
    """It has no checksum over the segments, and an even longer line is refused as before."""
    head = "boot_id boot-5"
    found = decode(CLEAN_SHUTDOWN, framed("clean-shutdown", head, "orders 0 0 90 50 4096"))
    assert found.partitions[ORDERS] == CleanPartition(Offset(0), Offset(90), Offset(50), 4096)
    assert found.partitions[ORDERS].segments_crc is None
    assert decode(CLEAN_SHUTDOWN, encode(CLEAN_SHUTDOWN, found)) == found
    with pytest.raises(CorruptCheckpoint, match="8 words"):
        decode(CLEAN_SHUTDOWN, framed("clean-shutdown", head, "orders 0 0 90 50 4096 77 8"))


def test_the_longest_lines_fit_the_limit() -> None:
    longest = TopicPartition("t" * 200, 2**63 - 1)
    most = Offset(2**63 - 1)
    line = encode(
        CLEAN_SHUTDOWN,
        CleanShutdown("b", {longest: CleanPartition(most, most, most, most, 2**32 - 1)}),
    )
    line_bytes_max = (CLEAN_SHUTDOWN.bytes_max - 256) // CLEAN_SHUTDOWN.lines_max
    assert max(map(len, line.splitlines(keepends=True))) <= line_bytes_max


topics = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,30}", fullmatch=True)
offsets = st.builds(Offset, st.integers(0, 2**63 - 1))
partitions = st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1))


@given(value=st.dictionaries(partitions, offsets, max_size=10))
def test_any_offsets_are_read_again(value: dict[TopicPartition, Offset]) -> None:
    assert decode(HIGH_WATERMARKS, encode(HIGH_WATERMARKS, value)) == value


@given(rows=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 999)), max_size=20))
def test_any_epochs_are_read_again(rows: list[tuple[int, int]]) -> None:
    history = EpochHistory()
    for epoch, start in sorted(rows):
        history.assign(epoch, start)
    loaded = decode(LEADER_EPOCHS, encode(LEADER_EPOCHS, history.entries))
    assert EpochHistory(loaded) == history


line_texts = st.text("ab019 .-_\n\r\té", max_size=40)


@given(name=st.sampled_from(sorted(SAMPLES)), lines=st.lists(line_texts, max_size=4))
def test_any_lines_end_in_a_value_or_one_error(name: str, lines: list[str]) -> None:
    try:
        found, _ = decode_named(framed(name, *lines))
    except CorruptCheckpoint:
        return
    assert found == name


@given(data=st.binary(max_size=200))
def test_any_bytes_end_in_one_error(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        decode(RECOVERY_POINTS, data)


# On a disk.

FOLDER: Final = "/data"
PATH: Final = "/data/recovery-point-offset-checkpoint"


def disk() -> SimFiles:
    files = SimFiles(seed=1)
    files.make_folder(FOLDER)
    files.sync_folder("/")
    return files


def read(files: SimFiles) -> object:
    return read_or_none(files, PATH, RECOVERY_POINTS)


def write(files: SimFiles, offset: int, *, durable: bool) -> None:
    data = encode(RECOVERY_POINTS, {ORDERS: Offset(offset)})
    write_atomically(files, PATH, data, durable=durable)


def test_no_file_is_no_value() -> None:
    assert read(disk()) is None


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_replaced(durable: bool) -> None:
    files = disk()
    for offset in (1, 2):
        write(files, offset, durable=durable)
        assert read(files) == {ORDERS: offset}
        files.crash(power_loss=False)
        assert read(files) == {ORDERS: offset}
    assert files.list(FOLDER) == ["recovery-point-offset-checkpoint"]


def test_a_leftover_of_an_earlier_attempt_does_no_harm() -> None:
    files = disk()
    file = files.open(PATH + TEMPORARY_SUFFIX, create=True)
    file.write_at(0, [b"x" * 5_000])
    file.close()
    write(files, 5, durable=True)
    assert read(files) == {ORDERS: 5}


@pytest.mark.parametrize("seed", range(20))
def test_a_durable_write_survives_a_power_loss(seed: int) -> None:
    files = SimFiles(seed=seed)
    files.make_folder(FOLDER)
    files.sync_folder("/")
    for offset in range(3):
        write(files, offset, durable=True)
        files.crash(power_loss=True)
        assert read(files) == {ORDERS: offset}


@pytest.mark.parametrize("power_loss", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_crash_at_any_step_leaves_the_old_or_the_new(power_loss: bool, seed: int) -> None:
    for step in range(1, 50):
        files = SimFiles(seed=seed)
        files.make_folder(FOLDER)
        files.sync_folder("/")
        write(files, 1, durable=True)
        files.crash_at_operation(step)
        try:
            write(files, 2, durable=True)
        except SimulatedCrash:
            files.crash(power_loss=power_loss)
            assert read(files) in ({ORDERS: 1}, {ORDERS: 2})
        else:
            assert step > 5
            return
    pytest.fail("the write never came to its end")


@pytest.mark.parametrize("seed", range(20))
def test_after_a_power_loss_a_write_that_was_not_durable_is_whole_or_refused(seed: int) -> None:
    files = SimFiles(seed=seed)
    files.make_folder(FOLDER)
    files.sync_folder("/")
    write(files, 1, durable=True)
    write(files, 2, durable=False)
    files.crash(power_loss=True)
    try:
        found = read(files)
    except CorruptCheckpoint:
        return
    assert found in ({ORDERS: 1}, {ORDERS: 2})


def test_a_failed_sync_leaves_the_old_file() -> None:
    files = disk()
    write(files, 1, durable=True)
    files.fail_next_sync()
    with pytest.raises(OSError, match="error"):
        write(files, 2, durable=True)
    assert read(files) == {ORDERS: 1}
    assert files.list(FOLDER) == ["recovery-point-offset-checkpoint"]
    write(files, 3, durable=True)
    files.crash(power_loss=True)
    assert read(files) == {ORDERS: 3}


def test_damage_on_the_disk_is_told_with_the_path() -> None:
    files = disk()
    write(files, 1, durable=True)
    files.flip_bits(PATH, 30)
    with pytest.raises(CorruptCheckpoint, match=PATH):
        read(files)


def test_a_file_beyond_its_limit_is_not_even_read() -> None:
    files = disk()
    file = files.open("/data/tiny", create=True)
    file.truncate(tiny(1).bytes_max + 1)
    file.close()
    with pytest.raises(CorruptCheckpoint, match=r"/data/tiny.*more than its limit"):
        read_or_none(files, "/data/tiny", tiny(1))
