"""Test your operations: stand-ins for those that they call, and a digest of each interface.

registry = with_stand_ins(program.registry, {"rates.get": lambda currency: {"rate": 2.0}})
assert interface_digests(registry) == json.loads(Path("interface.json").read_text())
"""

from opwire.testing.operations import interface_digests, with_stand_ins

__all__ = ["interface_digests", "with_stand_ins"]
