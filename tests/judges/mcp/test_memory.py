"""`from_mcp` and the reference server that remembers."""

from pathlib import Path

from opwire import MCPResponseMeta, OperationRegistry
from opwire.mcp.client import StdioServer, from_mcp
from tests.judges.programs import npm_program

ADA = {"name": "Ada", "entityType": "person", "observations": ["wrote programs"]}
ENGINE = {"name": "Analytical Engine", "entityType": "machine", "observations": []}
FOR = {"from": "Ada", "to": "Analytical Engine", "relationType": "wrote programs for"}


async def test_what_was_told_is_remembered_also_by_the_next_process(tmp_path: Path) -> None:
    """The reference server for memory keeps what it was told, also for the next process."""
    program, *arguments = npm_program("mcp-server-memory")
    server = StdioServer(program, tuple(arguments), env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")})
    registry = OperationRegistry()
    async with from_mcp(server, namespace="memory") as source:
        registry.register_all(source)
        created = await registry.execute("memory.create_entities", {"entities": [ADA, ENGINE]})
        assert created.data == {"entities": [ADA, ENGINE]}
        await registry.execute("memory.create_relations", {"relations": [FOR]})
        unknown = await registry.execute(
            "memory.add_observations", {"observations": [{"entityName": "Nobody", "contents": ["was here"]}]}
        )
        assert isinstance(unknown.meta, MCPResponseMeta)
        assert unknown.meta.is_error
    async with from_mcp(server, namespace="again") as source:
        registry.register_all(source)
        graph = await registry.execute("again.read_graph", {})
        assert graph.data == {"entities": [ADA, ENGINE], "relations": [FOR]}
        found = await registry.execute("again.search_nodes", {"query": "programs"})
        assert found.data["entities"] == [ADA]
