"""Bad bytes of every kind end in CorruptBatch: flips, cuts, noise, lies with good checksums."""

from __future__ import annotations

import random
from struct import pack_into

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuzz.batches import resealed, reshaped, samples
from fuzz.fuzz_batch import CORPUS, INTERESTING, exercise
from tailrace.errors import CorruptBatch
from tailrace.record.header import split
from tailrace.record.view import BatchView

SAMPLES = samples()
names = st.sampled_from(sorted(SAMPLES))


def read(data: bytes) -> None:
    view = BatchView(data)
    view.verify()
    list(view.records())


@pytest.mark.parametrize("name", SAMPLES)
def test_every_flip_of_every_byte_is_found(name: str) -> None:
    batch = SAMPLES[name]
    rng = random.Random(name)
    for at in range(len(batch)):
        # Each single bit, and some other change of the whole byte.
        for mask in (*(1 << bit for bit in range(8)), rng.randrange(1, 256)):
            damaged = bytearray(batch)
            damaged[at] ^= mask
            with pytest.raises(CorruptBatch):
                read(bytes(damaged))


@pytest.mark.parametrize("name", SAMPLES)
def test_every_cut_is_found(name: str) -> None:
    batch = SAMPLES[name]
    for end in range(len(batch)):
        with pytest.raises(CorruptBatch):
            read(batch[:end])
        assert list(split(batch[:end], partial_tail=True)) == []


@given(st.binary(max_size=600))
@settings(max_examples=500)
@example(bytes(4096))
@example(b"\xff" * 4096)
def test_noise_is_no_batch(noise: bytes) -> None:
    with pytest.raises(CorruptBatch):
        read(noise)
    exercise(noise)


@given(names, st.data())
@settings(max_examples=800)
def test_a_number_changed_anywhere_with_good_checksums(name: str, data: st.DataObject) -> None:
    batch = bytearray(SAMPLES[name])
    for _ in range(data.draw(st.integers(1, 3))):
        size, code = data.draw(st.sampled_from([(1, "b"), (2, "<h"), (4, "<i"), (8, "<q")]))
        at = data.draw(st.integers(0, (len(batch) - size) // size)) * size
        top = 2 ** (8 * size - 1)
        number = data.draw(st.sampled_from(INTERESTING) | st.integers(-top, top - 1))
        pack_into(code, batch, at, (number + top) % (2 * top) - top)
    exercise(bytes(batch))


@given(names, names, st.data())
@settings(max_examples=500)
def test_pieces_of_batches_joined(first: str, second: str, data: st.DataObject) -> None:
    one, other = SAMPLES[first], SAMPLES[second]
    head = one[: data.draw(st.integers(0, len(one)))]
    tail = other[data.draw(st.integers(0, len(other))) :]
    exercise(head + data.draw(st.binary(max_size=16)) + tail)


@pytest.mark.parametrize("name", SAMPLES)
def test_mending_leaves_good_batches_alone(name: str) -> None:
    """Else the tests above would test less than they say."""
    batch = SAMPLES[name]
    assert resealed(batch) == batch
    if name.endswith("none"):
        assert reshaped(batch) == batch
    assert exercise(batch) >= 1


@pytest.mark.parametrize("name", sorted(path.name for path in CORPUS.iterdir()))
def test_the_corpus_of_the_fuzzer(name: str) -> None:
    exercise((CORPUS / name).read_bytes())
