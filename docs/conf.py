"""How the documentation is built. Nothing is downloaded, neither by the build nor by the reader's browser."""

from __future__ import annotations

import gc
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import peerdescent
from peerdescent import methods

sys.path.insert(0, str(Path(__file__).parent))
import zoo_page

gc.set_threshold(
    100_000, 50, 100
)  # a quarter of the time went into collecting garbage, of which there is little

DOCS = Path(__file__).parent
# Sphinx reads what is in this folder only.
NOTEBOOKS = "examples/notebooks/"
shutil.copytree(
    DOCS.parent / NOTEBOOKS,
    DOCS / "notebooks",
    dirs_exist_ok=True,
    ignore=shutil.ignore_patterns(".*"),
)

project = "peerdescent"
author = "The peerdescent developers"
copyright = "the peerdescent developers"
version = release = peerdescent.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = [
    "_build",
    "reproduction/*.md",
]  # those are included in a page, and are none themselves
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

# Notebooks are shown with the outputs that are stored in them.
nb_execution_mode = "off"
nb_merge_streams = True

html_theme = "furo"
html_title = f"peerdescent {version}"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100


def inline(self: Any, node: Any) -> None:
    """MathML, which browsers draw by themselves: no script, no font, no network."""
    self.body.append(tex2mathml(node.astext()).replace("\n", ""))
    raise SkipNode


def block(self: Any, node: Any) -> None:
    self.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise SkipNode


def untyped_returns(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Napoleon takes what is before a colon for a type; annotations have the types here, so that part is left empty."""
    for place, line in enumerate(lines[:-1]):
        if line.strip() == "Returns:":
            indent = len(lines[place + 1]) - len(lines[place + 1].lstrip())
            lines[place + 1] = f"{' ' * indent}: {lines[place + 1].lstrip()}"


def markdown_docstring(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Docstrings are plain text with `code`: protect what reStructuredText would read as markup."""
    out: list[str] = []
    example = False
    for line in lines:
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if not example:
            parts = re.split(r"(`[^`]+`|^\s*:param [^:]+:)", line)
            line = "".join(_protected(part) for part in parts)
            if (
                re.match(r"\s*- ", line)
                and out
                and out[-1].strip()
                and not re.match(r"\s*- |\s{2,}", out[-1])
            ):
                out.append("")
        out.append(line)
    lines[:] = out


def _protected(text: str) -> str:
    """`code` as code, the names of arguments as they are, and no other markup."""
    if text.startswith("`"):
        return f"`{text}`"
    return text if text.lstrip().startswith(":param ") else re.sub(r"([\\*|_])", r"\\\1", text)


def skip_field(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """The fields of a NamedTuple say nothing but their number."""
    return (
        True if (getattr(obj, "__doc__", "") or "").startswith("Alias for field number") else None
    )


class Hyperparameters(SphinxDirective):
    """A table of the hyperparameters of all estimators and fusions, as they are declared."""

    def run(self) -> list[Any]:
        lines = [
            "| part | hyperparameter | default | what it may be, and what `tune` begins with |"
        ]
        lines.append("|---|---|---|---|")
        for name, part in {**methods.estimators.ESTIMATORS, **methods.fusions.FUSIONS}.items():
            for own, about in methods.parameters.declared(part).items():
                lines.append(f"| `{name}` | `{own}` | {about.default} | {about} |")
        return self.parse_text_to_nodes("\n".join(lines))


def expand_zoo(app: Sphinx, docname: str, source: list[str]) -> None:
    """Put what is registered into the page of the zoo."""
    if docname == "zoo":
        source[0] = zoo_page.expanded(source[0])


def link_to_copies(app: Sphinx, docname: str, source: list[str]) -> None:
    """Pages link to notebooks where they are in a checkout; here, to the pages of their copies."""
    if not docname.startswith("notebooks/"):
        source[0] = source[0].replace(f"../{NOTEBOOKS}", "notebooks/")


def always_read_zoo(
    app: Sphinx, env: Any, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """The page of the zoo depends on the package, not only on its own file."""
    return ["zoo"]


def setup(app: Sphinx) -> None:
    app.connect("source-read", expand_zoo)
    app.connect("source-read", link_to_copies)
    app.connect("env-get-outdated", always_read_zoo)
    app.add_directive("hyperparameters", Hyperparameters)
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    # One before napoleon, the other after it.
    app.connect("autodoc-process-docstring", untyped_returns, priority=400)
    app.connect("autodoc-process-docstring", markdown_docstring, priority=600)
    app.connect("autodoc-skip-member", skip_field)
