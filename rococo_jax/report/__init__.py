"""The report: one self-contained page, its numbers as CSV, and its tables as Markdown, from any number of results.

Other pages are made of the same `blocks` (tables, tiles, charts, ...) and written by `markdown.write_page`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rococo_jax.errors import InputError

if TYPE_CHECKING:  # loads NumPy and Matplotlib
    from rococo_jax.report.blocks import Table
    from rococo_jax.report.collection import Group
    from rococo_jax.report.comparison import Comparisons

__all__ = ["page_path", "write_compared", "write_report"]


def write_report(
    sources: str | Path | Iterable[str | Path], out: str | Path, reference: str | None = None
) -> tuple[Path, Path]:
    """Write the page `out` and, beside it, the same numbers as CSV, one row per metric, and as Markdown.

    Equal results give equal bytes.

    Args:
        sources: one results file or folder that contains some, or several (a folder of per-model folders included).
        out: the page; its name must end in `.html` or `.htm`.
        reference: label of the model that all others are compared with; the first result by default.

    Returns:
        Page and CSV. The Markdown file has the page's name with `.md`.

    Raises:
        InputError: no results, a file that is missing, cut short or not what it should be, an unsuitable `out`, or an
            unknown `reference`.
    """
    from rococo_jax.report.collection import group_by_fingerprint, load_results
    from rococo_jax.report.comparison import compare_groups

    page = page_path(out)
    groups = group_by_fingerprint(load_results([sources] if isinstance(sources, str | Path) else sources))
    if not groups:
        raise InputError("RESULTS", "sources", "none", "at least one results file or folder")
    return write_compared(groups, compare_groups(groups, reference), page)


def write_compared(
    groups: "Sequence[Group]",
    comparisons: "Comparisons",
    page: Path,
    *,
    leaderboards: "Sequence[Table] | None" = None,
    explorer: Path | None = None,
) -> tuple[Path, Path]:
    """Write the page of groups of results that were compared, and its tables beside it; see `write_report`.

    Args:
        leaderboards: of each group, if they are known already.
        explorer: page of all items in the same folder, to link to.
    """
    from rococo_jax.report.exports import write_csv
    from rococo_jax.report.markdown import write_page
    from rococo_jax.report.page import report_page

    table = page.with_suffix(".csv")
    files = {"All numbers as CSV": table.name} | ({"Every answer": explorer.name} if explorer else {})
    content = report_page(groups, files, comparisons, leaderboards)
    write_csv(table, groups, comparisons)
    return write_page(page, content), table


def page_path(out: str | Path) -> Path:
    """`out` as a path; InputError where it does not end in `.html` or `.htm`."""
    path = Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(out, "`out`", f"a name that ends in {path.suffix!r}", "a name that ends in .html")
    return path
