from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.cli.settings import (
    FILE_BYTES_MAX,
    HIDDEN,
    Given,
    Known,
    effective,
    flag_of,
    from_assignments,
    from_environment,
    from_file,
    from_flags,
    variable_of,
)
from tailrace.errors import InvalidConfig

ID = Known(name="broker.id", about="", allowed="", default="")
KEEP = Known(
    name="retention.ms", about="", allowed="", default="7", other_names=("log.retention.hours",)
)
PASSWORD = Known(name="etcd.password", about="", allowed="", default="", secret=True)
KNOWN = (ID, KEEP, PASSWORD)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "broker.properties"
    path.write_text(text, encoding="utf-8")
    return path


def test_flags_before_environment_before_file_before_default(tmp_path: Path) -> None:
    path = _file(tmp_path, "broker.id=3\nretention.ms=30\n")
    flags = from_flags({"broker.id": 1, "retention.ms": None})
    environment, _ = from_environment(
        {"TAILRACE_BROKER_ID": "2", "TAILRACE_LOG_RETENTION_HOURS": "20"}, KNOWN
    )
    found = effective(KNOWN, flags, environment, from_file(path, KNOWN))
    assert found.texts() == {"broker.id": "1", "log.retention.hours": "20"}
    assert found.lines() == [
        ("broker.id", "1", "flag --broker-id"),
        ("log.retention.hours", "20", "environment TAILRACE_LOG_RETENTION_HOURS"),
        ("etcd.password", "", "default"),
    ]
    assert effective(KNOWN, from_file(path, KNOWN)).lines()[0] == (
        "broker.id",
        "3",
        f"file {path}, line 1",
    )


def test_one_source_may_use_several_names_of_a_setting(tmp_path: Path) -> None:
    path = _file(tmp_path, "log.retention.hours=1\nretention.ms=30\n")
    found = effective(KNOWN, from_file(path, KNOWN))
    assert found.texts() == {"log.retention.hours": "1", "retention.ms": "30"}


def test_secrets_are_not_shown() -> None:
    found = effective(KNOWN, from_assignments(["etcd.password=hunter2"], KNOWN))
    assert found.texts() == {"etcd.password": "hunter2"}
    assert found.lines()[-1] == ("etcd.password", HIDDEN, "flag --set etcd.password")


def test_a_file_has_comments_spaces_and_values_with_equal_signs(tmp_path: Path) -> None:
    path = _file(tmp_path, "\ufeff# mine\n\n! old\n  broker.id = 4 \netcd.password=a=b#c\n")
    assert [(each.name, each.text) for each in from_file(path, KNOWN)] == [
        ("broker.id", "4"),
        ("etcd.password", "a=b#c"),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("brokr.id=1", r"line 1: there is no setting 'brokr.id'; did you mean 'broker.id'\?"),
        ("zzzzzzz=1", "there is no setting 'zzzzzzz'; `tailrace broker --print-config`"),
        ("\nbroker.id", "line 2: 'broker.id' is not name=value"),
        ("broker.id=1\nbroker.id=2", "line 2: 'broker.id' is set a second time"),
        ("x" * 200, "x{60}…' is not name=value"),
    ],
)
def test_a_bad_line_is_told_with_its_number(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(InvalidConfig, match=sentence):
        from_file(_file(tmp_path, text), KNOWN)


def test_a_file_may_serve_several_services(tmp_path: Path) -> None:
    path = _file(tmp_path, "controller.id=1\nbroker.id=2\n")
    other = Known(name="controller.id", about="", allowed="", default="")
    assert [each.name for each in from_file(path, KNOWN, [other, ID])] == ["broker.id"]


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="missing: No such file"):
        from_file(tmp_path / "missing", KNOWN)
    (tmp_path / "large").write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(InvalidConfig, match="larger than"):
        from_file(tmp_path / "large", KNOWN)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(InvalidConfig, match="no UTF-8 text"):
        from_file(tmp_path / "binary", KNOWN)


def test_assignments() -> None:
    assert from_assignments(["broker.id=1", "broker.id = 2"], KNOWN) == [
        Given("broker.id", "2", "flag --set broker.id")
    ]
    with pytest.raises(InvalidConfig, match="--set broker: it has to be name=value"):
        from_assignments(["broker"], KNOWN)
    with pytest.raises(InvalidConfig, match=r"did you mean 'retention.ms'"):
        from_assignments(["retention.m=1"], KNOWN)


def test_only_a_slip_of_the_pen_is_doubted_in_the_environment() -> None:
    found, doubts = from_environment(
        {
            "TAILRACE_BROKR_ID": "1",
            # What Kubernetes makes of a service named `tailrace-broker`.
            "TAILRACE_BROKER_PORT": "tcp://10.0.0.1:9092",
            "TAILRACE_BOOTSTRAP": "a:1",
            "HOME": "/",
        },
        KNOWN,
    )
    assert found == []
    assert doubts == [
        "the variable TAILRACE_BROKR_ID is no setting; did you mean TAILRACE_BROKER_ID?"
    ]


def test_names_of_flags_and_variables() -> None:
    assert flag_of("log.dirs") == "--log-dirs"
    assert variable_of("log.dirs") == "TAILRACE_LOG_DIRS"
