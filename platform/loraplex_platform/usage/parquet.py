"""Parquet files, written row group by row group; needs the extra `export`."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MONEY = pa.decimal128(38, 20)
TYPES = {"text": pa.string(), "integer": pa.int64(), "number": MONEY, "seconds": pa.float64()}


class ParquetFile:
    """Columns by name and kind: text, integer, number (exact), seconds."""

    def __init__(self, path: Path, columns: Mapping[str, str]) -> None:
        self.size = 0
        self._columns = columns
        self._schema = pa.schema([(name, TYPES[kind]) for name, kind in columns.items()])
        self._writer = pq.ParquetWriter(path, self._schema)

    def __enter__(self) -> "ParquetFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._writer.close()

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        arrays = [
            pa.array([_cell(row[name], kind) for row in rows], TYPES[kind])
            for name, kind in self._columns.items()
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))


def _cell(value: object, kind: str) -> object:
    return Decimal(str(value)) if kind == "number" and value is not None else value
