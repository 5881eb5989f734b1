"""Judges of OpenAPI: Prism of what opwire sends, validators, testers and generators of what it serves."""
