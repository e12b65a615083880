from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli import interruption, patience, producing
from tailrace.cli.producing import Input, Tally, parse_headers, settings
from tailrace.client.delivery import BatchDelivery, BatchOutcome
from tailrace.errors import ClientClosed, DeliveryTimedOut, InvalidConfig, UnknownTopic
from tailrace.model import TopicPartition


class Taking:
    """Stands where the producer stands, and takes what is sent."""

    def __init__(self, *, fails: bool = False) -> None:
        self.sent: list[dict[str, Any]] = []
        self._fails = fails
        self.unknown = False
        self.found_within_ms = 0
        self.waits_for = ""
        self.flushes_s = 0.0
        # Nobody answers: what is sent is open until the producer is closed.
        self.silent = False
        self.closed_within_ms: list[int | None] = []
        self._open: list[tuple[BatchOutcome, int]] = []
        self._offset = 0

    async def send_batch(
        self, topic: str, columns: dict[str, Any], *, partition: int | None
    ) -> BatchDelivery:
        self.sent.append(columns)
        rows = len(columns["value"])
        outcome = BatchOutcome(TopicPartition(topic, partition or 0))
        if self.silent:
            self._open.append((outcome, rows))
        elif self._fails:
            outcome.failed(0, rows, DeliveryTimedOut("too late"))
        else:
            outcome.stored(0, rows, base_offset=self._offset)
        self._offset += rows
        return BatchDelivery([outcome])

    async def partitions_of(self, topic: str, *, timeout_ms: int) -> int:
        self.found_within_ms = timeout_ms
        await asyncio.sleep(0)
        if self.unknown:
            raise UnknownTopic(f"there is no topic {topic!r}; create it first")
        return 4

    def trouble(self) -> str:
        return self.waits_for

    async def flush(self) -> None:
        await asyncio.sleep(self.flushes_s)

    async def close(self, *, timeout_ms: int | None = None) -> None:
        self.closed_within_ms.append(timeout_ms)
        await asyncio.sleep((timeout_ms or 0) / 1_000 if self._open else 0)
        while self._open:
            outcome, rows = self._open.pop()
            outcome.failed(0, rows, ClientClosed("closed"))


@pytest.fixture
def taking(monkeypatch: pytest.MonkeyPatch) -> Taking:
    taking = Taking()
    monkeypatch.setattr("tailrace.cli.connecting.Connection.producer", lambda *_: taking)
    return taking


def _produce(given: Input, *, as_json: bool = True) -> None:
    producing.produce(
        given,
        bootstrap="127.0.0.1:1",
        settings=settings(acks="all", compression="none", name=None, timeout_s=1),
        as_json=as_json,
    )


def _values(taking: Taking) -> list[bytes]:
    return [value for columns in taking.sent for value in columns["value"]]


def test_lines_of_a_file(
    taking: Taking, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\r\n\ntwo\nlast")
    _produce(Input(topic="t", file=path, key="k", headers=(("h", b"v"),)))
    assert _values(taking) == [b"one", b"", b"two", b"last"]
    assert taking.sent[0]["key"] == [b"k"] * 3
    assert taking.sent[0]["headers"] == [[{"key": "h", "value": b"v"}]] * 3
    said = json.loads(capsys.readouterr().out)
    assert (said["sent"], said["acknowledged"], said["bytes"]) == (4, 4, 10)
    assert said["partitions"] == {"0": {"first": 0, "last": 3}}


def test_lines_of_a_pipe_go_as_they_come(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin:
        os.write(writing, b"one\ntw")
        os.write(writing, b"o\n")
        os.close(writing)
        monkeypatch.setattr("sys.stdin", stdin)
        _produce(Input(topic="t"))
    assert _values(taking) == [b"one", b"two"]


def test_keys_in_the_lines(taking: Taking, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a:1:2\nb:\n")
    _produce(Input(topic="t", file=path, key_separator=":"))
    assert taking.sent == [{"key": [b"a", b"b"], "value": [b"1:2", b""]}]


def test_lines_before_one_without_a_key_are_written_and_counted(
    taking: Taking, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a:1\nb:2\nc\nd:4\n")
    with pytest.raises(InvalidConfig, match=r"line 3 has no ':' .* nothing from there on was sent"):
        _produce(Input(topic="t", file=path, key_separator=":"), as_json=False)
    assert _values(taking) == [b"1", b"2"]
    assert capsys.readouterr().err == "tailrace: 2 records acknowledged\n"


def test_a_topic_that_is_not_there_is_told_before_anything_is_read(taking: Taking) -> None:
    taking.unknown = True
    with pytest.raises(UnknownTopic, match=r"no topic 't'; .*`tailrace topics create t`"):
        _produce(Input(topic="t", file=Path(__file__)))


@pytest.mark.parametrize(
    ("timeout_s", "wait_topic_s", "found_within_ms"),
    [(120, 1, 15_000), (3, 1, 3_000), (120, 40, 40_000)],
)
def test_whether_anybody_is_there_is_known_as_soon_as_to_other_commands(
    taking: Taking, timeout_s: float, wait_topic_s: float, found_within_ms: int
) -> None:
    made = settings(
        acks="all", compression="none", name=None, timeout_s=timeout_s, wait_topic_s=wait_topic_s
    )
    producing.produce(
        Input(topic="t", value="x"), bootstrap="127.0.0.1:1", settings=made, as_json=True
    )
    assert taking.found_within_ms == found_within_ms
    assert made.delivery_timeout_ms == timeout_s * 1000


def test_what_a_record_waits_for_is_told_meanwhile(
    taking: Taking, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(patience, "PATIENCE_MS", 1)
    monkeypatch.setattr(patience, "LOOK_S", 0.01)
    taking.waits_for = "NOT_ENOUGH_REPLICAS: t-0: 1 in sync [2], min.insync.replicas is 2"
    taking.flushes_s = 0.3
    _produce(Input(topic="t", value="x"))
    said = capsys.readouterr()
    assert said.err == f"tailrace: waiting: {taking.waits_for}\n"
    assert json.loads(said.out)["acknowledged"] == 1


def test_ctrl_c_says_what_was_done(
    taking: Taking, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    try:
        with os.fdopen(reading) as stdin:
            os.write(writing, b"one\ntwo\n")
            monkeypatch.setattr("sys.stdin", stdin)
            monkeypatch.setattr("tailrace.cli.producing.partitions_of", _interrupted_soon)
            with pytest.raises(SystemExit) as stopped:
                _produce(Input(topic="t"))
    finally:
        os.close(writing)
    assert stopped.value.code == 128 + signal.SIGTERM
    assert _values(taking) == [b"one", b"two"]
    assert capsys.readouterr().err == "tailrace: interrupted: 2 records acknowledged\n"


def test_ctrl_c_does_not_wait_for_a_cluster_that_does_not_answer(
    taking: Taking, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waited for the 30 s that a producer takes to close."""
    monkeypatch.setattr(interruption, "INTERRUPTED_MS", 300)
    monkeypatch.setattr(producing, "QUIET_MS", 50)
    monkeypatch.setattr("tailrace.cli.producing.partitions_of", _interrupted_soon)
    taking.silent, taking.flushes_s = True, 60.0
    with pytest.raises(SystemExit):
        _produce(Input(topic="t", value="x"))
    assert taking.closed_within_ms[:2] == [300, 0]
    first, last = capsys.readouterr().err.splitlines()
    assert "for what is under way; Ctrl-C once more leaves at once" in first
    assert last == (
        "tailrace: interrupted: 0 records acknowledged, 1 not known: they may have been written "
        "or not"
    )


async def _interrupted_soon(*_: object) -> int:
    loop = asyncio.get_running_loop()
    loop.call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0)
    return 1


def test_one_value(taking: Taking, capsys: pytest.CaptureFixture[str]) -> None:
    _produce(Input(topic="t", value="hello", partition=3), as_json=False)
    assert _values(taking) == [b"hello"]
    assert capsys.readouterr().out == "t-3 offset 0\n"


def test_a_summary_for_people(
    taking: Taking, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lines").write_bytes(b"one\n")
    _produce(Input(topic="t", file=tmp_path / "lines"), as_json=False)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("1 record in ")
    assert len(taking.sent) == 1


def test_what_fails_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = Taking(fails=True)
    monkeypatch.setattr("tailrace.cli.connecting.Connection.producer", lambda *_: failing)
    with pytest.raises(DeliveryTimedOut, match="too late"):
        _produce(Input(topic="t", value="hello"), as_json=False)
    assert capsys.readouterr().err == "tailrace: 0 records acknowledged, 1 not\n"


def test_a_line_without_end(
    taking: Taking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "LINE_BYTES_MAX", 10)
    (tmp_path / "lines").write_bytes(b"x" * 11)
    with pytest.raises(InvalidConfig, match="longer than 10 bytes"):
        _produce(Input(topic="t", file=tmp_path / "lines"))
    assert taking.sent == []


def test_a_file_that_cannot_be_read_is_told_before_anybody_is_asked(
    taking: Taking, tmp_path: Path
) -> None:
    for file, said in ((tmp_path, "is a folder: name a file"), (tmp_path / "x", "No such file")):
        with pytest.raises(InvalidConfig, match=rf"--file {file}:? {said}"):
            _produce(Input(topic="t", file=file))
    assert taking.found_within_ms == 0


def test_value_and_file_are_too_much() -> None:
    with pytest.raises(InvalidConfig, match="--value or --file"):
        _produce(Input(topic="t", value="x", file=Path("y")))


def test_settings_are_idempotent_where_that_can_be() -> None:
    assert settings(acks="all", compression="lz4", name="n", timeout_s=9).enable_idempotence
    assert not settings(acks="1", compression="none", name=None, timeout_s=9).enable_idempotence
    with pytest.raises(InvalidConfig, match="acks"):
        settings(acks="2", compression="none", name=None, timeout_s=9)


def test_headers() -> None:
    assert parse_headers(["a=1", "b="]) == (("a", b"1"), ("b", b""))
    for bad in ("a", "=1"):
        with pytest.raises(InvalidConfig, match="is not NAME=VALUE"):
            parse_headers([bad])


def test_offsets_that_nobody_knows_are_not_shown() -> None:
    tally = Tally()
    outcome = BatchOutcome(TopicPartition("t", 0))
    outcome.stored(0, 2, base_offset=-1)
    tally.handed_over(BatchDelivery([outcome]), records=2, size_bytes=2)
    tally.update()
    assert (tally.acknowledged, tally.offsets) == (2, {})
