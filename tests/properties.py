"""How thoroughly the tests look: less on a developer's machine than in CI."""

from hypothesis import settings

CI_EXAMPLES = 100


def is_thorough() -> bool:
    """Return whether the profile of hypothesis is that of CI."""
    return settings.get_current_profile_name() == "ci"


def examples(count: int) -> int:
    """Scale a number of examples to the profile of hypothesis."""
    return max(count * settings().max_examples // CI_EXAMPLES, 1)
