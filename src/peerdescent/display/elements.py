"""HTML and SVG as trees of elements, which escape all text, and the card that holds what is shown of an object.

Lines and text have the colour of the page's text, or colours that can be seen on white and on black, so that a card
fits light and dark themes. There is no style sheet: pages that drop it, as code hosts do, still show the facts.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#999999")
"""The colours of lines, by Okabe and Ito: safe for colour-blind readers."""
BAR = "width:16em; margin:0 0.8em; vertical-align:middle"
LEFT = "text-align:left; vertical-align:top; padding:0.1em 0.8em 0.1em 0"


def colour(index: int) -> str:
    """The colour of the line with this index; what is black on paper has the colour of text."""
    found = COLOURS[index % len(COLOURS)]
    return "currentColor" if found == "#000000" else found


def element(tag: str, *inside: Element | str, **attributes: Any) -> Element:
    """An element with elements or a text in it. Attributes are numbers or text; `_` in their names stands for `-`.

    >>> ElementTree.tostring(element("text", "a < b", font_size=11))
    b'<text font-size="11">a &lt; b</text>'
    """
    made = Element(
        tag, {name.replace("_", "-"): _text(value) for name, value in attributes.items()}
    )
    for each in inside:
        if isinstance(each, str):
            made.text = each
        else:
            made.append(each)
    return made


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def card(title: str, *parts: Element) -> str:
    """The HTML of an object: a title, and parts beside each other as far as there is room."""
    made = element(
        "div", element("div", element("strong", title)), row(*parts), **{"class": "peerdescent"}
    )
    return ElementTree.tostring(made, encoding="unicode", short_empty_elements=False)


def row(*parts: Element) -> Element:
    """Parts beside each other, as far as there is room."""
    return element(
        "div", *parts, style="display:flex; flex-wrap:wrap; gap:0.5em 1.2em; align-items:flex-start"
    )


def facts(pairs: Mapping[str, object]) -> Element:
    """A table of names and values; what is None or empty is left out."""
    rows = [
        element("tr", element("th", name, style=LEFT), element("td", str(value), style=LEFT))
        for name, value in pairs.items()
        if value is not None and value != ""
    ]
    return element("table", element("tbody", *rows), style="margin:0")


def table(
    head: Sequence[str], rows: Iterable[Sequence[object]], marked: Container[int] = ()
) -> Element:
    """A table with a head; rows with a `marked` index are bold."""
    names = element("thead", element("tr", *(element("th", name, style=LEFT) for name in head)))
    body = []
    for index, row in enumerate(rows):
        cells = [element("strong", str(value)) if index in marked else str(value) for value in row]
        body.append(element("tr", *(element("td", cell, style=LEFT) for cell in cells)))
    return element("table", names, element("tbody", *body), style="margin:0")


def note(text: str) -> Element:
    """A sentence, such as why something is not drawn."""
    return element("div", text, style="max-width:30em; opacity:0.8")


def progress(label: str, done: int, total: int, words: str) -> str:
    """The HTML of a progress bar with a text to its right."""
    made = element(
        "div",
        element("span", label),
        element("progress", value=done, max=total, style=BAR),
        element("span", words),
    )
    return ElementTree.tostring(made, encoding="unicode", short_empty_elements=False)


def svg(width: float, height: float, label: str, *inside: Element) -> Element:
    """A drawing of so many pixels, with a description for those who cannot see it."""
    return element(
        "svg", *inside, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width:g} {height:g}", width=width,
        height=height, role="img", aria_label=label, style="max-width:100%; height:auto", font_size=11,
    )  # fmt: skip


def text(content: str, x: float, y: float, anchor: str = "middle", **look: Any) -> Element:
    """A text in a drawing, in the colour of the page's text."""
    return element(
        "text",
        content,
        x=round(x, 1),
        y=round(y, 1),
        text_anchor=anchor,
        fill="currentColor",
        **look,
    )
