"""The report: one self-contained page, a CSV and a Markdown file from any number of results."""

from collections.abc import Iterable
from pathlib import Path

from rococo_jax.errors import InputError
from rococo_jax.report.collection import group_by_fingerprint, load_results
from rococo_jax.report.comparison import compare_sections
from rococo_jax.report.markdown import write_markdown
from rococo_jax.report.page import render_page
from rococo_jax.report.spreadsheet import write_csv
from rococo_jax.storage import atomic_write

__all__ = ["write_report"]


def write_report(sources: Iterable[str | Path], out: str | Path, reference: str | None = None) -> tuple[Path, Path]:
    """Writes the page `out` and, beside it, the same figures as CSV and Markdown. Equal results give equal bytes.

    Args:
        sources: results files, or folders that contain them (a folder of per-model folders included).
        out: the page; its name must end in `.html` or `.htm`.
        reference: the model that others are compared with; by default the one with the best clean R@1.

    Returns:
        Page and CSV. The Markdown has the page's name with `.md`.

    Raises:
        InputError: no results, a file that is missing, cut short or not what it should be, an unsuitable `out`, or an
            unknown `reference`.
    """
    page = Path(out)
    if page.suffix.lower() not in (".html", ".htm"):
        raise InputError(out, "--out", f"a name that ends in {page.suffix!r}", "a name that ends in .html")
    sections = group_by_fingerprint(load_results([Path(source) for source in sources]))
    if not sections:
        raise InputError("RESULTS", "sources", "none", "at least one results file or folder")
    comparisons = compare_sections(sections, reference)
    table = page.with_suffix(".csv")
    html = render_page(sections, table.name, comparisons)
    write_csv(table, sections, comparisons)
    write_markdown(page.with_suffix(".md"), sections, comparisons)
    with atomic_write(page) as temporary:
        temporary.write_text(html, encoding="utf-8", errors="replace")
    return page, table
