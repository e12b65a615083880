"""Settings as text and as values: names, units, limits, and what is said about a mistake."""

from __future__ import annotations

import re
import string
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.config import (
    LOG_DIRS_MAX,
    MIN_INSYNC,
    UNLIMITED,
    CleanupPolicy,
    ClientConfig,
    Flush,
    FolderConfig,
    LiveConfig,
    LogConfig,
    TimestampType,
    broker_configs,
    checked_min_insync,
    client_setting_facts,
    live_configs,
    live_setting_facts,
    min_insync_of,
)
from tailrace.errors import InvalidConfig

DAY_MS: Final = 86_400_000
INT64_MAX: Final = 2**63 - 1


def test_the_defaults() -> None:
    assert LogConfig().settings() == {
        "segment.bytes": "1073741824",
        "segment.ms": "604800000",
        "segment.index.bytes": "10485760",
        "index.interval.bytes": "4096",
        "max.message.bytes": "8388608",
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "cleanup.policy": "delete",
        "delete.retention.ms": "86400000",
        "min.compaction.lag.ms": "0",
        "min.cleanable.dirty.ratio": "0.5",
        "flush": "none",
        "producer.id.expiration.ms": "86400000",
        "message.timestamp.type": "CreateTime",
        "message.timestamp.before.max.ms": str(INT64_MAX),
        "message.timestamp.after.max.ms": str(INT64_MAX),
        "batch.validation": "full",
    }
    assert FolderConfig().settings() == {
        "log.dirs": "data",
        "num.recovery.threads.per.data.dir": "1",
        "open.files.max": "4096",
        "index.cache.bytes": "67108864",
        "log.cleaner.dedupe.buffer.size": "134217728",
    }


def test_settings_of_a_topic() -> None:
    config = LogConfig.from_settings(
        {
            "segment.bytes": "2048",
            "retention.ms": " -1 ",
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": ".25",
            "flush": "ack",
            "message.timestamp.type": "LogAppendTime",
        }
    )
    assert config == LogConfig(
        segment_bytes=2048,
        retention_ms=UNLIMITED,
        cleanup_policy=CleanupPolicy.COMPACT,
        min_cleanable_dirty_ratio=0.25,
        flush=Flush.ACK,
        message_timestamp_type=TimestampType.LOG_APPEND_TIME,
    )


def test_settings_change_the_base_they_are_given() -> None:
    base = LogConfig(segment_bytes=4096, flush=Flush.ACK)
    config = LogConfig.from_settings({"segment.bytes": "8192"}, base)
    assert config == LogConfig(segment_bytes=8192, flush=Flush.ACK)
    assert LogConfig.from_settings({}, base) == base
    folder = FolderConfig(open_files_max=99)
    changed = FolderConfig.from_settings({"log.dirs": "a, b"}, folder)
    assert changed == FolderConfig(log_dirs=("a", "b"), open_files_max=99)


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("log.segment.bytes", "4096", "segment_bytes", 4096),
        ("log.segment.ms", "5", "segment_ms", 5),
        ("log.roll.ms", "5", "segment_ms", 5),
        ("log.roll.hours", "24", "segment_ms", DAY_MS),
        ("log.index.size.max.bytes", "4096", "segment_index_bytes", 4096),
        ("log.index.interval.bytes", "1", "index_interval_bytes", 1),
        ("message.max.bytes", "1000", "max_message_bytes", 1000),
        ("log.retention.ms", "7", "retention_ms", 7),
        ("log.retention.minutes", "2", "retention_ms", 120_000),
        ("log.retention.hours", "48", "retention_ms", 2 * DAY_MS),
        ("log.retention.hours", "-1", "retention_ms", UNLIMITED),
        ("log.retention.bytes", "0", "retention_bytes", 0),
        ("log.cleanup.policy", "compact", "cleanup_policy", CleanupPolicy.COMPACT),
        ("log.cleaner.delete.retention.ms", "3", "delete_retention_ms", 3),
        ("log.cleaner.min.compaction.lag.ms", "3", "min_compaction_lag_ms", 3),
        ("log.cleaner.min.cleanable.ratio", "1", "min_cleanable_dirty_ratio", 1.0),
        ("log.flush", "ack", "flush", Flush.ACK),
        (
            "log.message.timestamp.type",
            "LogAppendTime",
            "message_timestamp_type",
            TimestampType.LOG_APPEND_TIME,
        ),
    ],
)
def test_names_of_a_broker(name: str, text: str, field: str, value: object) -> None:
    assert getattr(LogConfig.from_settings({name: text}), field) == value


def test_the_finer_and_the_more_particular_name_goes_first() -> None:
    settings = {
        "log.retention.hours": "1",
        "log.retention.minutes": "2",
        "log.retention.ms": "3",
        "retention.ms": "4",
    }
    for expected in (4, 3, 120_000, 3_600_000):
        assert LogConfig.from_settings(settings).retention_ms == expected
        settings.popitem()


def test_a_setting_that_another_one_hides_must_be_good_too() -> None:
    with pytest.raises(InvalidConfig, match=r"'log\.retention\.hours' is 'many'"):
        LogConfig.from_settings({"retention.ms": "4", "log.retention.hours": "many"})


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("delete", CleanupPolicy.DELETE),
        ("compact", CleanupPolicy.COMPACT),
        ("delete,compact", CleanupPolicy.DELETE_AND_COMPACT),
        ("compact, delete", CleanupPolicy.DELETE_AND_COMPACT),
    ],
)
def test_cleanup_policies(text: str, policy: CleanupPolicy) -> None:
    config = LogConfig.from_settings({"cleanup.policy": text})
    assert config.cleanup_policy is policy
    assert policy.deletes is ("delete" in text)
    assert policy.compacts is ("compact" in text)


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("segment.bytes", "1023", "a whole number from 1024 to 2147483647"),
        ("segment.bytes", "2147483648", "a whole number from 1024 to 2147483647"),
        ("segment.bytes", "1_024", "a whole number"),
        ("segment.bytes", "1e9", "a whole number"),
        ("segment.bytes", "1GiB", "a whole number"),
        ("segment.bytes", "", "a whole number"),
        ("segment.bytes", "٣٠٠٠", "a whole number"),
        ("segment.ms", "-1", "a whole number from 1 to"),
        ("retention.ms", "-2", "from 0 to 9223372036854775807, or -1 for no limit"),
        ("retention.ms", "9223372036854775808", "or -1 for no limit"),
        ("log.retention.hours", "2562047788016", "from 0 to 2562047788015, or -1 for no limit"),
        ("log.roll.hours", "0", "a whole number from 1 to 2562047788015"),
        ("min.cleanable.dirty.ratio", "1.01", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "nan", "a number from 0 to 1"),
        ("min.cleanable.dirty.ratio", "-0.1", "a number from 0 to 1"),
        ("cleanup.policy", "remove", "one of 'delete', 'compact', 'delete,compact'"),
        ("cleanup.policy", "", "one of 'delete', 'compact', 'delete,compact'"),
        ("flush", "always", "one of 'none', 'ack'"),
        ("message.timestamp.type", "createtime", "one of 'CreateTime', 'LogAppendTime'"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(name: str, text: str, allowed: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        LogConfig.from_settings({name: text})
    sentence = str(raised.value)
    assert f"the setting {name!r} is {text!r}; allowed is " in sentence
    assert allowed in sentence


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log.dirs", ""),
        ("log.dirs", "a,,b"),
        ("log.dirs", "a,b,a"),
        ("log.dirs", "a\0b"),
        ("log.dirs", ",".join(map(str, range(LOG_DIRS_MAX + 1)))),
        ("num.recovery.threads.per.data.dir", "0"),
        ("open.files.max", "15"),
        ("index.cache.bytes", "x"),
        ("log.cleaner.dedupe.buffer.size", "-1"),
    ],
)
def test_bad_settings_of_a_folder(name: str, text: str) -> None:
    with pytest.raises(InvalidConfig, match="the setting"):
        FolderConfig.from_settings({name: text})


def test_a_long_value_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidConfig) as raised:
        LogConfig.from_settings({"segment.bytes": "9" * 10_000})
    assert len(str(raised.value)) < 300


def test_a_typing_mistake_gets_the_nearest_name() -> None:
    with pytest.raises(InvalidConfig, match=r"no setting 'retentoin\.ms'; did you mean 'retention"):
        LogConfig.from_settings({"retentoin.ms": "5"})
    with pytest.raises(InvalidConfig, match=r"did you mean 'open\.files\.max'"):
        FolderConfig.from_settings({"open.file.max": "5"})


def test_a_name_like_no_other_gets_the_nearest_few_not_a_long_list() -> None:
    with pytest.raises(InvalidConfig) as raised:
        LogConfig.from_settings({"nosuch": "1"})
    said = str(raised.value)
    assert said.startswith("there is no setting 'nosuch'; the nearest are '")
    assert re.search(r"', and \d+ more \(docs/operations\.md\)$", said)
    assert len(said) < 150


@pytest.mark.parametrize(
    "values",
    [
        {"segment_bytes": 1},
        {"segment_bytes": True},
        {"segment_bytes": 4096.0},
        {"retention_ms": -2},
        {"min_cleanable_dirty_ratio": 2},
        {"min_cleanable_dirty_ratio": float("nan")},
        {"min_cleanable_dirty_ratio": "0.5"},
        {"flush": "ack"},
    ],
)
def test_values_given_directly_are_checked_too(values: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig, match="the setting"):
        LogConfig(**values)  # type: ignore[arg-type]  # wrong types are the point here


@pytest.mark.parametrize("log_dirs", [(), ["a"], ("",), (" a",), ("a", "a"), (1,), ("a,b",)])
def test_folders_given_directly_are_checked_too(log_dirs: object) -> None:
    with pytest.raises(InvalidConfig, match=r"'log\.dirs'"):
        FolderConfig(log_dirs=log_dirs)  # type: ignore[arg-type]  # wrong types are the point here


def test_a_broker_gets_both_from_one_set_of_settings() -> None:
    folder, log = broker_configs({"log.dir": "/data", "log.retention.hours": "1", "flush": "ack"})
    assert folder == FolderConfig(log_dirs=("/data",))
    assert log == LogConfig(retention_ms=3_600_000, flush=Flush.ACK)
    with pytest.raises(InvalidConfig, match=r"did you mean 'log\.dirs'"):
        broker_configs({"log.dirss": "/data"})


or_unlimited = st.one_of(st.just(UNLIMITED), st.integers(0, INT64_MAX))


@given(
    config=st.builds(
        LogConfig,
        segment_bytes=st.integers(1024, 2**31 - 1),
        segment_ms=st.integers(1, INT64_MAX),
        retention_ms=or_unlimited,
        retention_bytes=or_unlimited,
        cleanup_policy=st.sampled_from(CleanupPolicy),
        min_compaction_lag_ms=st.integers(0, INT64_MAX),
        min_cleanable_dirty_ratio=st.floats(0, 1),
        flush=st.sampled_from(Flush),
        message_timestamp_type=st.sampled_from(TimestampType),
    )
)
def test_settings_and_config_are_two_forms_of_one_thing(config: LogConfig) -> None:
    assert LogConfig.from_settings(config.settings()) == config


@given(
    names=st.lists(
        st.text("abé/. -_", min_size=1).filter(lambda name: name == name.strip()),
        min_size=1,
        max_size=4,
        unique=True,
    )
)
def test_folders_are_given_back(names: list[str]) -> None:
    config = FolderConfig(log_dirs=tuple(names), open_files_max=77)
    assert FolderConfig.from_settings(config.settings()) == config


# Small alphabets with a few characters from elsewhere: hypothesis takes seconds to load them all.
signs = st.sampled_from(string.printable + "٣½é…\u2028\U0001f600")


@given(text=st.text(signs, max_size=30), name=st.sampled_from(sorted(LogConfig().settings())))
def test_any_text_is_a_good_config_or_one_error(text: str, name: str) -> None:
    try:
        config = LogConfig.from_settings({name: text})
    except InvalidConfig:
        return
    assert LogConfig.from_settings(config.settings()) == config


def test_live_settings_are_split_into_the_brokers_own_and_those_of_its_logs() -> None:
    live, logs = live_configs(
        {"leader.replication.throttled.rate": "2048", "log.retention.hours": "1"},
        LogConfig(segment_bytes=4_096),
    )
    assert live == LiveConfig(replication_throttled_rate=2_048)
    assert logs == LogConfig(segment_bytes=4_096, retention_ms=3_600_000)
    for wrong in ({"leader.replication.throttled.rate": "5"}, {"log.dirs": "/data"}):
        with pytest.raises(InvalidConfig):
            live_configs(wrong)


def test_quotas_of_clients() -> None:
    base = ClientConfig(producer_byte_rate=10, request_rate=5)
    found = ClientConfig.from_settings({"request_rate": "-1"}, base)
    assert found == ClientConfig(producer_byte_rate=10)
    assert ClientConfig.from_settings(found.settings()) == found
    for wrong in ("0", "-2", "many", "1.5"):
        with pytest.raises(InvalidConfig):
            ClientConfig.from_settings({"consumer_byte_rate": wrong})


def test_what_people_are_told_of_live_settings_and_quotas() -> None:
    names = [each.name for each in live_setting_facts()]
    assert "leader.replication.throttled.rate" in names
    assert "retention.ms" in names
    assert [each.default for each in client_setting_facts()] == ["-1", "-1", "-1"]


@pytest.mark.parametrize(
    ("text", "replicas", "expected"),
    [
        (None, 1, 1),
        (None, 2, 1),
        (None, 3, 2),
        (None, 5, 2),
        ("3", 3, 3),
        ("1", 3, 1),
        # What another version has stored: all must make the same of it.
        ("0", 3, 2),
        ("", 3, 2),
        ("two", 3, 2),
        ("-1", 2, 1),
        ("9", 3, 3),
        ("2", 1, 1),
    ],
)
def test_everybody_reads_min_insync_replicas_the_same_way(
    text: str | None, replicas: int, expected: int
) -> None:
    config = {} if text is None else {MIN_INSYNC: text}
    assert min_insync_of(config, replicas=replicas) == expected


@pytest.mark.parametrize("text", ["0", "4", "-1", "two", ""])
def test_a_new_topic_has_min_insync_replicas_from_one_to_all(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"min\.insync\.replicas"):
        checked_min_insync({MIN_INSYNC: text}, replicas=3)
    assert checked_min_insync({MIN_INSYNC: "3"}, replicas=3) == 3
