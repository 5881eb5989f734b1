"""HTTP APIs that have an OpenAPI document, as operations. Needs `pip install 'opwire[openapi]'`."""

from opwire.adapters.openapi.security import OAuthClient
from opwire.adapters.openapi.source import OpenAPISource, from_openapi
from opwire.adapters.report import Report, Skipped

__all__ = ["OAuthClient", "OpenAPISource", "Report", "Skipped", "from_openapi"]
