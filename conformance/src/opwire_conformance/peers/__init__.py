"""A conformance kit: checks the promises of the protocol against any peer, in any language.

    report = await check_peer("ws://127.0.0.1:8700", token="…")  # a hub, or a server on redis:// or nats://
    report = await check_connecting_peer("ws://127.0.0.1:8700")  # a spoke or a caller, which connects to the kit
    for result in report.broken:
    print(result.promise, "|", result.section, "|", result.message)

It speaks the protocol by itself and uses none of opwire's sessions. Every wait is bounded. `conformance_operations` are
those that a server needs to have all its promises checked.
"""

from opwire_conformance.peers.run import (
    ConformanceReport,
    ConformanceResult,
    check_broker,
    check_connecting_peer,
    check_hub,
    check_peer,
)
from opwire_conformance.peers.server import conformance_operations

__all__ = [
    "ConformanceReport",
    "ConformanceResult",
    "check_broker",
    "check_connecting_peer",
    "check_hub",
    "check_peer",
    "conformance_operations",
]
