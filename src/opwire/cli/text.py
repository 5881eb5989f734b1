"""Text for a terminal: measured in cells, cut, wrapped, and rendered from Markdown and HTML. No I/O.

Documents describe their operations in Markdown, HTML or a mixture. A terminal shows the words: markup is removed, links
are kept behind their text, lists stay lists. Everything else passes unchanged, including tags that are not HTML, like
`<owner>`. The text is foreign: every function here takes linear time, and the input is bounded. Patterns that repeat
adjacent classes are possessive (`*+`), since a failed match would try every split of a long run otherwise.
"""

import re
from collections.abc import Iterator
from html import unescape
from typing import NamedTuple
from unicodedata import combining, east_asian_width

_MAX_MARKUP_CHARACTERS = 20_000
_MAX_SUMMARY_CHARACTERS = 600

_HAS_MARKUP = re.compile(r"[<&\[*_`#>|\\]|^[ \t]*[-+\d=]", re.MULTILINE)
_ITEM = re.compile(r"(\s*)([-*+]|\d{1,9}[.)])\s+(.*)")
_HEADING = re.compile(r"\s{0,3}#{1,6}\s+(.*)")
# Also the underline of a heading or of a table's head.
_RULE = re.compile(r"(?=(?:\s*+[-=*_]){3})[-=*_\s]*+|(?=[\s:|-]*?--)[\s:|-]*+")
_ALERT = re.compile(r"\[!(\w+)\]\s*")
_CODE = re.compile(r"(`[^`\n]+`)")
_KEPT_CODE = re.compile("\ue000(\\d{1,5})\ue001")
_LINK = re.compile(r"(!?)\[([^\[\]]*)\]\(([^()\s]*+)[^()]*+\)")
_INLINE = (
    (re.compile(r"\*\*([^*\n]+)\*\*"), r"\1"),
    (re.compile(r"(?<!\w)__([^_\n]+)__(?!\w)"), r"\1"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*\n]*)\*(?![\w*])"), r"\1"),
    (re.compile(r"(?<!\w)_([^_\s][^_\n]*)_(?!\w)"), r"\1"),
    (re.compile(r"\\([\\`*_{}\[\]()#+.!<>|-])"), r"\1"),
)
# Not `html.parser`, which takes 15 s for 20,000 characters of "<a <a ".
_TAG = re.compile(r"<!--[^<>]*-->|<(/?)([a-zA-Z][a-zA-Z0-9]*)((?:\s[^<>]*)?)/?>")
# With the semicolon: `?a=1&copy=2` is a query. Python converts at most 4,300 digits to a number.
_REFERENCE = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_ATTRIBUTE = re.compile(r"""\b(href|alt)\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_BLOCK_TAGS = frozenset("blockquote br dd div dl dt h1 h2 h3 h4 h5 h6 hr ol p pre section table tr ul".split())
_INLINE_TAGS = frozenset("b big em font i s small span strong sub sup tbody td th thead u".split())


def cells(text: str) -> int:
    """Return the width of a text in terminal cells: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1 for character in text)


def cut(text: str, width: int) -> str:
    """Return the text, cut to a width with an ellipsis if it is longer."""
    if cells(text) <= width:
        return text
    prefix_length, used = 0, 1  # the ellipsis
    while prefix_length < len(text) and used + cells(text[prefix_length]) <= width:
        used += cells(text[prefix_length])
        prefix_length += 1
    return f"{text[:prefix_length].rstrip()}…" if width > 0 else ""


def padded(text: str, width: int) -> str:
    """Return the text, filled with spaces up to a width."""
    return text + " " * (width - cells(text))


def wrapped(text: str, width: int | None, indent: str = "", hanging: str | None = None) -> list[str]:
    """Break a text between words into lines of at most `width` cells; None breaks nothing.

    A longer word, such as a URL, has a line of its own. `hanging` indents all lines but the first.
    """
    hanging = indent if hanging is None else hanging
    if width is None:
        return [f"{indent}{text}"]
    lines, line = list[str](), indent
    is_new = True
    for word in text.split():
        if not is_new and cells(line) + 1 + cells(word) > width:
            lines.append(line)
            line, is_new = hanging, True
        line += word if is_new else f" {word}"
        is_new = False
        if not word.isascii() and cells(line) > width > cells(hanging) + 2:  # such as Chinese, without spaces
            characters, line, used = line, "", 0
            for character in characters:
                if used + cells(character) > width:
                    lines.append(line)
                    line, used = hanging, cells(hanging)
                line += character
                used += cells(character)
    return [*lines, line]


class Block(NamedTuple):
    """A paragraph, an item of a list, or a line of code (`is_verbatim`)."""

    text: str
    indent: str = ""
    hanging: str = ""
    is_verbatim: bool = False


def rendered(markup: str, width: int | None = None, *, links: bool = True) -> list[str]:
    """Return Markdown or HTML as lines of text, with an empty line between paragraphs.

    `links` keeps the addresses of links, behind their text. A relative one leads nowhere from a terminal.
    """
    lines: list[str] = []
    before: Block | None = None
    for block in _blocks(_without_html(markup[:_MAX_MARKUP_CHARACTERS])):
        text = _inline(block.text, links=links)
        is_list = before is not None and bool(before.hanging or before.is_verbatim)
        if before is not None and not (is_list and (block.hanging or block.is_verbatim)):
            lines.append("")
        if block.is_verbatim:
            lines.append(f"{block.indent}{block.text}")
        else:
            lines += wrapped(text, width, block.indent, block.hanging)
        before = block
    return [*lines, "…"] if len(markup) > _MAX_MARKUP_CHARACTERS else lines


def summary(markup: str) -> str:
    """Return the first paragraph of Markdown or HTML as one line."""
    head = markup[:_MAX_SUMMARY_CHARACTERS].strip()
    if _HAS_MARKUP.search(head):
        head = next((line for line in rendered(head, links=False) if line.strip()), "")
    else:
        head = head.partition("\n\n")[0]
    return " ".join(head.split())


def _blocks(text: str) -> Iterator[Block]:
    """Parse the lines of Markdown into blocks."""
    blocks: list[tuple[Block, list[str]]] = []  # each with its lines
    in_fence = is_open = False  # following lines continue an open block
    for raw in text.expandtabs(4).splitlines():
        if in_fence and not raw.lstrip().startswith(("```", "~~~")):
            blocks.append((Block(raw, "    ", is_verbatim=True), [raw.rstrip()]))
            continue
        line = _ALERT.sub(lambda alert: f"{alert[1].capitalize()}: ", raw.lstrip("> ")) if raw[:1] == ">" else raw
        block = _started(line)
        if block is None and is_open:
            blocks[-1][1].append(line.strip())
            continue
        block = block or Block(line.strip())
        if block.text:
            blocks.append((block, [block.text]))
        is_open = bool(block.text) and not _HEADING.fullmatch(line)
        in_fence ^= line.lstrip().startswith(("```", "~~~"))
    return (block._replace(text=" ".join(lines)) for block, lines in blocks)


def _started(line: str) -> Block | None:
    """Return the block that a line starts, an empty one for a separator; None if it may continue a paragraph."""
    text = line.strip()
    if not text or _RULE.fullmatch(line) or text.startswith(("```", "~~~")):
        return Block("")
    if match := _HEADING.fullmatch(line):
        return Block(match[1].rstrip().rstrip("#").rstrip())
    if text.startswith("|"):
        return Block("- " + " | ".join(filter(None, (cell.strip() for cell in text.split("|")))), "", "  ")
    if match := _ITEM.fullmatch(line):
        space, mark, item_text = match.groups()
        indent, mark = " " * min(len(space), 12), "-" if mark in "*+" else mark
        return Block(f"{mark} {item_text}", indent, indent + " " * (len(mark) + 1))
    return None


def _inline(text: str, *, links: bool) -> str:
    """Remove the markup within a paragraph, except in code."""
    codes: list[str] = []

    def keep(match: re.Match[str]) -> str:
        codes.append(match[0])
        return f"\ue000{len(codes) - 1}\ue001"

    def link(match: re.Match[str]) -> str:
        image, link_text, address = match.groups()
        is_web = address.startswith(("http://", "https://", "mailto:"))
        return f"{link_text} ({address})" if links and is_web and not image and address != link_text else link_text

    text = _LINK.sub(link, _CODE.sub(keep, text.replace("\ue000", "")))
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return _KEPT_CODE.sub(lambda match: codes[int(match[1])], text)


def _without_html(text: str) -> str:
    """Return HTML as Markdown: blocks as paragraphs, items as `-`, code in backticks, links as links."""
    addresses: list[str] = []  # of the links that are open

    def replaced(match: re.Match[str]) -> str:
        end, tag, attributes = match[1], (match[2] or "").lower(), match[3] or ""
        attribute_values = {name: one or other for name, one, other in _ATTRIBUTE.findall(attributes)}
        match tag:
            case "a" if end:
                return f"]({addresses.pop()})" if addresses else ""
            case "a":
                addresses.append(re.sub(r"[()\s]", "", attribute_values.get("href", "")))
                return "["
            case "li":
                return "" if end else "\n- "
            case "img":
                return attribute_values.get("alt", "")
            case "code":
                return "`"
            case _ if tag in _BLOCK_TAGS:
                return "\n\n"
            case _:
                return "" if tag in _INLINE_TAGS or not tag else match[0]

    return _REFERENCE.sub(lambda match: unescape(match[0]), _TAG.sub(replaced, text))
