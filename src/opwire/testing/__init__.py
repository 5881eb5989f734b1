"""Contract suites for implementers: check that a transport or a journal keeps its promises."""

from opwire.testing.contract import LIMIT_CONTRACT, TRANSPORT_CONTRACT, check_transport
from opwire.testing.harness import Connect
from opwire.testing.journal import JOURNAL_CONTRACT, check_journal

__all__ = ["JOURNAL_CONTRACT", "LIMIT_CONTRACT", "TRANSPORT_CONTRACT", "Connect", "check_journal", "check_transport"]
