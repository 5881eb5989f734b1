"""HTTP APIs: `client` reads OpenAPI documents, `server` serves a registry, `webhooks` receives events."""
