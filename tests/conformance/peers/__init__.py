"""Tests of the conformance kit, with peers that break one promise each."""
