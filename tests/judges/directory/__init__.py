"""The public directory of OpenAPI documents as a judge; see `__main__`."""
