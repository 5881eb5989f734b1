"""Identities over a broker: what leaves is signed, what arrives is verified."""

from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from opwire.auth import Authority, Grant, SignedRequests, Signer, SigningKey, Verifier
from opwire.auth.signed import HeldCredentials
from opwire.errors import CallError, ErrorCode
from opwire.model.access import AccessControl
from opwire.model.context import Context
from opwire.model.identity import Identity
from opwire.protocol import CallHandler, CallRequested, PendingRequestMap, decode_event, encode_event
from opwire.registry import OperationRegistry
from opwire.transports.broker import BrokerTransport
from tests.transports.broker_in_memory import MemoryBroker, MemoryBrokerConnection

AUTHORITY = Authority.generate()
ANN, EVE, SHOP = Identity(id="ann", scopes=("orders",)), Identity(id="eve"), Identity(id="shop")


def signer(identity: Identity, *, delegates: bool = False) -> Signer:
    key = SigningKey.generate()
    certificate = AUTHORITY.issue(Grant(identity, delegates=delegates), key.public_pem, lifetime=600)
    return Signer(certificate, key)


def holder(
    identity: Identity, *, delegates: bool = False, credentials: HeldCredentials | None = None
) -> SignedRequests:
    return SignedRequests(
        signer(identity, delegates=delegates), Verifier(AUTHORITY.public_pem), held_credentials=credentials
    )


def request(id: str = "r", input: Any = None, *, operation_id: str = "math.add", **fields: Any) -> CallRequested:
    return CallRequested(request_id=id, operation_id=operation_id, input=input, timeout_ms=5000, **fields)


def travelled(event: CallRequested) -> CallRequested:
    arrived = decode_event(encode_event(event))
    assert isinstance(arrived, CallRequested)
    return arrived


def test_a_request_leaves_with_a_credential_and_arrives_with_the_identity_that_it_proves() -> None:
    sent = holder(ANN).leaving(request(identity=EVE))
    assert sent.identity is None
    served = holder(SHOP).arriving(travelled(sent))
    assert (served.identity, served.credential) == (ANN, None)


def test_an_identity_that_is_only_stated_is_dropped() -> None:
    assert holder(SHOP).arriving(request(identity=ANN)).identity is None


def test_an_end_without_a_signer_sends_no_identity() -> None:
    sent = SignedRequests().leaving(request(identity=ANN))
    assert (sent.identity, sent.credential) == (None, None)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    )
)
def test_any_input_is_bound(input: Any) -> None:
    sent = holder(ANN).leaving(request(input=input))
    fresh = SignedRequests(None, Verifier(AUTHORITY.public_pem))
    assert fresh.arriving(travelled(sent)).identity == ANN
    with pytest.raises(CallError) as refused:
        fresh.arriving(travelled(replace(sent, input=["something else", input])))
    assert refused.value.code is ErrorCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": "s"},
        {"operation_id": "shop.close"},
        {"input": {"a": 2}},
        {"resume_from": "0"},
        {"version": "1"},
    ],
)
def test_a_captured_credential_is_refused_for_another_call(change: dict[str, Any]) -> None:
    captured = holder(ANN).leaving(request(input={"a": 1}))
    with pytest.raises(CallError) as refused:
        holder(SHOP).arriving(travelled(replace(captured, **change)))
    assert refused.value.code is ErrorCode.UNAUTHENTICATED


def test_a_server_that_delegates_makes_nested_calls_as_its_caller_and_another_is_refused() -> None:
    bank = holder(Identity(id="bank"))
    for delegates in (True, False):
        shop = holder(SHOP, delegates=delegates)
        served = shop.arriving(travelled(holder(ANN).leaving(request("r1"))))
        nested = request("r2", parent_request_id="r1", identity=served.identity)
        if delegates:
            assert bank.arriving(travelled(shop.leaving(nested))).identity == ANN
        else:
            refused(shop, nested)
        assert bank.arriving(travelled(shop.leaving(request(f"r3-{delegates}")))).identity == SHOP


def refused(end: SignedRequests, event: CallRequested) -> None:
    with pytest.raises(CallError, match="delegates=True") as refusal:
        end.leaving(event)
    assert refusal.value.code is ErrorCode.ACCESS_DENIED


def test_operations_of_opwire_itself_neither_give_authority_nor_are_called_with_that_of_others() -> None:
    shop, bank = holder(SHOP, delegates=True), holder(Identity(id="bank"))
    about = shop.arriving(travelled(holder(ANN).leaving(request("r1", operation_id="opwire.about"))))
    refused(shop, request("r2", parent_request_id="r1", identity=about.identity))
    served = shop.arriving(travelled(holder(ANN).leaving(request("r3"))))
    refused(shop, request("r4", operation_id="opwire.operations", parent_request_id="r3", identity=served.identity))
    # A server that does not keep to this is found out.
    asked = holder(ANN).leaving(request("r5", operation_id="opwire.about"))
    forged = request("r6", parent_request_id="r5")
    credential = signer(SHOP, delegates=True).sign(forged, body=b"null", on_behalf_of=asked.credential)
    with pytest.raises(CallError) as refusal:
        bank.arriving(travelled(replace(forged, credential=credential)))
    assert refusal.value.code is ErrorCode.UNAUTHENTICATED


def test_a_call_is_not_forwarded_as_another_caller_with_the_same_request_id() -> None:
    shop = holder(SHOP, delegates=True)
    eves = shop.arriving(travelled(holder(EVE).leaving(request("r1"))))
    with pytest.raises(CallError) as failure:
        shop.arriving(travelled(holder(ANN).leaving(request("r1"))))
    assert failure.value.code is ErrorCode.PROTOCOL_ERROR
    refused(shop, request("r2", parent_request_id="r1", identity=ANN))
    nested = shop.leaving(request("r2", parent_request_id="r1", identity=eves.identity))
    assert holder(SHOP).arriving(travelled(nested)).identity == EVE


def test_a_credential_is_kept_only_by_a_server_that_delegates_and_only_while_it_is_good() -> None:
    for signing, kept in ((signer(SHOP, delegates=True), 1), (signer(SHOP), 0), (None, 0)):
        held = HeldCredentials()
        shop = SignedRequests(signing, Verifier(AUTHORITY.public_pem), held_credentials=held)
        shop.arriving(travelled(holder(ANN).leaving(request("r1"))))
        assert len(held) == kept


def test_held_credentials_go_when_they_expire() -> None:
    held = HeldCredentials()
    for n in range(1_000):
        held.add(f"r{n}", "c", ANN, until=n + 10, now=n)
    assert len(held) == 10
    held.add("last", "c", ANN, until=5_000, now=4_000)
    assert (len(held), held.get("last", ANN), held.get("last", EVE), held.get("r999", ANN)) == (1, "c", None, None)


def test_held_credentials_are_bounded_in_bytes_and_one_caller_cannot_take_the_room_of_others() -> None:
    held = HeldCredentials(max_bytes=100_000)
    for n in range(14):
        held.add(f"r{n}", "c" * 1_000, ANN, until=10, now=0)
    with pytest.raises(CallError) as refused:
        held.add("r", "c" * 10_000, ANN, until=10, now=0)
    assert refused.value.code is ErrorCode.RATE_LIMITED
    held.add("e", "c" * 1_000, EVE, until=10, now=0)
    for _ in range(100):
        held.add("e", "c" * 1_000, EVE, until=10, now=0)  # the same request takes its place once
    held.add("a", "c" * 1_000, ANN, until=30, now=20)
    assert len(held) == 1


def test_a_caller_that_knows_a_request_id_cannot_replace_the_credential_of_another() -> None:
    held = HeldCredentials()
    held.add("r", "of ann", ANN, until=10, now=0)
    with pytest.raises(CallError) as refused:
        held.add("r", "of eve", EVE, until=10, now=0)
    assert refused.value.code is ErrorCode.PROTOCOL_ERROR
    assert held.get("r", ANN) == "of ann"
    held.add("r", "of ann", ANN, until=10, now=0)  # delivered twice
    held.discard("r")
    held.add("r", "of eve", EVE, until=10, now=0)
    assert held.get("r", EVE) == "of eve"


async def test_over_a_broker_a_call_has_the_identity_of_its_credential_and_no_other() -> None:
    registry, market = OperationRegistry(), MemoryBroker()

    @registry.query("shop.whoami", access=AccessControl(required_scopes=("orders",)))
    async def whoami(context: Context) -> str:
        return context.identity.id if context.identity else "nobody"

    def end(signed: SignedRequests | None) -> PendingRequestMap:
        return PendingRequestMap(BrokerTransport(MemoryBrokerConnection(market), heartbeat=0.2, signed=signed))

    async with end(holder(SHOP)) as serving, CallHandler(registry, serving):
        async with end(holder(ANN)) as ann:
            assert (await ann.call("shop.whoami")).data == "ann"
        for other, code in ((holder(EVE), ErrorCode.ACCESS_DENIED), (None, ErrorCode.UNAUTHENTICATED)):
            async with end(other) as calls:
                with pytest.raises(CallError) as refused:
                    await calls.call("shop.whoami")
                assert refused.value.code is code


async def test_a_credential_is_forgotten_when_its_call_ends_and_a_busy_caller_is_not_refused() -> None:
    registry, market, held_counts = OperationRegistry(), MemoryBroker(), list[int]()
    held = HeldCredentials(max_bytes=40_000)  # room for some ten calls of one caller at the same time
    shop = holder(SHOP, delegates=True, credentials=held)

    @registry.query("shop.order")
    async def order(n: int) -> int:
        held_counts.append(len(held))
        if n % 2:
            raise RuntimeError("out of stock")
        return n

    @registry.subscription("shop.orders")
    async def orders() -> AsyncIterator[int]:
        yield 1
        yield 2

    serving = PendingRequestMap(BrokerTransport(MemoryBrokerConnection(market), signed=shop))
    calling = PendingRequestMap(BrokerTransport(MemoryBrokerConnection(market), signed=holder(ANN)))
    async with serving, CallHandler(registry, serving), calling:
        for n in range(50):
            with nullcontext() if n % 2 == 0 else pytest.raises(CallError, match=r"shop\.order"):
                await calling.call("shop.order", {"n": n})
            assert [item.data async for item in calling.subscribe("shop.orders")] == [1, 2]
        assert (set(held_counts), len(held)) == ({1}, 0)


async def test_a_request_with_the_id_of_another_callers_request_does_not_end_its_delegation() -> None:
    shop, bank, market, paid = OperationRegistry(), OperationRegistry(), MemoryBroker(), list[str]()

    def end(signed: SignedRequests | None) -> PendingRequestMap:
        return PendingRequestMap(BrokerTransport(MemoryBrokerConnection(market), heartbeat=0.2, signed=signed))

    serving, paying, calling, strange = end(holder(SHOP, delegates=True)), end(holder(EVE)), end(holder(ANN)), end(None)

    @shop.mutation("shop.order", access=AccessControl(public=True))
    async def order(context: Context) -> None:
        for _ in range(2):
            await serving.call("bank.pay", context=context)

    @bank.mutation("bank.pay")
    async def pay(context: Context) -> None:
        learned = Context(request_id=context.parent_request_id)
        for calls in (strange, paying) if not paid else ():
            with pytest.raises(CallError, match="in use by another caller"):
                await calls.call("shop.order", context=learned)
        paid.append(context.identity.id if context.identity else "")

    async with serving, CallHandler(shop, serving), paying, CallHandler(bank, paying), calling, strange:
        await calling.call("shop.order")
    assert paid == ["ann", "ann"]


async def test_a_request_with_a_bad_credential_is_refused_at_once() -> None:
    registry, market = OperationRegistry(), MemoryBroker()

    @registry.query("shop.open", access=AccessControl(public=True))
    async def opened() -> bool:
        return True

    class Forger(SignedRequests):
        def leaving(self, event: CallRequested, to: str | None = None) -> CallRequested:
            return replace(event, credential="forged")

    serving = PendingRequestMap(BrokerTransport(MemoryBrokerConnection(market), signed=holder(SHOP)))
    forger = PendingRequestMap(BrokerTransport(MemoryBrokerConnection(market), signed=Forger()))
    async with serving, CallHandler(registry, serving), forger:
        with pytest.raises(CallError) as refused:
            await forger.call("shop.open")
    assert refused.value.code is ErrorCode.UNAUTHENTICATED
