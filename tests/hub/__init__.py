"""Hubs and spokes."""
