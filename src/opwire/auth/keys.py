"""Ed25519 keys as PEM and back. A private key is shown nowhere but in `to_pem`."""

from base64 import urlsafe_b64encode
from typing import Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from opwire.errors import CallError, ErrorCode


class SigningKey:
    """What its holder signs with.

        key = SigningKey.generate()
        key.public_pem  # for everybody
        key.to_pem()  # for nobody but its holder

    `to_pem` is to be kept like a password: whoever has it is the holder.
    """

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        public = key.public_key()
        self.name = name_of(public)
        self.public_pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @classmethod
    def generate(cls) -> Self:
        """A new key."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: str | bytes) -> Self:
        """The key that `to_pem` wrote.

        Raises:
            CallError: VALIDATION_ERROR. The message does not show it.
        """
        try:
            key = load_pem_private_key(_bytes(pem), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it is encrypted
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            wrong = "not an Ed25519 key in PEM without a password, which begins with -----BEGIN PRIVATE KEY-----"
            raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
        return cls(key)

    def to_pem(self) -> str:
        """The private key as PEM."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

    def sign(self, message: bytes) -> bytes:
        """The signature of a message."""
        return self._key.sign(message)


def public_key(pem: str | bytes) -> Ed25519PublicKey:
    """The key that `SigningKey.public_pem` shows.

    Raises:
        CallError: VALIDATION_ERROR.
    """
    try:
        key = load_pem_public_key(_bytes(pem))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        wrong = "not an Ed25519 public key in PEM, which begins with -----BEGIN PUBLIC KEY-----"
        raise CallError(ErrorCode.VALIDATION_ERROR, wrong)
    return key


def name_of(key: Ed25519PublicKey) -> str:
    """The key itself, in the 43 characters that a JSON Web Key writes it with."""
    return urlsafe_b64encode(key.public_bytes_raw()).rstrip(b"=").decode()


def _bytes(pem: str | bytes) -> bytes:
    return pem.encode("utf-8", "surrogatepass") if isinstance(pem, str) else pem
