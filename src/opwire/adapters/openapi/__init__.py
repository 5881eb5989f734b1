"""HTTP APIs with an OpenAPI document, as operations. Needs `pip install 'opwire[openapi]'`."""

from opwire.adapters.source import Report
from opwire.errors import needs_extra
from opwire.operation import Skipped

with needs_extra("openapi"):
    from opwire.adapters.openapi.security import AWSCredentials
    from opwire.adapters.openapi.source import OpenAPISource, from_openapi
    from opwire.oauth import OAuthClient

__all__ = ["AWSCredentials", "OAuthClient", "OpenAPISource", "Report", "Skipped", "from_openapi"]
