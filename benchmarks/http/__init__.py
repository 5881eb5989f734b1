"""HTTP: calling an API by its OpenAPI document, serving a registry as one, and reading large documents."""
