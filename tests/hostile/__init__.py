"""Programs that call operations with hostile values, schemas and handlers; `test_hostile.py` runs each by itself."""
