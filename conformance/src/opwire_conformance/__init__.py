"""Contract suites for implementers: check that a transport or a journal keeps its promises."""

from opwire_conformance.harness import Connect
from opwire_conformance.journal import JOURNAL_CONTRACT, check_journal
from opwire_conformance.transport import LIMIT_CONTRACT, TRANSPORT_CONTRACT, check_transport

__all__ = ["JOURNAL_CONTRACT", "LIMIT_CONTRACT", "TRANSPORT_CONTRACT", "Connect", "check_journal", "check_transport"]
