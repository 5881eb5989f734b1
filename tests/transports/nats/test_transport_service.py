"""Responses to the tools of NATS. The exchange over a server is in test_broker_connection.py."""

import json
from datetime import datetime
from typing import Any

import pytest
from nats.micro.service import ServiceInfo as TheirInfo
from nats.micro.service import ServiceStats as TheirStats

from opwire.protocol.description import Statistics
from opwire.transports.nats.transport import Subjects, service_response, service_subjects
from tests.transports.nats.ends import description

SUBJECTS = Subjects("opwire")
SHOP = description({"shop.order/new": Statistics(), "shop.list": Statistics(4, 1, "no", 0.5)})


def told(subject: str) -> dict[str, Any]:
    text = service_response(subject, SHOP, SUBJECTS)
    assert text is not None
    return json.loads(text)


def test_a_ping_is_answered_with_the_peers_that_are_there() -> None:
    ping: dict[str, Any] = {"type": "io.nats.micro.v1.ping_response", "name": "shop", "id": "7f", "version": "1.2.3"}
    ping["metadata"] = {"status": "serving"}
    assert told("$SRV.PING") == told("$SRV.PING.shop") == told("$SRV.PING.shop.7f") == ping


def test_info_names_the_operations_in_the_form_that_nats_own_client_reads() -> None:
    info = TheirInfo.from_dict(told("$SRV.INFO"))
    assert [(each.name, each.subject, each.queue_group) for each in info.endpoints] == [
        ("shop_order_new", "opwire.call.shop.order%2Fnew", "q"),
        ("shop_list", "opwire.call.shop.list", "q"),
    ]
    assert told("$SRV.INFO")["endpoints"][0]["metadata"] == {"operation": "shop.order/new"}


def test_stats_count_in_the_form_that_nats_own_client_reads() -> None:
    stats = TheirStats.from_dict(told("$SRV.STATS.shop"))
    assert stats.started == datetime(2026, 1, 2, 3, 4, 5, 678_000)  # they mean UTC
    idle, busy = stats.endpoints
    assert (idle.num_requests, idle.average_processing_time) == (0, 0)
    assert (busy.num_requests, busy.num_errors, busy.last_error) == (4, 1, "no")
    assert (busy.processing_time, busy.average_processing_time) == (500_000_000, 125_000_000)


@pytest.mark.parametrize("subject", ["$SRV", "$SRV.SCHEMA", "other"])
def test_other_questions_get_no_answer(subject: str) -> None:
    assert service_response(subject, SHOP, SUBJECTS) is None


def test_questions_come_to_all_to_those_of_a_name_and_to_one() -> None:
    assert service_subjects(SHOP)[:3] == ["$SRV.PING", "$SRV.PING.shop", "$SRV.PING.shop.7f"]
    assert len(service_subjects(SHOP)) == 9
