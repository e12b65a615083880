"""Fuzz the readers of record batches.

`PYTHONPATH=services:tests .venv/bin/python tests/fuzz/fuzz_batch.py --seconds 60`

Each input is read as it is, with its checksums made to match, and with its sizes made to match
too, so that mutations reach every layer. Reading must end in records or in CorruptBatch, within
the memory that the format document states; what was read must survive being written again.
Inputs start from tests/fuzz/corpus. One that fails is left in --findings (default: the folder of
temporary files): mend the bug, then move it into the corpus, which the unit tests replay.
"""

from __future__ import annotations

import argparse
import inspect
import random
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from struct import pack_into

import pyarrow as pa

from fuzz.batches import resealed, reshaped
from tailrace.errors import CorruptBatch, InvariantViolation
from tailrace.record import body, codec, header, view
from tailrace.record.build import batch_from_columns, compacted_batch
from tailrace.record.header import split
from tailrace.record.view import BatchView, Record

CORPUS = Path(__file__).parent / "corpus"
BODY_LIMIT_BYTES = 1 << 20
# Body, a second copy of it where a batch is written again, and what a few thousand rows take.
ARROW_MEMORY_BYTES_MAX = 8 << 20
INPUT_BYTES_MAX = 4096
INTERESTING = (0, 1, -1, 2, 7, 8, 64, 127, 128, 255, 256, 2**15, 2**31 - 1, -(2**31), 2**63 - 1)


def exercise(data: bytes) -> int:
    """Read the input in all its forms; return how many of them were good batches."""
    forms = {data, resealed(data), reshaped(data)}
    return sum(_read(form) for form in sorted(forms))


def _read(data: bytes) -> bool:
    with suppress(CorruptBatch):
        list(split(data, partial_tail=True))
    # The peak of the whole process: what came before counts up to where it was.
    peak_bytes = pa.default_memory_pool().max_memory() or 0
    try:
        batch = BatchView(data)
    except CorruptBatch:
        return False
    try:
        batch.verify()
        is_whole = True
    except CorruptBatch:
        is_whole = False
    # Decoding must be safe even where nobody checked the CRC.
    try:
        records = list(batch.records(BODY_LIMIT_BYTES))
    except CorruptBatch:
        return False
    _check(batch, records)
    if (pa.default_memory_pool().max_memory() or 0) > max(peak_bytes, ARROW_MEMORY_BYTES_MAX):
        raise InvariantViolation("reading took more memory than it may")
    return is_whole


def _check(batch: BatchView, records: list[Record]) -> None:
    fields = batch.header
    offsets = [record.offset for record in records]
    if len(records) != fields.record_count or batch.offsets().to_pylist() != offsets:
        raise InvariantViolation("records, record count and offsets do not agree")
    if offsets != sorted(set(offsets)) or any(
        not fields.base_offset <= offset <= fields.last_offset for offset in offsets
    ):
        raise InvariantViolation("offsets are not in order or outside of the batch")
    columns = batch.record_batch()
    columns.validate(full=True)
    if fields.is_compacted:
        again = compacted_batch(fields, columns, columns.column("offset_delta"))
    elif min(record.timestamp_ms for record in records) >= -1:
        again = batch_from_columns(
            columns.column("key"),
            columns.column("value"),
            columns.column("timestamp"),
            columns.column("headers") if fields.has_headers else None,
            base_offset=fields.base_offset,
        )
    else:
        return
    if list(BatchView(again).records()) != records:
        raise InvariantViolation("a batch that was written again is another")


def _mutated(data: bytes, max_size: int, seed: int) -> bytes:
    """Overwrite a few aligned numbers with interesting ones: most of a batch is such numbers."""
    import atheris  # noqa: PLC0415 - only fuzzing needs it, and it is slow to import.

    rng = random.Random(seed)
    if rng.random() < 0.3 or len(data) < 16:
        return bytes(atheris.Mutate(data, max_size))
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        size, code = rng.choice(((1, "b"), (2, "<h"), (4, "<i"), (8, "<q")))
        at = rng.randrange(0, len(out) - size + 1) // size * size
        top = 2 ** (8 * size - 1)
        number = rng.choice((*INTERESTING, len(out), len(out) - at, rng.randrange(-64, 64)))
        if rng.random() < 0.4:
            number += int.from_bytes(out[at : at + size], "little", signed=True)
        pack_into(code, out, at, (number + top) % (2 * top) - top)
    return bytes(out)


def main() -> None:
    """Run libFuzzer over the corpus for a while."""
    import atheris  # noqa: PLC0415 - see above.

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--findings", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    for owner in (codec, header, body, view, BatchView):
        for function in filter(inspect.isfunction, vars(owner).values()):
            if function.__module__.startswith("tailrace.record"):
                atheris.instrument_func(function)
    with tempfile.TemporaryDirectory() as grown:
        arguments = [
            sys.argv[0],
            grown,
            str(CORPUS),
            f"-max_total_time={options.seconds}",
            f"-artifact_prefix={options.findings}/found-",
            f"-max_len={INPUT_BYTES_MAX}",
            "-timeout=5",
            "-rss_limit_mb=1024",
        ]
        atheris.Setup(arguments, lambda data: exercise(bytes(data)), custom_mutator=_mutated)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
