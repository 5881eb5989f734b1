"""Content types: which of several is taken, and which of them are streams."""

from collections.abc import Callable, Iterable

from opwire.adapters.openapi.endpoints import Content
from opwire.adapters.openapi.media_types import media_type
from opwire.adapters.openapi.plan import StreamKind

_MAX_ACCEPTED = 50  # content types that a request asks for
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def stream_kind(content_type: str) -> StreamKind | None:
    """How a stream of this type is framed; None if it is none."""
    return media_type(content_type).stream


def is_any(content_type: str) -> bool:
    """Whether it is a range that JSON is in."""
    return media_type(content_type).name in ("*/*", "application/*")


def is_form(content_type: str) -> bool:
    """Whether the content is made of named fields."""
    return media_type(content_type).name in _FORMS


def is_multipart(content_type: str) -> bool:
    """Whether the content is made of parts."""
    return media_type(content_type).name.startswith("multipart/")


def is_text(content_type: str) -> bool:
    """Whether the content is text that is neither JSON nor a form."""
    kind = media_type(content_type)
    return kind.is_text and not kind.is_json and not is_form(content_type)


def is_json(content_type: str) -> bool:
    """Whether the content is one JSON value."""
    return media_type(content_type).is_json


# What comes first is taken: JSON itself before its relatives, which often are other forms of the same thing.
_PREFERENCES: tuple[Callable[[str], bool], ...] = (
    lambda each: each == "application/json",
    lambda each: media_type(each).name == "application/json",
    is_json,
    is_any,
    lambda each: media_type(each).name == "application/x-www-form-urlencoded",
    is_multipart,
    is_text,
)


def preferred(types: Iterable[Content]) -> Content | None:
    """The one that is taken of several."""
    given = list(types)
    for prefers in _PREFERENCES:
        for each in given:
            if prefers(each.content_type):
                return each
    return given[0] if given else None


def accept_header(chosen: Iterable[str], others: Iterable[str]) -> str:
    """What to ask for: JSON alone where that is chosen, else whatever there is. Nothing is refused.

    Other kinds of JSON are not asked for beside it: they often are other forms of the answer.
    """
    wanted = [each for each in chosen if is_json(each)] or [each for each in others if media_type(each).name != "*/*"]
    wanted = list(dict.fromkeys(each for each in wanted if "\n" not in each and "\r" not in each))[:_MAX_ACCEPTED]
    return ", ".join([*wanted, "*/*;q=0.1"]) if wanted else "*/*"
