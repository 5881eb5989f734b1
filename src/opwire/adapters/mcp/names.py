"""Names that servers and their configuration give, as names that operations can have."""

from collections.abc import Iterable


def usable_namespace(name: str, otherwise: str = "mcp") -> str:
    """The name with what a namespace cannot hold, dots and control characters, replaced by underscores."""
    shown = "".join(letter if letter.isprintable() and letter != "." else "_" for letter in name.strip())
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
    """Whether an operation can have this name."""
    return isinstance(name, str) and name != "" and name.isprintable()
