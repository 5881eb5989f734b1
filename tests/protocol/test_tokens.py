"""Ids that are unique and cannot be guessed."""

from itertools import islice

from opwire.protocol.transport import random_ids


def test_ids_are_all_different_and_of_the_size_that_was_asked_for() -> None:
    ids = [*islice(random_ids(12), 1_000), *islice(random_ids(12), 1_000)]
    assert len(set(ids)) == 2_000
    assert {len(id) for id in ids} == {24}
    assert set("".join(ids)) == set("0123456789abcdef")
