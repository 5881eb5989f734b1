"""What a composed task costs an agent: `python -m benchmarks.agent_tokens`.

The task is to list the open issues of a repository and to comment on those without a label, over GitHub's document. A
script plays the model, without mistakes: the figures are the least that each way costs. Every request to a model
contains all that was said before, so a result that comes early is read again in every round trip.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from opwire import Context, Handler, OperationRegistry, OperationSpec
from opwire.agents import AnthropicTools, anthropic_tools
from opwire.agents.code_mode import code_mode
from opwire.agents.search_mode import search_mode
from opwire.model.envelope import local_envelope
from opwire.openapi.client import from_openapi

DOCUMENT = Path(__file__).parents[2] / "shared" / "openapi" / "github_api.json"
ISSUES, UNLABELLED = 30, 10
LIST, COMMENT = "github.issues/list-for-repo", "github.issues/create-comment"
REPOSITORY = {"owner": "octocat", "repo": "hello"}
Call = tuple[str, dict[str, Any]]

PROGRAM = """
import asyncio
issues = await github_issues_list_for_repo(owner="octocat", repo="hello")
bare = [issue["number"] for issue in issues if not issue["labels"]]
await asyncio.gather(*(
    github_issues_create_comment(owner="octocat", repo="hello", issue_number=number, body="Please add a label.")
    for number in bare
))
bare
"""


def answered(document: dict[str, Any]) -> Any:
    """An interceptor that answers with the document's own example, as a repository of 30 issues would."""
    paths = document["paths"]
    listed = paths["/repos/{owner}/{repo}/issues"]["get"]["responses"]["200"]["content"]["application/json"]
    reference = next(iter(listed["examples"].values()))["$ref"].rpartition("/")[2]
    example = document["components"]["examples"][reference]["value"][0]
    issues = [
        {**example, "number": n, "labels": example["labels"] if n % (ISSUES // UNLABELLED) else []}
        for n in range(ISSUES)
    ]

    def intercept(spec: OperationSpec, handler: Handler) -> Handler:
        async def call(input: Any, context: Context) -> Any:
            return local_envelope(issues if spec.id == LIST else {"id": 1}, operation_id=spec.id)

        return call if spec.id in (LIST, COMMENT) else handler

    return intercept


def tokens(value: Any) -> int:
    """Estimate the tokens of JSON."""
    return len(json.dumps(value)) // 4


async def play(tools: AnthropicTools, rounds: list[list[Call]]) -> tuple[int, int]:
    """Return the number of requests to the model and the tokens of all of them."""
    said = tokens(tools.definitions)
    read = 0
    for calls in rounds:
        read += said
        for name, input in calls:
            result = await tools.handle({"id": "toolu_1", "name": name, "input": input})
            assert "is_error" not in result, result
            said += tokens({"type": "tool_use", "name": name, "input": input}) + tokens(result)
    return len(rounds) + 1, read + said


async def main() -> None:
    document = json.loads(DOCUMENT.read_bytes())
    registry = OperationRegistry()
    registry.register_all(from_openapi(document, namespace="github", base_url="http://127.0.0.1:9"))
    registry.use(answered(document))
    comments = [{**REPOSITORY, "issue_number": n, "body": "Please add a label."} for n in range(0, ISSUES, 3)]
    find: Call = ("tools_search", {"query": "list issues of a repository and comment on an issue", "limit": 10})
    ways: dict[str, tuple[AnthropicTools, list[list[Call]]]] = {
        "all 1,223 tools": (
            anthropic_tools(registry),
            [
                [("github_issues_list-for-repo", REPOSITORY)],
                [("github_issues_create-comment", each) for each in comments],
            ],
        ),
        "search mode": (
            anthropic_tools(search_mode(registry)),
            [
                [find],
                [("tools_call", {"operation": LIST, "input": REPOSITORY})],
                [("tools_call", {"operation": COMMENT, "input": each}) for each in comments],
            ],
        ),
        "code mode": (anthropic_tools(code_mode(registry)), [[find], [("tools_run", {"code": PROGRAM})]]),
    }
    print(f"{'comment on 10 of 30 issues':<30}{'requests':>10}{'tokens':>12}")
    for name, (tools, rounds) in ways.items():
        requests, read = await play(tools, rounds)
        print(f"{name:<30}{requests:>10}{read:>12,}")


if __name__ == "__main__":
    if not DOCUMENT.exists():
        sys.exit(f"{DOCUMENT.name} is missing: it belongs into ../shared/openapi")
    asyncio.run(main())
