"""Rounds on the disk: what a run that was cut off still has."""

from __future__ import annotations

from pathlib import Path

from bench.peers.journal import FILE, Journal, Turn, complete_rounds, figures_of, read_turns


def turn(contender: str, number: int, value: float = 1.0, *, failed: str = "") -> Turn:
    figures = {} if failed else {"p50_ms": value}
    return Turn("monday", "idle", contender, number, 2.0, "1 1 1", figures, failed)


def test_a_journal_is_continued_under_the_name_of_its_last_run(tmp_path: Path) -> None:
    path = tmp_path / FILE
    first = Journal(path, "sunday")
    first.note(Turn("sunday", "idle", "a", 1, 2.0, "1 1 1", {"p50_ms": 9.0}))
    second = Journal(path, "monday")
    assert second.of("idle") == []
    second.note(turn("a", 1, 1 / 3))
    again = Journal(path, "tuesday", is_resumed=True)
    assert again.run == "monday"
    assert [each.figures for each in again.of("idle")] == [{"p50_ms": 0.333333}]
    assert again.of("other") == []


def test_nothing_to_continue_is_a_new_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE, "monday", is_resumed=True)
    assert (journal.run, journal.of("idle")) == ("monday", [])


def test_half_a_line_is_no_turn() -> None:
    whole = turn("a", 1).to_json()
    assert read_turns(f"{whole}\n{whole[:20]}") == [turn("a", 1)]
    assert read_turns('{"figure": "of something else"}\n') == []


def test_a_round_that_was_cut_is_done_again_by_all() -> None:
    turns = [turn("a", 1, 1.0), turn("b", 1, 2.0), turn("a", 2, 3.0)]
    assert complete_rounds(turns, ["a", "b"]) == {"a": [{"p50_ms": 1.0}], "b": [{"p50_ms": 2.0}]}
    turns.append(turn("b", 2, failed="it hung"))
    assert len(complete_rounds(turns, ["a", "b"])["a"]) == 1
    turns += [turn("a", 2, 4.0), turn("b", 2, 5.0)]
    assert complete_rounds(turns, ["a", "b"])["a"] == [{"p50_ms": 1.0}, {"p50_ms": 4.0}]
    assert complete_rounds([], ["a"]) == {"a": []}


def test_figures_are_kept_of_rounds_that_others_did_not_finish() -> None:
    turns = [turn("a", 2, 3.0), turn("a", 1, 1.0), turn("b", 1, failed="it hung")]
    assert figures_of(turns) == {"a": {"p50_ms": [1.0, 3.0]}}
