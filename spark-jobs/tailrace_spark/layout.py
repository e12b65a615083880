"""Which columns a query has: what Spark asks for, checked before anything is read.

Planners of Spark come here, each in a process that starts for it: nothing of Arrow is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql.types import StructType

SPARK_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": "array<struct<key: string, value: binary>>",
}
"""All columns, in the order of the schema, as Spark writes their types."""

HEADERS: Final = "headers"

COLUMNS: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""What a sink takes, and the Spark types of each; only `value` must be there."""


class WrongSchema(ValueError):
    """A schema that the source cannot fill."""


class WrongRows(ValueError):
    """Rows that cannot be written as they are; the message names the column."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of one query: their names in order, and which of them may not be null."""

    names: tuple[str, ...]
    required: frozenset[str] = frozenset()

    def check(self) -> Layout:
        """WrongSchema names a column that records do not have."""
        unknown = [each for each in self.names if each not in SPARK_TYPES]
        if unknown or not self.names:
            raise WrongSchema(
                f"schema: a record has no column {', '.join(unknown) or '(none given)'}; it has "
                + ", ".join(f"{name} {kind}" for name, kind in SPARK_TYPES.items())
            )
        return self


def default_layout(*, headers: bool) -> Layout:
    return Layout(tuple(name for name in SPARK_TYPES if headers or name != HEADERS))


def layout_of(schema: StructType) -> Layout:
    """The columns that a query wants; WrongSchema says which of them cannot be."""
    layout = Layout(
        tuple(each.name for each in schema.fields),
        frozenset(each.name for each in schema.fields if not each.nullable),
    ).check()
    for each in schema.fields:
        kind = each.dataType.simpleString()
        if kind != SPARK_TYPES[each.name].replace(": ", ":").replace(", ", ","):
            raise WrongSchema(
                f"schema: column {each.name} is {SPARK_TYPES[each.name]}, not {kind}; "
                "cast it in the query"
            )
    if layout.required & {"key", "value", HEADERS}:
        raise WrongSchema("schema: key, value and headers may be null")
    return layout
