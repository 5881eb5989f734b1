"""Projects to load: a folder with an `opwire.toml` and what it names."""

import sys
from pathlib import Path

from opwire.config import Config, load_config

SHOP = """
from opwire import OperationRegistry

registry = OperationRegistry()


@registry.query("shop.price")
async def price(article: str) -> int:
    return {price}
"""

DOCUMENT = """
openapi: 3.1.0
info: {title: Pets, version: "1"}
paths:
  /pets:
    get:
      operationId: list_pets
      security: [{key: []}]
      responses: {"200": {description: ok, content: {application/json: {schema: {type: array}}}}}
components:
  securitySchemes:
    key: {type: apiKey, in: header, name: X-API-Key}
"""

TIME_SERVER = f"""
command = "{sys.executable}"
args = ["-m", "mcp_server_time", "--local-timezone", "UTC"]
"""


TINY = f"""
command = "{sys.executable}"
args = ["-I", "-S", "{Path(__file__).with_name("tiny_server.py")}"]
"""
"""An MCP server whose tool `where` tells its folder, process and environment."""

HANGING = f"""
command = "{sys.executable}"
args = ["-I", "-S", "-c", "import sys; sys.stdin.read()"]
"""
"""An MCP server that says nothing, until its input is closed."""


def shop(price: int = 3) -> str:
    """The text of a module with one operation, `shop.price`."""
    return SHOP.replace("{price}", str(price))


def write(folder: Path, **files: str) -> None:
    """Write files; `_` in their names is for the dot before the suffix: `shop_py`."""
    for name, text in files.items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(text, encoding="utf-8")


def project(folder: Path, toml: str, **files: str) -> Config:
    """A project of these files, its configuration read."""
    write(folder, opwire_toml=toml, **files)
    return load_config(folder / "opwire.toml")
