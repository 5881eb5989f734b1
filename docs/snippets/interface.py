from opwire.testing import interface_digests

from shop import registry

for operation_id, digest in interface_digests(registry).items():
    print(operation_id, digest)
