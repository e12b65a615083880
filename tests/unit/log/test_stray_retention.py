"""Replicas that are set aside: kept with all that was known of them, counted, taken back."""

from __future__ import annotations

import pytest

from simulation.log_bench import NOW_MS, append, batch, values
from simulation.storage import SimFiles
from tailrace.errors import InvalidRequest
from tailrace.log.deletions import DeletionKind
from tailrace.log.evidence import StrayExpired
from tailrace.log.manager import LogManager
from tailrace.log.strays import NOTE_FILE, Stray, partition_of
from tailrace.model import Offset, TopicId, TopicPartition
from unit.log.test_manager import BILLS, ORDERS, ROOT, expected, filled, opened

WEEK_MS = 7 * 24 * 3_600_000
TOPIC = TopicId("id-orders")


def set_aside(disk: SimFiles, now_ms: int = NOW_MS) -> tuple[LogManager, Stray]:
    manager = filled(disk)
    manager.logs[ORDERS].flush()
    manager.store_high_watermarks({ORDERS: Offset(11)})
    manager.set_aside(ORDERS, why="the store does not know its topic", now_ms=now_ms)
    (stray,) = manager.strays()
    return manager, stray


def expiry(stray: Stray, now_ms: int, *, cluster_id: str = "cluster") -> StrayExpired | None:
    return stray.expiry(cluster_id=cluster_id, now_ms=now_ms, retention_ms=WEEK_MS)


def test_one_that_is_set_aside_is_listed_with_what_it_holds(disk: SimFiles) -> None:
    manager, stray = set_aside(disk)
    assert (stray.name, stray.topic_id) == (f"{ORDERS}.{TOPIC}-stray", TOPIC)
    assert stray.note is not None
    assert (stray.note.high_watermark, stray.note.since_ms) == (11, NOW_MS)
    size_bytes = manager.stray_bytes(stray)
    assert size_bytes > 0
    assert manager.stray_extent(stray) == (size_bytes, 12, 0)
    (line,) = manager.deletions([ORDERS])
    assert (line.kind, line.evidence) == (DeletionKind.SET_ASIDE, "SetAside")
    assert stray.name in line.why
    assert not [each for each in disk.list(ROOT) if each == str(ORDERS)]


def test_its_extent_is_that_of_whole_batches_with_and_without_an_index(disk: SimFiles) -> None:
    manager, stray = set_aside(disk)
    segments = [each for each in disk.list(stray.path) if each.endswith(".log")]
    for name in disk.list(stray.path):
        if name.endswith(("index", "timeindex")):
            disk.remove(f"{stray.path}/{name}")
    assert manager.stray_extent(stray).log_end == 12
    file = disk.open(f"{stray.path}/{segments[-1]}")
    file.truncate(file.size() - 1)
    assert manager.stray_extent(stray).log_end == 11
    for name in segments:
        disk.remove(f"{stray.path}/{name}")
    assert manager.stray_extent(stray) == (0, -1, -1)


def test_one_of_the_same_topic_is_taken_back_and_all_of_it_is_there(disk: SimFiles) -> None:
    manager, _ = set_aside(disk)
    log = manager.create(ORDERS, TOPIC, now_ms=NOW_MS)
    assert values(log) == expected(ORDERS)
    assert manager.load_high_watermarks()[ORDERS] == 11
    assert manager.strays() == []


def test_a_new_topic_of_the_name_begins_empty_and_the_stray_stays(disk: SimFiles) -> None:
    manager, stray = set_aside(disk)
    append(manager.create(ORDERS, TopicId("new"), now_ms=NOW_MS), batch(b"new"))
    manager.set_aside(ORDERS, why="again", now_ms=NOW_MS)
    assert [each.topic_id for each in manager.strays()] == [TOPIC, "new"]
    assert manager.strays()[0].path == stray.path


def test_it_is_kept_for_so_long_from_a_time_that_is_believed(disk: SimFiles) -> None:
    manager, stray = set_aside(disk, now_ms=5)
    assert expiry(stray, NOW_MS) is None, "a clock of 1970 when it was set aside makes nothing old"
    manager.keep_stray_from(stray, NOW_MS)
    (stray,) = manager.strays()
    assert stray.kept_until_ms(WEEK_MS) == NOW_MS + WEEK_MS
    assert expiry(stray, NOW_MS + WEEK_MS - 1) is None
    assert stray.expiry(cluster_id="c", now_ms=2 * NOW_MS, retention_ms=-1) is None
    manager.keep_stray_from(stray, NOW_MS + WEEK_MS)
    (stray,) = manager.strays()
    evidence = expiry(stray, NOW_MS + WEEK_MS)
    assert evidence is not None
    assert "removed" in manager.remove_stray(stray, evidence, now_ms=NOW_MS)
    assert manager.strays() == []
    assert manager.deletions([ORDERS])[-1].kind is DeletionKind.STRAY
    assert values(manager.logs[BILLS]) == expected(BILLS)


@pytest.mark.parametrize("what", ["another cluster", "another topic", "too early"])
def test_it_is_not_removed_without_evidence(disk: SimFiles, what: str) -> None:
    manager, stray = set_aside(disk)
    manager.keep_stray_from(stray, NOW_MS)
    (stray,) = manager.strays()
    cluster_id = "other" if what == "another cluster" else "cluster"
    now_ms = NOW_MS + WEEK_MS
    evidence = StrayExpired(
        cluster_id=cluster_id,
        topic_id="other" if what == "another topic" else TOPIC,
        set_aside_ms=NOW_MS,
        kept_from_ms=NOW_MS,
        now_ms=now_ms - (what == "too early"),
        retention_ms=WEEK_MS,
    )
    with pytest.raises(InvalidRequest, match="is not deleted"):
        manager.remove_stray(stray, evidence, now_ms=now_ms)
    assert manager.stray_extent(stray).log_end == 12
    assert [each.kind for each in manager.deletions([ORDERS])] == [DeletionKind.SET_ASIDE]


@pytest.mark.parametrize("note", [b"", b"{", b'{"since_ms": "x", "why": "", "start_cause": null}'])
def test_one_whose_note_cannot_be_read_is_kept_until_a_person_decides(
    disk: SimFiles, note: bytes
) -> None:
    manager, stray = set_aside(disk)
    file = disk.open(f"{stray.path}/{NOTE_FILE}")
    file.truncate(0)
    file.write_at(0, [note])
    manager.keep_stray_from(manager.strays()[0], NOW_MS)
    (found,) = manager.strays()
    assert found.note is None
    assert found.kept_until_ms(0) is None
    assert expiry(found, 10 * WEEK_MS + NOW_MS) is None
    assert manager.create(ORDERS, TOPIC).log_end == 0, "it is not taken back unseen either"
    assert manager.stray_extent(found).log_end == 12


def test_it_survives_a_restart(disk: SimFiles) -> None:
    manager, stray = set_aside(disk)
    manager.close()
    again, report = opened(disk)
    assert (report.damaged, [each.name for each in again.strays()]) == ({}, [stray.name])


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("orders-0.id-stray", TopicPartition("orders", 0)),
        ("a.b-12.id.2-stray", TopicPartition("a.b", 12)),
        ("orders-0", None),
        ("-stray", None),
    ],
)
def test_names(name: str, partition: TopicPartition | None) -> None:
    assert partition_of(name) == partition
