"""One self-contained HTML file from blocks: templates, style sheet, script, and a policy that lets nothing be loaded.

Jinja2 escapes every string. A content security policy inside the page also forbids every load and every script but our
own (by its hash).
"""

import base64
import functools
import hashlib
import importlib.resources
from collections.abc import Sequence

import jinja2
from markupsafe import Markup

from rococo_jax.report.blocks import Block
from rococo_jax.report.svg import palette_css
from rococo_jax.report.vocabulary import printable
from rococo_jax.version import __version__


def render_page(
    title: str,
    command: str,
    lede: str,
    blocks: Sequence[Block | None],
    after: Sequence[Block | None] = (),
    links: Sequence[tuple[str, str]] = (),
    script: bool = True,
) -> str:
    """The whole page as HTML.

    Args:
        title: heading of the page and title of the browser's window.
        command: the command that made the page.
        lede: what the page is about.
        blocks: the main content.
        after: what follows it.
        links: `(text, address)` of the table of contents.
        script: whether tables can be sorted and filtered.
    """
    code = asset("page.js") if script else ""
    return _environment().get_template("page.html").render(
        title=title, command=command, lede=lede, blocks=blocks, after=after, links=links, version=__version__,
        style=Markup(palette_css() + asset("page.css")), script=Markup(code),
        script_hash=base64.b64encode(hashlib.sha256(code.encode()).digest()).decode(),
    )  # fmt: skip


def render_block(block: Block) -> Markup:
    """One block as HTML."""
    return _environment().get_template("blocks.html").module.show(block)


def asset(name: str) -> str:
    """The text of a file of `assets/`."""
    return importlib.resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def data_uri(jpeg: bytes) -> str:
    """A JPEG inside a `data:` address."""
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode()


def jpeg_size(jpeg: bytes | None) -> tuple[int, int]:
    """Width and height of a JPEG, from its frame header; (0, 0) where there is none."""
    place, jpeg = 2, jpeg or b""
    while place + 9 <= len(jpeg) and jpeg[place] == 0xFF:
        marker, length = jpeg[place + 1], int.from_bytes(jpeg[place + 2 : place + 4])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(jpeg[place + 7 : place + 9]), int.from_bytes(jpeg[place + 5 : place + 7])
        place += 2 + length
    return 0, 0


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
    )
    environment.filters |= {"data_uri": data_uri, "jpeg_size": jpeg_size}
    environment.filters["score"] = lambda score: f"{score:.3f}".replace("-", "−")
    return environment
