"""HTTP APIs with an OpenAPI document, as operations. Needs `pip install 'opwire[openapi]'`."""

from opwire.errors import needs_extra
from opwire.registry.source import Report, Skipped

with needs_extra("openapi"):
    from opwire.auth.oauth import OAuthClient
    from opwire.openapi.client.security import AWSCredentials
    from opwire.openapi.client.source import OpenAPISource, from_openapi

__all__ = ["AWSCredentials", "OAuthClient", "OpenAPISource", "Report", "Skipped", "from_openapi"]
