"""How this end proves who it is: the fields of CONNECT. No I/O but the reading of a credentials file.

A password, a token, a `.creds` file (a JWT, and the key that belongs to it) or a file with the seed of an NKEY. The key
never leaves this process: it signs a number that the server makes for each connection.
"""

import re
from base64 import b32decode, b32encode, urlsafe_b64encode
from binascii import Error, crc_hqx
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

from opwire.errors import CallError, ErrorCode

_SEED, _USER = 18 << 3, 20 << 3  # what an NKEY's first bits say: a seed; of a user
_BLOCK = re.compile(r"-{3,}BEGIN [A-Z ]*(JWT|SEED)-{3,}\s+(\S+)\s+-{3,}END")


@dataclass(frozen=True)
class Credentials:
    """What was given. Nothing of it is shown when this is printed."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    file: str | PathLike[str] | None = None

    def fields(self, nonce: str) -> dict[str, object]:
        """The fields of CONNECT. A file is read again each time, since it may have been replaced.

        Raises:
            CallError: UNAVAILABLE, if the file cannot be used.
        """
        if self.file is not None:
            return _signed(self.file, nonce)
        if self.token is not None:
            return {"auth_token": self.token}
        if self.user is not None:
            return {"user": self.user, "pass": self.password or ""}
        return {}


def _signed(file: str | PathLike[str], nonce: str) -> dict[str, object]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CallError(ErrorCode.UNAVAILABLE, f"the credentials in {file} cannot be read: {error}") from error
    blocks = {match[1]: match[2] for match in _BLOCK.finditer(text)}
    try:
        public, signature = sign(blocks.get("SEED") or text.strip(), nonce)
    except ValueError as error:
        raise CallError(ErrorCode.UNAVAILABLE, f"{file} holds no usable credentials: {error}") from error
    return {"sig": signature, **({"jwt": blocks["JWT"]} if "JWT" in blocks else {"nkey": public})}


def sign(seed: str, nonce: str) -> tuple[str, str]:
    """The public NKEY that belongs to a seed, and its signature of the server's number.

    Raises:
        ValueError: it is not a user's seed. The message does not show it.
        CallError: UNAVAILABLE, if the package that can sign is missing.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        missing = "NKEYs need the package cryptography: pip install 'opwire[nats]'"
        raise CallError(ErrorCode.UNAVAILABLE, missing) from error
    key = Ed25519PrivateKey.from_private_bytes(_key_of(seed))
    public = bytes([_USER]) + key.public_key().public_bytes_raw()
    signature = key.sign(nonce.encode("ascii", "replace"))
    return _b32(public + _checksum(public)), urlsafe_b64encode(signature).rstrip(b"=").decode()


def _key_of(seed: str) -> bytes:
    try:
        raw = b32decode(seed + "=" * (-len(seed) % 8))
    except (Error, ValueError):
        raise ValueError("it is not an NKEY seed, which begins with SU and has 58 characters") from None
    if len(raw) != 36 or _checksum(raw[:-2]) != raw[-2:]:
        raise ValueError("the seed was mistyped or cut: its checksum is wrong")
    kind, owner = raw[0] & 0xF8, (raw[0] & 7) << 5 | raw[1] >> 3
    if kind != _SEED or owner != _USER:
        raise ValueError("it is not the seed of a user, which begins with SU")
    return raw[2:-2]


def _checksum(raw: bytes) -> bytes:
    return crc_hqx(raw, 0).to_bytes(2, "little")


def _b32(raw: bytes) -> str:
    return b32encode(raw).rstrip(b"=").decode()
