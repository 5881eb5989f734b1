"""What NATS' own tools ask every service (`nats service ls`, `info`, `stats`), and the answers. No I/O.

The questions are `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`: to all services, to those of one name, or to one of them
(NATS ADR-32). An operation is an endpoint of the service.
"""

import re
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Struct

from opwire.call import Description
from opwire.transports.nats.subjects import Subjects

_VERBS = ("PING", "INFO", "STATS")
_NANOSECONDS = 1_000_000_000
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")


class Endpoint(Struct, frozen=True, kw_only=True):
    """One operation, where it is asked for, and what it has done since the service was started."""

    operation_id: str
    subject: str
    queue_group: str = "q"
    requests: int = 0
    errors: int = 0
    last_error: str = ""
    seconds: float = 0.0
    """How long all the requests together took."""


class ServiceInfo(Struct, frozen=True, kw_only=True):
    """One serving end. `name` is shared by all that serve the same, `id` is its own, `version` a semantic one."""

    name: str
    id: str
    version: str
    started: int
    """In epoch milliseconds."""
    description: str = ""
    metadata: dict[str, str] = {}
    endpoints: list[Endpoint] = []


def service_info(described: Description, subjects: Subjects) -> ServiceInfo:
    """What a serving end says about itself, in the words of NATS."""
    server = described.server
    return ServiceInfo(
        name=_NOT_IN_NAMES.sub("_", server.name),
        id=server.id,
        version=server.version,
        started=server.started,
        metadata={"status": server.status},
        endpoints=[
            Endpoint(
                operation_id=each.id,
                subject=subjects.call(each.id),
                queue_group=subjects.queue,
                requests=each.statistics.calls,
                errors=each.statistics.errors,
                last_error=each.statistics.last_error or "",
                seconds=each.statistics.seconds,
            )
            for each in described.operations
        ],
    )


def subjects(name: str, id: str) -> list[str]:
    """Where the questions to one serving end come."""
    return [f"$SRV.{verb}{to}" for verb in _VERBS for to in ("", f".{name}", f".{name}.{id}")]


def answer(subject: str, info: ServiceInfo) -> bytes | None:
    """The answer to a question, as JSON; None for what is no question."""
    verb = subject.split(".")[1:2]
    what = {"name": info.name, "id": info.id, "version": info.version, "metadata": info.metadata}
    match verb:
        case ["PING"]:
            pass
        case ["INFO"]:
            what |= {"description": info.description, "endpoints": [_described(each) for each in info.endpoints]}
        case ["STATS"]:
            what |= {"started": _time(info.started), "endpoints": [_counted(each) for each in info.endpoints]}
        case _:
            return None
    return msgspec.json.encode({"type": f"io.nats.micro.v1.{verb[0].lower()}_response", **what})


def _described(endpoint: Endpoint) -> dict[str, Any]:
    return {**_named(endpoint), "metadata": {"operation": endpoint.operation_id}}


def _counted(endpoint: Endpoint) -> dict[str, Any]:
    whole = round(endpoint.seconds * _NANOSECONDS)
    return {
        **_named(endpoint),
        "num_requests": endpoint.requests,
        "num_errors": endpoint.errors,
        "last_error": endpoint.last_error,
        "processing_time": whole,
        "average_processing_time": whole // endpoint.requests if endpoint.requests else 0,
        "data": {"operation": endpoint.operation_id},
    }


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _named(endpoint: Endpoint) -> dict[str, Any]:
    name = _NOT_IN_NAMES.sub("_", endpoint.operation_id)  # the tools know no other characters
    return {"name": name, "subject": endpoint.subject, "queue_group": endpoint.queue_group}
