"""Conversations with broken frames: a few seeds of the fuzzer, and those that once did harm."""

from __future__ import annotations

import random

import pytest

from fuzz.fuzz_http2 import FAILED, Speaker, exercise


@pytest.mark.parametrize("seed", [*range(40), *FAILED])
def test_broken_frames_do_no_harm(seed: int) -> None:
    exercise(seed)


def test_a_seed_says_the_same_each_time() -> None:
    said = [Speaker(random.Random(7), is_server=True).talk() for _ in range(2)]
    assert said[0] == said[1]
    assert said[0] != Speaker(random.Random(8), is_server=True).talk()
