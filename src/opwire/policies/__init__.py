"""Policies: interceptors for audit logs, approval, limits, circuit breakers and budgets.

    registry.use(AuditLog("audit.jsonl"))
    registry.use(RateLimit(10, per=1.0, by=("identity",)))
    registry.use(Approval(ask, include=["type:mutation"]))

Each applies to the operations that `include` and `exclude` select: ids or tags with `*`, namespaces, `type:mutation`,
`tag:NAME`. Policies run in the order in which they are installed, the first outermost: an audit log that is installed
first also has the calls that the others reject. `opwire.policies.cache` has an interceptor that caches results.
"""

from opwire.policies.approval import Approval, ApprovalChange, ApprovalQueue, ApprovalRequest, ask_caller
from opwire.policies.audit import AuditLog
from opwire.policies.limits import CallBudget, CircuitBreaker, ConcurrencyLimit, RateLimit
from opwire.policies.policy import Policy, PolicyCall, PolicyOptions

__all__ = [
    "Approval",
    "ApprovalChange",
    "ApprovalQueue",
    "ApprovalRequest",
    "AuditLog",
    "CallBudget",
    "CircuitBreaker",
    "ConcurrencyLimit",
    "Policy",
    "PolicyCall",
    "PolicyOptions",
    "RateLimit",
    "ask_caller",
]
