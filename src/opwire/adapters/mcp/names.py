"""Names that servers and their configuration give, as names that operations can have."""

from collections.abc import Iterable

MAX_NAME = 500
"""Characters of a tool's or prompt's name; the protocol asks for at most 128."""

_MAX_NAMESPACE = 100  # every id begins with it


def usable_namespace(name: str, otherwise: str = "mcp") -> str:
    """Return the name, cut, with what a namespace cannot hold, dots and control characters, as underscores."""
    given = name.strip()[:_MAX_NAMESPACE]
    shown = "".join(letter if letter.isprintable() and letter != "." else "_" for letter in given)
    return shown or otherwise


def usable_namespaces(names: Iterable[str]) -> dict[str, str]:
    """A namespace for each name, all of them different: "a.b" and "a_b" become "a_b" and "a_b_2"."""
    names = list(names)
    taken = {name for name in names if usable_namespace(name) == name}
    namespaces: dict[str, str] = {}
    for name in names:
        namespace = first = usable_namespace(name)
        number = 2
        while namespace in taken and namespace != name:
            namespace, number = f"{first}_{number}", number + 1
        taken.add(namespace)
        namespaces[name] = namespace
    return namespaces


def is_usable(name: object) -> bool:
    """Return whether an operation can have this name."""
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME and name.isprintable()
