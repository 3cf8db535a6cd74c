"""One self-contained HTML file: the style sheet, the script and a policy that lets nothing be loaded.

A content security policy inside the page forbids every load and every script but our own (by its hash), so that
neither a caption nor a file name can do what the escaping should already have prevented.
"""

import base64
import hashlib
import importlib.resources
import string
from collections.abc import Sequence

from rococo_jax.report.markup import Markup, join
from rococo_jax.version import __version__


def document(
    title: str, body: Markup, command: str, styles: Sequence[str] = ("page.css",), script: str | None = "page.js"
) -> str:
    """The whole page as HTML.

    Args:
        title: of the browser's window.
        body: what is shown.
        command: the command that made the page, for its foot.
        styles: style sheets, one after the other.
        script: the script, or None for a page without one.
    """
    code = "" if script is None else _asset(script)
    return string.Template(_asset("page.html")).substitute(
        title=join(title),
        style="".join(map(_asset, styles)),
        script=code,
        script_hash=base64.b64encode(hashlib.sha256(code.encode()).digest()).decode(),
        body=body,
        command=join(command),
        version=join(__version__),
    )


def _asset(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
