import asyncio
import sqlite3
import tempfile
from pathlib import Path

from opwire import CallError, OperationRegistry

from tables import from_sqlite


async def main(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(
        "CREATE TABLE articles (name, price); INSERT INTO articles VALUES ('tea', 4.5)"
    )
    connection.close()

    registry = OperationRegistry()
    registry.follow(from_sqlite(path, namespace="db"))
    print((await registry.execute("db.articles", {"name": "tea"})).data)
    try:
        await registry.execute("db.articles", {"nmae": "tea"})
    except CallError as error:
        print(error)


with tempfile.TemporaryDirectory() as folder:
    asyncio.run(main(Path(folder) / "shop.db"))
