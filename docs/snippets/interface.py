import hashlib
import json

from shop import registry

for spec in registry.list():
    schemas = [spec.type, spec.input_schema.json, spec.output_schema.json]
    digest = hashlib.sha256(json.dumps(schemas, sort_keys=True).encode()).hexdigest()
    print(spec.id, digest[:12])
