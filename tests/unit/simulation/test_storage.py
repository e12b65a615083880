"""What only the simulated disk does: crashes, power losses and faults, each within its promises."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from simulation.disk_state import SECTOR_BYTES
from simulation.storage import TRACE_OPERATIONS_MAX, SimFile, SimFiles, SimulatedCrash
from tailrace.errors import FolderLocked

SEEDS = range(300)


def new_disk(seed: int) -> SimFiles:
    files = SimFiles(seed)
    files.make_folder("/data")
    files.sync_folder("/")
    return files


def durable_file(files: SimFiles, path: str, data: bytes) -> SimFile:
    file = files.open(path, create=True)
    file.write_at(0, [data])
    file.sync()
    files.sync_folder(path.rpartition("/")[0])
    return file


def outcomes(scenario: Callable[[SimFiles], None], path: str = "/data/a") -> set[bytes | None]:
    """What a power loss after the scenario leaves of a file, over many seeds."""
    seen: set[bytes | None] = set()
    for seed in SEEDS:
        files = new_disk(seed)
        scenario(files)
        files.crash(power_loss=True)
        seen.add(files.read(path) if files.exists(path) else None)
    return seen


def fails_with(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number says which
        call()
    assert caught.value.errno == number


# Crashes


def test_a_process_crash_keeps_every_completed_call() -> None:
    files = new_disk(0)
    boot = files.boot_id()
    file = files.open("/data/a", create=True)
    file.write_at(0, [b"abc", b"def"])
    file.truncate(5)
    files.rename("/data/a", "/data/b")
    files.lock("/data/.lock")
    files.crash(power_loss=False)
    assert files.list("/data") == [".lock", "b"]
    assert files.read("/data/b") == b"abcde"
    assert files.boot_id() == boot
    files.lock("/data/.lock").release()


@pytest.mark.parametrize("power_loss", [False, True])
def test_handles_and_locks_do_not_outlive_their_process(power_loss: bool) -> None:
    files = new_disk(0)
    file = durable_file(files, "/data/a", b"abc")
    lock = files.lock("/data/.lock")
    files.crash(power_loss=power_loss)
    for call in (lambda: file.read_at(0, 1), file.size, file.sync, lambda: file.truncate(0)):
        fails_with(errno.EBADF, call)
    fails_with(errno.EBADF, lambda: file.write_at(0, [b"x"]))
    assert files.open_files == 0
    new_lock = files.lock("/data/.lock")
    lock.release()
    file.close()
    with pytest.raises(FolderLocked):
        files.lock("/data/.lock")
    new_lock.release()
    assert files.open_files == 0


def test_a_power_loss_changes_the_boot_id() -> None:
    files = new_disk(0)
    boots = [files.boot_id()]
    for _ in range(3):
        files.crash(power_loss=True)
        boots.append(files.boot_id())
    assert len(set(boots)) == 4


def test_what_was_synced_survives_everything() -> None:
    def scenario(files: SimFiles) -> None:
        durable_file(files, "/data/a", b"abc" * 1000)
        other = files.open("/data/other", create=True)
        other.write_at(0, [b"x" * 5000])
        files.remove("/data/other")

    assert outcomes(scenario) == {b"abc" * 1000}


def test_unsynced_writes_are_lost_kept_or_torn_by_sectors() -> None:
    synced, new = b"s" * 700, b"n" * 1500

    def scenario(files: SimFiles) -> None:
        durable_file(files, "/data/a", synced).write_at(700, [new])

    seen = outcomes(scenario)
    assert synced in seen
    assert synced + new in seen
    assert len(seen) > 8
    for data in seen:
        assert data is not None
        assert data[:700] == synced
        assert len(data) in (700, 2200)
        for start in range(700, len(data)):
            same_sector = data[max(700, start // SECTOR_BYTES * SECTOR_BYTES)]
            assert data[start] == same_sector
            assert data[start] in b"n\0"


def test_a_rewritten_sector_has_any_of_its_versions() -> None:
    def scenario(files: SimFiles) -> None:
        file = durable_file(files, "/data/a", b"0" * 512)
        for version in b"12":
            file.write_at(0, [bytes([version]) * 512])

    assert outcomes(scenario) == {b"0" * 512, b"1" * 512, b"2" * 512}


def test_an_unsynced_truncate_may_come_back() -> None:
    def scenario(files: SimFiles) -> None:
        file = durable_file(files, "/data/a", b"o" * 1024)
        file.truncate(100)
        file.write_at(100, [b"n" * 100])

    seen = outcomes(scenario)
    assert b"o" * 1024 in seen
    assert b"o" * 100 in seen
    assert b"o" * 100 + b"n" * 100 in seen
    # The new bytes, and behind them the end of the old file: what a careless recovery believes.
    assert b"o" * 100 + b"n" * 100 + bytes(312) + b"o" * 512 in seen
    assert {len(data) for data in seen if data is not None} == {1024, 100, 200}


def test_a_process_crash_makes_nothing_durable() -> None:
    def scenario(files: SimFiles) -> None:
        durable_file(files, "/data/a", b"old").write_at(0, [b"new"])
        files.crash(power_loss=False)
        assert files.read("/data/a") == b"new"

    assert outcomes(scenario) == {b"old", b"new"}


def test_two_power_losses_in_a_row() -> None:
    for seed in SEEDS:
        files = new_disk(seed)
        durable_file(files, "/data/a", b"s" * 600).write_at(600, [b"n" * 900])
        files.crash(power_loss=True)
        first = files.read("/data/a")
        files.crash(power_loss=True)
        assert files.read("/data/a") == first


# Names


def test_a_new_name_needs_its_folder_synced() -> None:
    def scenario(files: SimFiles) -> None:
        file = files.open("/data/a", create=True)
        file.write_at(0, [b"abc"])
        file.sync()

    assert outcomes(scenario) == {None, b"abc"}


def test_a_synced_name_does_not_save_the_bytes() -> None:
    def scenario(files: SimFiles) -> None:
        files.open("/data/a", create=True).write_at(0, [b"abc"])
        files.sync_folder("/data")

    assert outcomes(scenario) == {b"", b"abc", bytes(3)}


def test_a_folder_needs_the_one_above_it_synced() -> None:
    def scenario(files: SimFiles) -> None:
        files.make_folder("/data/t-0")
        durable_file(files, "/data/t-0/a", b"abc")

    assert outcomes(scenario, "/data/t-0/a") == {None, b"abc"}


def test_replacing_is_old_or_new() -> None:
    def scenario(files: SimFiles) -> None:
        durable_file(files, "/data/a", b"old")
        file = files.open("/data/a.tmp", create=True)
        file.write_at(0, [b"new"])
        file.sync()
        files.rename("/data/a.tmp", "/data/a")

    assert outcomes(scenario) == {b"old", b"new"}
    assert outcomes(scenario, "/data/a.tmp") == {None, b"new"}

    def synced(files: SimFiles) -> None:
        scenario(files)
        files.sync_folder("/data")

    assert outcomes(synced) == {b"new"}
    assert outcomes(synced, "/data/a.tmp") == {None}


def test_a_removed_file_may_come_back() -> None:
    def scenario(files: SimFiles) -> None:
        durable_file(files, "/data/a", b"abc")
        files.remove("/data/a")

    assert outcomes(scenario) == {None, b"abc"}


def test_changes_of_a_folder_survive_as_a_prefix() -> None:
    seen = set()
    for seed in SEEDS:
        files = new_disk(seed)
        for name in "abcd":
            files.open(f"/data/{name}", create=True)
        files.remove("/data/a")
        files.crash(power_loss=True)
        seen.add("".join(files.list("/data")))
    assert seen == {"", "a", "ab", "abc", "abcd", "bcd"}


def test_folders_survive_on_their_own_and_moves_as_a_whole() -> None:
    seen = set()
    for seed in SEEDS:
        files = new_disk(seed)
        for folder in "pq":
            files.make_folder(f"/data/{folder}")
        files.sync_folder("/data")
        durable_file(files, "/data/p/file", b"abc")
        files.open("/data/q/before", create=True)
        files.rename("/data/p/file", "/data/q/file")
        files.open("/data/p/after", create=True)
        files.crash(power_loss=True)
        seen.add((tuple(files.list("/data/p")), tuple(files.list("/data/q"))))
    assert seen == {
        (("file",), ()),
        (("file",), ("before",)),
        ((), ("before", "file")),
        (("after",), ("before", "file")),
    }


def test_syncing_one_end_of_a_move_saves_both() -> None:
    for synced in "pq":
        for seed in SEEDS:
            files = new_disk(seed)
            for folder in "pq":
                files.make_folder(f"/data/{folder}")
            files.sync_folder("/data")
            durable_file(files, "/data/p/file", b"abc")
            files.open("/data/q/before", create=True)
            files.rename("/data/p/file", "/data/q/file")
            files.sync_folder(f"/data/{synced}")
            files.crash(power_loss=True)
            assert files.list("/data/p") == []
            assert files.list("/data/q") == ["before", "file"]


def test_a_folder_is_removed_name_by_name() -> None:
    seen = set()
    for seed in SEEDS:
        files = new_disk(seed)
        files.make_folder("/data/t-0")
        files.sync_folder("/data")
        for name in "ab":
            durable_file(files, f"/data/t-0/{name}", b"abc")
        files.crash_at_operation(2)
        with pytest.raises(SimulatedCrash):
            files.remove_folder("/data/t-0")
        files.crash(power_loss=False)
        seen.add("".join(files.list("/data/t-0")))
    assert seen == {"a", "b", ""}


# Faults


def test_a_failed_sync_loses_what_it_had_to_save() -> None:
    def scenario(files: SimFiles) -> None:
        file = durable_file(files, "/data/a", b"old")
        file.write_at(3, [b"lost"])
        files.fail_next_sync()
        fails_with(errno.EIO, file.sync)
        assert file.read_at(0, 10) == b"oldlost"
        file.sync()
        files.crash(power_loss=False)
        assert files.read("/data/a") == b"oldlost"
        files.open("/data/a").sync()

    assert outcomes(scenario) == {b"old"}

    def writes_on(files: SimFiles) -> None:
        scenario(files)
        file = files.open("/data/a")
        file.write_at(7, [b"more"])
        file.sync()

    assert outcomes(writes_on) == {b"old\0\0\0\0more"}

    def writes_again(files: SimFiles) -> None:
        scenario(files)
        file = files.open("/data/a")
        file.write_at(3, [b"lost"])
        file.sync()

    assert outcomes(writes_again) == {b"oldlost"}


def test_a_failing_sync_can_be_aimed() -> None:
    files = new_disk(0)
    index, log = durable_file(files, "/data/a.index", b""), durable_file(files, "/data/a.log", b"")
    files.fail_next_sync(".log")
    index.sync()
    fails_with(errno.EIO, log.sync)
    log.sync()


def test_a_failed_folder_sync_saves_nothing() -> None:
    def scenario(files: SimFiles) -> None:
        files.open("/data/a", create=True)
        files.fail_next_folder_sync()
        fails_with(errno.EIO, lambda: files.sync_folder("/data"))

    assert outcomes(scenario) == {None, b""}


def test_a_full_disk_takes_what_fits() -> None:
    files = new_disk(0)
    files.disk_bytes_max = 10
    first, second = files.open("/data/a", create=True), files.open("/data/b", create=True)
    first.write_at(0, [b"abcdef"])
    fails_with(errno.ENOSPC, lambda: second.write_at(0, [b"12", b"3456"]))
    assert files.read("/data/b") == b"1234"
    first.write_at(0, [b"ABCDEF"])
    fails_with(errno.ENOSPC, lambda: first.write_at(9, [b"x"]))
    fails_with(errno.ENOSPC, lambda: first.write_at(5, [b"Fg"]))
    fails_with(errno.ENOSPC, lambda: first.truncate(7))
    assert files.read("/data/a") == b"ABCDEF"
    first.truncate(5)
    second.write_at(4, [b"5"])
    files.remove("/data/a")
    fails_with(errno.ENOSPC, lambda: second.write_at(5, [b"67"]))
    first.close()
    second.write_at(5, [b"67890"])
    files.crash(power_loss=False)
    second = files.open("/data/b")
    fails_with(errno.ENOSPC, lambda: second.write_at(10, [b"x"]))
    files.open("/data/empty", create=True)
    files.rename("/data/empty", "/data/b")
    second.close()
    files.open("/data/b").write_at(0, [b"0123456789"])
    files.disk_bytes_max = None
    files.open("/data/b").write_at(10, [b"x"])


def test_a_torn_write_leaves_a_prefix_and_ends_the_process() -> None:
    seen = set()
    for seed in SEEDS:
        files = new_disk(seed)
        file = durable_file(files, "/data/a.log", b"ab")
        other = durable_file(files, "/data/a.index", b"")
        files.tear_next_write(".log")
        other.write_at(0, [b"x"])
        with pytest.raises(SimulatedCrash):
            file.write_at(2, [b"cd", b"ef"])
        files.crash(power_loss=False)
        seen.add(files.read("/data/a.log"))
        files.open("/data/a.log").write_at(0, [b"fine"])
    assert seen == {b"ab", b"abc", b"abcd", b"abcde", b"abcdef"}


def test_the_dead_do_nothing() -> None:
    files = new_disk(0)
    file = durable_file(files, "/data/a", b"abc")
    lock = files.lock("/data/.lock")
    files.tear_next_write()
    with pytest.raises(SimulatedCrash):
        file.write_at(3, [b""])
    calls: list[Callable[[], object]] = [
        lambda: file.read_at(0, 1),
        lambda: file.write_at(0, [b"x"]),
        file.sync,
        lambda: files.open("/data/a"),
        lambda: files.exists("/data/a"),
        lambda: files.list("/data"),
        lambda: files.make_folder("/data"),
        lambda: files.remove("/data/a"),
        lambda: files.lock("/data/.lock"),
        files.boot_id,
    ]
    for call in calls:
        with pytest.raises(SimulatedCrash):
            call()
    file.close()
    lock.release()
    files.crash(power_loss=False)
    assert files.read("/data/a") == b"abc"


def test_a_crash_comes_before_within_or_after_the_operation() -> None:
    def work(files: SimFiles) -> None:
        file = files.open("/data/a", create=True)  # 1
        file.write_at(0, [b"abcd"])  # 2
        file.sync()  # 3
        file.truncate(2)  # 4
        files.rename("/data/a", "/data/b")  # 5
        files.sync_folder("/data")  # 6
        files.remove("/data/b")  # 7

    seen: dict[int, set[tuple[str, bytes]]] = {}
    for seed in SEEDS:
        for number in range(1, 8):
            files = new_disk(seed)
            files.crash_at_operation(number)
            before = files.operations
            with pytest.raises(SimulatedCrash):
                work(files)
            assert files.operations == before + number
            files.crash(power_loss=False)
            names = files.list("/data")
            state = (names[0], files.read(f"/data/{names[0]}")) if names else ("", b"")
            seen.setdefault(number, set()).add(state)
            work(files)
    full = ("a", b"abcd")
    assert seen == {
        1: {("", b""), ("a", b"")},
        2: {("a", b"abcd"[:size]) for size in range(5)},
        3: {full},
        4: {full, ("a", b"ab")},
        5: {("a", b"ab"), ("b", b"ab")},
        6: {("b", b"ab")},
        7: {("b", b"ab"), ("", b"")},
    }


@pytest.mark.parametrize("seed", range(20))
def test_a_crash_beside_another_fault_still_comes(seed: int) -> None:
    files = new_disk(seed)
    file = durable_file(files, "/data/a", b"abcd")
    files.disk_bytes_max = 4
    calls: list[Callable[[], object]] = [
        file.sync,
        lambda: files.sync_folder("/data"),
        lambda: file.truncate(9),
        lambda: file.write_at(4, [b"e"]),
    ]
    files.fail_next_sync()
    files.fail_next_folder_sync()
    files.crash_at_operation(1)
    with pytest.raises(SimulatedCrash):
        calls[seed % len(calls)]()


def test_bits_flip_on_the_disk_and_in_memory() -> None:
    def synced(files: SimFiles) -> None:
        durable_file(files, "/data/a", b"aaa")
        files.flip_bits("/data/a", 1, 0x02)
        assert files.read("/data/a") == b"aca"

    assert outcomes(synced) == {b"aca"}

    def unsynced(files: SimFiles) -> None:
        durable_file(files, "/data/a", b"aaa").write_at(1, [b"bb"])
        files.flip_bits("/data/a", 1)
        assert files.read("/data/a") == b"acb"

    assert outcomes(unsynced) == {b"a\x60a", b"acb"}


def test_a_cut_is_on_the_disk_and_in_memory() -> None:
    def scenario(files: SimFiles) -> None:
        file = durable_file(files, "/data/a", b"abcdef")
        file.write_at(2, [b"XYZ"])
        file.write_at(5, [b"more"])
        file.truncate(4)
        file.truncate(5)
        files.cut("/data/a", 3)
        assert files.read("/data/a") == b"abX"

    assert outcomes(scenario) == {b"abc", b"abX"}


# What a failing seed needs


def test_a_seed_replays() -> None:
    def run(seed: int) -> tuple[str, list[bytes]]:
        files = new_disk(seed)
        plan = Random(seed)
        states = []
        for _ in range(5):
            file = files.open("/data/a", create=True)
            for _ in range(10):
                file.write_at(plan.randrange(3000), [plan.randbytes(700)])
                if plan.random() < 0.2:
                    file.sync()
                    files.sync_folder("/data")
            files.lock("/data/.lock")
            files.crash(power_loss=plan.random() < 0.7)
            states.append(files.read("/data/a") if files.exists("/data/a") else b"")
        return files.trace(), states

    assert [run(seed) for seed in range(20)] == [run(seed) for seed in range(20)]
    assert run(1) != run(2)


def test_the_trace_is_readable_and_bounded() -> None:
    files = new_disk(0)
    file = files.open("/data/a", create=True)
    file.write_at(8, [b"abc"])
    files.fail_next_sync()
    fails_with(errno.EIO, file.sync)
    files.flip_bits("/data/a", 8)
    files.crash(power_loss=True)
    assert files.trace().splitlines() == [
        "     1 make_folder /data",
        "     2 sync_folder /",
        "     3 create      /data/a",
        "     4 write       /data/a at 8, 3 bytes",
        "     5 sync        /data/a",
        "     5 SYNC FAILS  /data/a",
        "     5 FLIP        /data/a byte 8 with 0x01",
        "     5 POWER LOSS",
    ]
    file = files.open("/data/b", create=True)
    for _ in range(2 * TRACE_OPERATIONS_MAX):
        file.sync()
    assert len(files.trace().splitlines()) == TRACE_OPERATIONS_MAX


def test_reads_are_counted() -> None:
    files = new_disk(0)
    file = durable_file(files, "/data/a", b"abcdef")
    operations = files.operations
    file.read_at(4, 100)
    files.read("/data/a")
    assert files.bytes_read == 8
    assert files.operations == operations


def test_there_is_no_descriptor() -> None:
    files = new_disk(0)
    with pytest.raises(OSError, match="no descriptor"):
        files.open("/data/a", create=True).fileno()


def test_the_root_is_a_folder() -> None:
    files = SimFiles(Random(1))
    assert files.is_folder("/")
    assert files.list("/") == []
    fails_with(errno.EISDIR, lambda: files.open("/"))
    fails_with(errno.EISDIR, lambda: files.read("/"))
