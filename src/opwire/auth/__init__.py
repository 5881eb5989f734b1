"""Who is calling, on every boundary. Signed tokens need `pip install 'opwire[auth]'`.

At a door, where a connection shows a token:

    StaticTokens({os.environ["SHOP_TOKEN"]: Grant(Identity(id="shop", scopes=("orders:read",)), announces=("shop",))})
    JWTs(jwks=fetch_keys, algorithms=["RS256"], audience="opwire", issuer="https://id.example")
    callback(look_up)  # a function of yours, sync or async: token -> Grant, Identity or None
    anybody(Identity(id="guest"))  # no token is asked for

    grant = await authenticator.authenticate(token)  # or CallError(UNAUTHENTICATED)

Over a broker nobody stands at the door, so each request is signed. An authority says who holds which key:

    authority = Authority.generate()  # kept where passports are issued; authority.to_pem() is its secret
    key = SigningKey.generate()  # made by the holder, and never leaves it
    passport = authority.issue(Grant(Identity(id="shop")), key.public_pem, lifetime=86_400)

    credential = Signer(passport, key).sign(event)  # at the caller: good for this request alone
    identity = Verifier(authority.public_pem).verify(credential, event)  # at the server
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from opwire.auth.tokens import Authenticator, Grant, RateLimit, StaticTokens, anybody, callback

if TYPE_CHECKING:
    from opwire.auth.jwt import JWTs
    from opwire.auth.signed import Authority, SignedRequests, Signer, SigningKey, Verifier

__all__ = [
    "Authenticator",
    "Authority",
    "Grant",
    "JWTs",
    "RateLimit",
    "SignedRequests",
    "Signer",
    "SigningKey",
    "StaticTokens",
    "Verifier",
    "anybody",
    "callback",
]

# Loaded when first asked for: they need PyJWT and cryptography, which the others do without.
_SIGNED = {
    "Authority": "signed",
    "JWTs": "jwt",
    "SignedRequests": "signed",
    "Signer": "signed",
    "SigningKey": "signed",
    "Verifier": "signed",
}


def __getattr__(name: str) -> Any:
    if name not in _SIGNED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_SIGNED[name]}"), name)
    except ModuleNotFoundError as error:
        missing = f"{name} needs PyJWT and cryptography: pip install 'opwire[auth]'"
        raise ModuleNotFoundError(missing, name=error.name) from error
