"""Collections that peers cannot grow without limit."""

from opwire.runtime.bounded import BoundedDict, SharedLimit, Tally


def test_a_bounded_dict_replaces_its_oldest_entry() -> None:
    known: BoundedDict[str, int] = BoundedDict(2)
    known["a"], known["b"] = 1, 2
    known["a"] = 3  # not a new entry
    assert known == {"a": 3, "b": 2}
    known["c"] = 4
    assert known == {"b": 2, "c": 4}


def test_a_tally_forgets_the_keys_that_fall_to_zero() -> None:
    """Dicts, numbers by key and bytes by owner stay within limits, and forget what is gone."""
    tally: Tally[str] = Tally()
    tally["a"] += 2
    tally.subtract("a")
    assert (tally["a"], tally["b"], dict(tally)) == (1, 0, {"a": 1})
    tally.subtract("a")
    tally.subtract("b")
    assert not tally


def test_one_owner_cannot_take_all_and_what_is_given_back_can_be_taken_again() -> None:
    limit: SharedLimit[str] = SharedLimit(100, 60)
    assert limit.take("ann", 60)
    assert not limit.take("ann", 1)
    assert limit.take("bob", 40)
    assert not limit.take("carl", 1)  # although it holds nothing
    assert limit.held == {"ann": 60, "bob": 40}
    limit.give_back("ann", 50)
    assert limit.take("carl", 50)
    for owner, size in (("ann", 10), ("bob", 40), ("carl", 50)):
        limit.give_back(owner, size)
    assert not limit.held
    assert limit.take("bob", 60)
