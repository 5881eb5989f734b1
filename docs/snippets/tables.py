"""An adapter: every table of an SQLite database is a query that finds rows."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from opwire import CallError, Context, Operation, OperationSpec, Schema


def from_sqlite(path: Path, *, namespace: str) -> "SQLiteSource":
    """The tables of a database, as operations."""
    return SQLiteSource(path, namespace)


class SQLiteSource:
    """A source for `registry.follow`: its operations, and notifications of changes."""

    def __init__(self, path: Path, namespace: str) -> None:
        self._path = path
        self._namespace = namespace

    def __iter__(self) -> Iterator[Operation]:
        for (table,) in self._rows(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ):
            columns = [
                row[1] for row in self._rows(f"PRAGMA table_info({quoted(table)})")
            ]
            yield self._operation(table, columns)

    def on_change(self, listener: Callable[[Any], None]) -> Callable[[], None]:
        """Tables stay as they are: nothing is ever told."""
        return lambda: None

    def _operation(self, table: str, columns: list[str]) -> Operation:
        fields: dict[str, Any] = {
            column: {"type": ["string", "number", "null"]} for column in columns
        }
        row: dict[str, Any] = {"type": "object", "properties": fields}
        spec = OperationSpec(
            namespace=self._namespace,
            name=table,
            description=f"Rows of {table}, by the values of their columns.",
            input_schema=Schema({**row, "additionalProperties": False}),
            output_schema=Schema({"type": "array", "items": row}),
        )

        def find(input: dict[str, Any], context: Context) -> list[dict[str, Any]]:
            # Input has passed its schema, so every column in it exists.
            wanted = (
                " AND ".join(f"{quoted(column)} IS ?" for column in input) or "TRUE"
            )
            found = self._rows(
                f"SELECT * FROM {quoted(table)} WHERE {wanted}", *input.values()
            )
            return [dict(zip(columns, row, strict=True)) for row in found]

        return Operation(spec, find)

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self._path)
        try:
            return connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:  # mapped here, at the call that raises it
            raise CallError(
                "EXECUTION_ERROR", f"{self._path.name} cannot be read: {error}"
            ) from error
        finally:
            connection.close()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
