"""HTTP APIs that have an OpenAPI document, as operations. Needs `pip install 'opwire[openapi]'`."""

from opwire.adapters.openapi.document import Report, Skipped
from opwire.adapters.openapi.security import OAuthClient
from opwire.adapters.openapi.source import OpenAPISource, from_openapi

__all__ = ["OAuthClient", "OpenAPISource", "Report", "Skipped", "from_openapi"]
