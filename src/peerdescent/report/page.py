"""The page of a report: one self-contained HTML file from `page.html`, `page.css` and `page.js`.

The script draws the page's JSON with Plotly. The page's security policy allows only these two
scripts, by their digests, and no requests. So HTML in a file's name has no effect, even if it were
not escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

try:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"a report needs {error.name}, which is not installed: pip install 'peerdescent[report]'",
        name=error.name,
    ) from error

__all__ = ["Markup", "render"]

LOADER = PackageLoader("peerdescent", "report")


def render(content: Mapping[str, Any], data: Any) -> str:
    """The HTML of the page, from `content` for the template and `data` for the script; `data` must not have NaN."""
    environment = Environment(
        loader=LOADER,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # The filter `tojson` escapes <, > and &, so that JSON cannot end the script element that
    # contains it.
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    style, script = (LOADER.get_source(environment, name)[0] for name in ("page.css", "page.js"))
    scripts = [get_plotlyjs(), script]
    template = environment.get_template("page.html")
    return template.render(
        content,
        data=data,
        style=Markup(style),
        scripts=[Markup(s) for s in scripts],
        digests=[digest(s) for s in scripts],
    )


def digest(script: str) -> str:
    """The digest of a script for a Content-Security-Policy.

    >>> digest("alert(1)")
    'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"
