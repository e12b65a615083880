"""What is set aside is kept whole, never replaced, and taken back as it was; a note is not guessed.

A stray is known by the bytes of its files: those of the log must be the same before and after.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.log_bench import NOW_MS, append, batch, values
from simulation.proofs import deleted, refilled
from simulation.storage import SimFiles, SimulatedCrash
from tailrace.errors import CorruptCheckpoint, DamagedLog
from tailrace.log.checkpoints import (
    CLEANED,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_START_CAUSES,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    read_or_none,
)
from tailrace.log.manager import LogManager
from tailrace.log.strays import (
    NOTE_BYTES_MAX,
    NOTE_FILE,
    StrayNote,
    decode_note,
    encode_note,
    partition_of,
)
from tailrace.model import (
    DELETE_RECORDS,
    LOG_START_KINDS,
    LogStartCause,
    Offset,
    TopicId,
    TopicPartition,
)
from tailrace.record.codec import crc32c
from unit.log.test_manager import BILLS, IDS, ORDERS, OTHER_ROOT, ROOT, expected, filled, opened

WHY = "the store does not know its topic"
STRAY = f"{ROOT}/orders-0.id-orders-stray"


def set_aside(manager: LogManager, *, now_ms: int = NOW_MS, high_watermark: int = 0) -> str:
    return manager.set_aside(ORDERS, why=WHY, now_ms=now_ms, high_watermark=high_watermark)


def bytes_in(disk: SimFiles, folder: str) -> dict[str, bytes]:
    """Every file of a log but the note."""
    names = [each for each in disk.list(folder) if each != NOTE_FILE]
    return {name: disk.read(f"{folder}/{name}") for name in names}


def moved(disk: SimFiles) -> LogManager:
    """The log of `orders` begins at 3, for a cause that no checkpoint file has yet."""
    manager = filled(disk)
    log = manager.logs[ORDERS]
    log.flush()
    cause = LogStartCause(DELETE_RECORDS, 0, 3)
    log.advance_log_start(3, cause=cause, durable=False)
    assert manager.folders[0].start_causes == {}
    return manager


def told(disk: SimFiles) -> dict[str, object]:
    """What the checkpoint files of the folder say of `orders`."""
    found: dict[str, object] = {}
    for kind in (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANED):
        offsets = read_or_none(disk, f"{ROOT}/{kind.file_name}", kind) or {}
        if ORDERS in offsets:
            found[kind.name] = offsets[ORDERS]
    causes = read_or_none(disk, f"{ROOT}/{LOG_START_CAUSES.file_name}", LOG_START_CAUSES) or {}
    if ORDERS in causes:
        found[LOG_START_CAUSES.name] = causes[ORDERS]
    return found


@pytest.mark.parametrize("power_loss", [False, True])
def test_f42_l2_a_stray_is_taken_back_byte_for_byte_with_all_that_was_known(
    disk: SimFiles, power_loss: bool
) -> None:
    manager = moved(disk)
    end = manager.logs[ORDERS].log_end
    before = bytes_in(disk, f"{ROOT}/{ORDERS}")
    assert set_aside(manager, high_watermark=9) == "orders-0.id-orders-stray"
    assert not manager.holds(ORDERS)
    assert bytes_in(disk, STRAY) == before
    assert told(disk) == {}
    (stray,) = manager.strays()
    assert (stray.partition, stray.topic_id, stray.path) == (ORDERS, "id-orders", STRAY)
    assert stray.note == StrayNote(
        since_ms=NOW_MS,
        why=WHY,
        log_start=3,
        recovery_point=end,
        high_watermark=9,
        start_cause=(DELETE_RECORDS, 0, 3),
    )
    # As in any log that is opened, the epochs begin where the log does.
    del before[LEADER_EPOCHS.file_name]
    disk.crash(power_loss=power_loss)
    if power_loss:
        # Indexes and snapshots are made again from the rest.
        lasting = (".log", PARTITION_METADATA.file_name)
        before = {name: data for name, data in before.items() if name.endswith(lasting)}
    again, report = opened(disk)
    assert (report.damaged, ORDERS in again.logs) == ({}, False)
    log = again.create(ORDERS, IDS[ORDERS], now_ms=NOW_MS)
    after = bytes_in(disk, f"{ROOT}/{ORDERS}")
    assert {name: after[name] for name in before} == before
    assert power_loss or after.keys() == {*before, LEADER_EPOCHS.file_name}
    assert (log.log_start, log.log_end, log.recovery_point) == (3, end, end)
    assert log.start_cause == LogStartCause(DELETE_RECORDS, 0, 3)
    assert values(log) == expected(ORDERS)[3:]
    assert again.high_watermark(ORDERS) == 9
    assert told(disk) == {
        RECOVERY_POINTS.name: end,
        LOG_STARTS.name: 3,
        LOG_START_CAUSES.name: (DELETE_RECORDS, 0, 3),
        HIGH_WATERMARKS.name: 9,
    }
    assert again.strays() == []
    assert NOTE_FILE not in disk.list(f"{ROOT}/{ORDERS}")
    append(log, batch(b"more"))
    again.close()
    third, report = opened(disk)
    assert (report.clean, values(third.logs[ORDERS])[-1]) == (not power_loss, b"more")


def test_an_older_high_watermark_does_not_lower_the_one_of_the_files(disk: SimFiles) -> None:
    manager = filled(disk)
    manager.store_high_watermarks({ORDERS: Offset(7)})
    set_aside(manager, high_watermark=3)
    (stray,) = manager.strays()
    assert stray.note is not None
    assert stray.note.high_watermark == 7


@pytest.mark.parametrize("power_loss", [False, True])
@pytest.mark.parametrize("operation", range(1, 60))
def test_one_that_is_killed_while_it_is_set_aside_or_taken_back_loses_nothing(
    disk: SimFiles, operation: int, power_loss: bool
) -> None:
    manager = moved(disk)
    manager.store_high_watermarks({ORDERS: Offset(8)})
    disk.crash_at_operation(operation)
    with contextlib.suppress(SimulatedCrash):
        set_aside(manager, high_watermark=9)
        manager.create(ORDERS, IDS[ORDERS], now_ms=NOW_MS)
    disk.crash(power_loss=power_loss)
    again, report = opened(disk)
    assert report.damaged == {}
    found = again.logs.get(ORDERS) or again.create(ORDERS, IDS[ORDERS], now_ms=NOW_MS)
    assert values(found)[-9:] == expected(ORDERS)[3:]
    assert again.high_watermark(ORDERS) >= 8
    assert again.strays() == []


def test_more_strays_of_one_partition_are_all_kept_and_the_newest_is_taken_back(
    disk: SimFiles,
) -> None:
    manager = filled(disk)
    manager.delete(ORDERS, deleted(manager, ORDERS))
    names: list[str] = []
    for life, since_ms in enumerate((50, 90, 70)):
        for each in names:
            # Out of sight, or it would be taken back.
            disk.rename(f"{ROOT}/{each}", f"{ROOT}/{each}.hidden")
        append(manager.create(ORDERS, IDS[ORDERS]), batch(b"life %d" % life))
        for each in names:
            disk.rename(f"{ROOT}/{each}.hidden", f"{ROOT}/{each}")
        names.append(set_aside(manager, now_ms=since_ms))
    assert names == [f"orders-0.id-orders{each}-stray" for each in ("", ".2", ".3")]
    assert [each.name for each in manager.strays()] == sorted(names)
    lives = []
    while manager.strays():
        log = manager.create(ORDERS, IDS[ORDERS], now_ms=NOW_MS)
        lives += values(log)
        manager.delete(ORDERS, deleted(manager, ORDERS))
    assert lives == [b"life 1", b"life 2", b"life 0"]


def test_a_stray_of_another_topic_or_another_partition_is_not_taken_back(disk: SimFiles) -> None:
    manager = filled(disk)
    set_aside(manager)
    for partition, topic_id in ((ORDERS, "another"), (TopicPartition("orders", 1), IDS[ORDERS])):
        assert manager.create(partition, TopicId(topic_id)).log_end == 0
    assert [each.name for each in manager.strays()] == ["orders-0.id-orders-stray"]


def test_strays_are_found_in_every_folder_and_taken_back_where_they_are(disk: SimFiles) -> None:
    manager = filled(disk, ROOT, OTHER_ROOT)
    homes = {each: manager.logs[each].folder for each in (ORDERS, BILLS)}
    assert len({*homes.values()}) == 2
    for each in (ORDERS, BILLS):
        manager.set_aside(each, why=WHY, now_ms=NOW_MS)
    assert {each.partition for each in manager.strays()} == {ORDERS, BILLS}
    for each in (BILLS, ORDERS):
        log = manager.create(each, IDS[each])
        assert (log.folder, values(log)) == (homes[each], expected(each))


def test_what_is_found_where_a_log_is_to_be_made_is_set_aside_first(disk: SimFiles) -> None:
    """Somebody put it there by hand, or a creation failed after records were written."""
    manager = filled(disk)
    set_aside(manager)
    disk.rename(STRAY, f"{ROOT}/{ORDERS}")
    assert values(manager.create(ORDERS, IDS[ORDERS], now_ms=NOW_MS)) == expected(ORDERS)
    set_aside(manager)
    disk.rename(STRAY, f"{ROOT}/{ORDERS}")
    assert manager.create(ORDERS, TopicId("another"), now_ms=NOW_MS).log_end == 0
    (stray,) = manager.strays()
    assert (stray.topic_id, stray.note and stray.note.why) == (
        "id-orders",
        "it was found where a new log was to be made",
    )


@pytest.mark.parametrize("what", ["missing", "flipped", "cut", "too large", "a folder"])
def test_f43_a_stray_with_a_broken_note_is_kept_and_not_guessed_at(
    disk: SimFiles, what: str
) -> None:
    manager = filled(disk)
    set_aside(manager)
    path = f"{STRAY}/{NOTE_FILE}"
    if what == "flipped":
        disk.flip_bits(path, 20)
    elif what == "cut":
        disk.cut(path, 30)
    elif what == "too large":
        disk.open(path).write_at(NOTE_BYTES_MAX, [b"x"])
    else:
        disk.remove(path)
    if what == "a folder":
        disk.make_folder(path)
    before = bytes_in(disk, STRAY)
    (stray,) = manager.strays()
    assert (stray.note, stray.topic_id) == (None, "id-orders")
    assert manager.create(ORDERS, IDS[ORDERS]).log_end == 0
    assert bytes_in(disk, STRAY) == before
    # Its name is taken: the next one does not replace it.
    assert set_aside(manager) == "orders-0.id-orders.2-stray"
    assert bytes_in(disk, STRAY) == before
    with pytest.raises(CorruptCheckpoint, match="nothing is known of this log"):
        manager._strays.take_back(stray)


def test_a_stray_whose_topic_cannot_be_told_is_kept(disk: SimFiles) -> None:
    manager = filled(disk)
    set_aside(manager)
    disk.flip_bits(f"{STRAY}/{PARTITION_METADATA.file_name}", 40)
    (stray,) = manager.strays()
    assert (stray.topic_id, stray.partition) == (None, ORDERS)
    assert manager.create(ORDERS, IDS[ORDERS]).log_end == 0
    assert len(manager.strays()) == 1


def test_a_stray_that_rotted_is_a_damaged_log_when_it_is_taken_back(disk: SimFiles) -> None:
    """It is mended as any other, by those who know whether others count on it."""
    manager = moved(disk)
    set_aside(manager)
    name = min(each for each in disk.list(STRAY) if each.endswith(".log"))
    disk.remove(f"{STRAY}/{name}")
    with pytest.raises(DamagedLog):
        manager.create(ORDERS, IDS[ORDERS], now_ms=NOW_MS)
    assert manager.holds(ORDERS)
    assert isinstance(manager.damaged[ORDERS], DamagedLog)
    assert manager.topic_id(ORDERS) == IDS[ORDERS]
    manager.repair(ORDERS, refilled(manager, ORDERS), now_ms=NOW_MS)
    assert manager.damaged == {}
    assert ORDERS in manager.logs


def test_a_stray_goes_with_what_proves_that_it_may(disk: SimFiles) -> None:
    manager = filled(disk)
    evidence = deleted(manager, ORDERS)
    set_aside(manager)
    (stray,) = manager.strays()
    told = manager.remove_stray(stray, evidence, now_ms=NOW_MS)
    assert told.startswith(f"removed {STRAY} of ")
    assert told.endswith(f" bytes: {evidence}")
    disk.crash(power_loss=True)
    again, _ = opened(disk)
    assert again.strays() == []
    assert again.logs.keys() == {BILLS}


# The note.

NUMBERS = st.integers(0, 2**63 - 1)
NOTES = st.builds(
    StrayNote,
    since_ms=NUMBERS,
    why=st.text(max_size=200),
    log_start=NUMBERS,
    recovery_point=NUMBERS,
    high_watermark=NUMBERS,
    start_cause=st.none() | st.tuples(st.sampled_from(LOG_START_KINDS), NUMBERS, NUMBERS),
)


@given(NOTES)
def test_a_note_is_read_as_it_was_written(note: StrayNote) -> None:
    assert decode_note(encode_note(note)) == note


@given(NOTES, st.data())
def test_a_note_with_another_byte_or_less_of_them_is_none(
    note: StrayNote, data: st.DataObject
) -> None:
    written = bytearray(encode_note(note))
    at = data.draw(st.integers(0, len(written) - 1))
    assert decode_note(bytes(written[:at])) is None
    written[at] ^= data.draw(st.integers(1, 255))
    assert decode_note(bytes(written)) is None


@given(st.binary(max_size=200))
def test_junk_is_no_note(junk: bytes) -> None:
    assert decode_note(junk) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"log_start": -1},
        {"high_watermark": True},
        {"recovery_point": "7"},
        {"why": 7},
        {"since_ms": 1.5},
        {"start_cause": ["guessed", 0, 0]},
        {"start_cause": [DELETE_RECORDS, -1, 0]},
        {"start_cause": [DELETE_RECORDS, 0]},
        {"start_cause": 5},
        {"more": 1},
    ],
)
def test_a_whole_note_that_says_what_cannot_be_is_none(fields: dict[str, object]) -> None:
    line = json.dumps({**asdict(StrayNote(since_ms=1, why="w")), **fields}).encode() + b"\n"
    assert decode_note(line + b"crc32c %08x\n" % crc32c(line)) is None


# The name.

TOPICS = st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True).filter(
    lambda each: each not in {".", ".."}
)


@given(
    TOPICS,
    st.integers(0, 10**9 - 1),
    st.integers(0, 2**128 - 1).map("{:032x}".format) | st.just("unknown"),
    st.sampled_from(["", ".2", ".17"]),
)
def test_the_name_of_a_stray_tells_its_partition(
    topic: str, number: int, topic_id: str, again: str
) -> None:
    partition = TopicPartition(topic, number)
    assert partition_of(f"{partition}.{topic_id}{again}-stray") == partition
    # As an earlier release named them, and what is no stray.
    assert partition_of(f"{partition}-stray") == partition
    assert partition_of(str(partition)) is None
    assert partition_of(f"{partition}-delete") is None


@pytest.mark.parametrize("name", ["-stray", "x-stray", "x.y-stray", "..-stray", "stray", ""])
def test_other_names_are_no_strays(name: str) -> None:
    assert partition_of(name) is None
