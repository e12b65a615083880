"""Columns as users have them, made into the columns of a body.

Accepts what can be turned into ours by Arrow alone, without touching single records, and refuses
the rest: TypeError for a type, ValueError for values. Invariant: what is returned has exactly the
type of `body.body_schema` and no nulls where that has none.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.record.body import HEADER_KEY, HEADER_VALUE, HEADERS_TYPE, Array

Column: TypeAlias = "Array | pa.ChunkedArray[Any]"


def binary_column(what: str, column: Column) -> Array:
    """Return keys or values as binary; strings and the like are cast, other types refused."""
    array_ = _whole(column)
    if array_.type == pa.binary():
        return array_
    if not any(is_kind(array_.type) for is_kind in _BINARY_KINDS):
        raise TypeError(f"{what} are binary or string, not {array_.type}")
    return array_.cast(pa.binary())


def timestamp_column(timestamps: Column | int, count: int) -> Array:
    """Return timestamps as int64 milliseconds; one int stands for `count` equal ones."""
    if isinstance(timestamps, int):
        return pa.repeat(pa.scalar(timestamps, pa.int64()), count)
    array_ = _whole(timestamps)
    if pa.types.is_timestamp(array_.type):
        # A cast that would drop fractions of a millisecond raises ArrowInvalid, a ValueError.
        array_ = array_.cast(pa.timestamp("ms")).cast(pa.int64())
    if array_.type != pa.int64():
        raise TypeError(f"timestamps are int64 milliseconds, not {array_.type}")
    if array_.null_count:
        raise ValueError("timestamps must not be null")
    return array_


def headers_column(what: str, column: Column) -> Array | None:
    """Return headers with exactly our type, or None where no row has any; a null list is empty."""
    array_ = _whole(column)
    kind = array_.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not (
        pa.types.is_struct(kind.value_type) and kind.value_type.num_fields == 2
    ):
        raise TypeError(f"{what} are list<struct<key: string, value: binary>>, not {kind}")
    entries = pc.list_flatten(array_)
    if not len(entries):
        return None
    keys: Array = pc.struct_field(entries, [0])
    if entries.null_count or keys.null_count:
        raise ValueError(f"{what} with a null entry or a null key")
    if not (pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)):
        raise TypeError(f"keys of {what} are strings, not {keys.type}")
    lengths = cast("Array", pc.list_value_length(array_)).cast(pa.int32()).fill_null(0)
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    values = binary_column(f"values of {what}", pc.struct_field(entries, [1]))
    return headers_array(offsets, keys.cast(pa.utf8()), values)


def headers_array(offsets: Array, keys: Array, values: Array) -> Array:
    """Join the parts: row r has the entries from `offsets[r]` to `offsets[r + 1]`."""
    entries = pa.StructArray.from_arrays([keys, values], fields=[HEADER_KEY, HEADER_VALUE])
    lists: Array = pa.ListArray.from_arrays(
        cast("pa.Int32Array", offsets), entries, type=HEADERS_TYPE
    )
    return lists


def has_entries(headers: Array) -> bool:
    """Whether any row has a header."""
    return len(pc.list_flatten(headers)) > 0


_BINARY_KINDS: Final = (
    pa.types.is_null,
    pa.types.is_string,
    pa.types.is_large_binary,
    pa.types.is_large_string,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
    pa.types.is_string_view,
)


def _whole(column: Column) -> Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
