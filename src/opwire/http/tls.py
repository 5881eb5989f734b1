"""TLS of clients: own authorities, and a certificate that identifies the client (mutual TLS)."""

import ssl
from pathlib import Path

from opwire.errors import UsageError


def client_context(
    *,
    ca_file: Path | str | None = None,
    client_certificate: Path | str | None = None,
    client_key: Path | str | None = None,
    client_key_password: str | None = None,
    verify: bool = True,
) -> ssl.SSLContext:
    """Return a context that trusts `ca_file` instead of the system's authorities, and presents a certificate.

    `client_certificate` is a PEM file, with the private key in it or in `client_key`.

    Raises:
        UsageError: a file is missing or invalid.
    """

    def unusable(option: str, file: Path | str | None, error: Exception) -> UsageError:
        reason = getattr(error, "strerror", None) or "cannot be used"
        if isinstance(error, ssl.SSLError):
            reason = "not a PEM certificate with its key, or the key is encrypted with another password"
        return UsageError(f"{option} {file}: {reason}")

    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise unusable("ca_file", ca_file, error) from error
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client_certificate is None:
        if client_key is not None:
            raise UsageError("client_key needs client_certificate")
        return context
    try:
        # Without a password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(client_certificate, client_key, client_key_password or "")
    except (OSError, ValueError) as error:
        raise unusable("client_certificate", client_certificate, error) from error
    return context
