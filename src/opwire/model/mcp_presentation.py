"""What an operation is to clients of MCP: a tool, a resource or a prompt, with hints, icons and metadata.

Names are those of MCP. Other surfaces pass these fields on, so that an operation keeps them behind a gateway.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from opwire.errors import RegistrationError

Role = Literal[
    "tool",
    "resource",
    "prompt",
    "resources/list",
    "resources/templates",
    "resources/read",
    "resources/watch",
    "prompts/list",
]
"""What an operation is to clients of MCP.

A resource is read by its URI, a prompt returns messages. The others serve the resources and prompts of a whole server;
operations of the same namespace belong together.
"""


class Annotations(Struct, frozen=True, kw_only=True):
    """Hints about the effects of an operation; None: unknown. They are not enforced.

    `open_world`: it reaches systems outside of its server. `extra` are further annotations in the names of MCP, such
    as `audience` and `priority` of a resource.
    """

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None
    extra: Mapping[str, Any] = {}

    @classmethod
    def from_mcp(cls, annotations: Mapping[str, Any]) -> "Annotations":
        """Parse the annotations of a tool; fields that are not hints are kept unchanged."""
        hints = {name: annotations[key] for name, key in _HINTS.items() if isinstance(annotations.get(key), bool)}
        hint_keys = {_HINTS[name] for name in hints}
        return cls(**hints, extra={key: value for key, value in annotations.items() if key not in hint_keys})

    def to_mcp(self) -> dict[str, Any]:
        """Return the annotations of a tool: the known hints, and the extra ones."""
        hints = {key: value for name, key in _HINTS.items() if (value := getattr(self, name)) is not None}
        return {**self.extra, **hints}


_HINTS = {
    "read_only": "readOnlyHint",
    "destructive": "destructiveHint",
    "idempotent": "idempotentHint",
    "open_world": "openWorldHint",
}


Icon = str | Mapping[str, Any]
"""The URL of an image, or an icon of MCP: `{"src": URL, "mimeType": "image/png", "sizes": ["48x48"]}`."""


class MCPPresentation(Struct, frozen=True, kw_only=True):
    """How clients of MCP see an operation; by default as a tool.

        OperationSpec(namespace="shop", name="recommend", mcp=MCPPresentation(role="prompt"))

    `uri` is that of a resource, or its template, whose variables are the input. `mime_type` is that of a resource, and
    `meta` is sent as `_meta`. The decorators take these fields as options.

    Raises:
        RegistrationError: an icon has no URL.
    """

    role: Role = "tool"
    uri: str = ""
    mime_type: str = ""
    annotations: Annotations = Annotations()
    icons: tuple[dict[str, Any], ...] = ()
    meta: Mapping[str, Any] = {}

    if TYPE_CHECKING:  # icons may be URLs, although the attribute always holds dicts

        def __init__(
            self,
            *,
            role: Role = "tool",
            uri: str = "",
            mime_type: str = "",
            annotations: Annotations = ...,
            icons: Iterable[Icon] = (),
            meta: Mapping[str, Any] = ...,
        ) -> None: ...

    def __post_init__(self) -> None:
        if self.icons != ():
            force_setattr(self, "icons", _icon_dicts(self.icons))


def _icon_dicts(icons: Iterable[Icon]) -> tuple[dict[str, Any], ...]:
    if isinstance(icons, str | Mapping):
        raise RegistrationError("icons is a list: write [icon]")
    icon_dicts = [{"src": icon} if isinstance(icon, str) else dict(icon) for icon in icons]
    if not all(isinstance(icon.get("src"), str) for icon in icon_dicts):
        raise RegistrationError('an icon is a URL, or {"src": URL, …}')
    return tuple(icon_dicts)
