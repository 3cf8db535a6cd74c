r"""LaTeX of a `blocks.Table`, which needs the package `booktabs` alone and compiles with pdflatex.

A cell is a line for its text and a smaller one for each line below it (interval, rank). A star marks a significant
difference; the notes of the table and the version that wrote it are a footnote below it.
"""

import unicodedata
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from rococo_jax.report.blocks import Cell, Table, Text
from rococo_jax.version import __version__

_SYMBOLS: Mapping[str, str] = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", '"': "''", "`": r"\textasciigrave{}"},
    # At the beginning of a row these would be arguments of the line before.
    **{"[": "{[}", "]": "{]}", "*": "{*}"},
    # Two of them would be one longer dash.
    **{
        "-": "{-}",
        "−": "$-$",
        "–": "--",
        "—": "---",
        "±": r"$\pm$",
        "×": r"$\times$",
        "·": r"$\cdot$",
        "°": r"$^\circ$",
    },
    **{"→": r"$\to$", "←": r"$\leftarrow$", "≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "…": r"\ldots{}"},
    **{"²": r"$^2$", "³": r"$^3$", "\u00a0": "~", "\u2009": r"\,", "‘": "`", "’": "'", "“": "``", "”": "''"},
    **{"ß": r"\ss{}", "æ": r"\ae{}", "Æ": r"\AE{}", "ø": r"\o{}", "Ø": r"\O{}", "œ": r"\oe{}", "Œ": r"\OE{}"},
    **{"ł": r"\l{}", "Ł": r"\L{}", "ı": r"\i{}", "µ": r"$\mu$", "§": r"\S{}"},
}
# Combining characters and the commands of their accents.
_ACCENTS: Mapping[str, str] = {
    **{"\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": "."},
    **{"\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c", "\u0328": "k"},
}
# Up to how many columns a table has letters of which size, with which for the lines below a text, and how many lines of
# a page are left by caption and headings.
_SIZES = (
    (4, "", r"\scriptsize", 32),
    (6, r"\footnotesize", r"\scriptsize", 38),
    (10_000, r"\scriptsize", r"\tiny", 44),
)


def escaped(text: Text) -> str:
    r"""Escape text for LaTeX; a letter that pdflatex cannot write without further packages becomes its code point.

    >>> escaped("a_b & 5 % −1 #2 ~x^2"), escaped("é ŏ 中")
    ('a\\_b \\& 5 \\% $-$1 \\#2 \\textasciitilde{}x\\textasciicircum{}2', "\\'{e} \\u{o} {[}U+4E2D{]}")
    """
    plain = text.striptags() if isinstance(text, Markup) else text
    # Line breaks and control characters; a space that LaTeX knows, such as a thin one, stays.
    one_line = "".join(" " if letter in "\n\r\t" else letter for letter in plain)
    return "".join(map(_letter, one_line))


def _letter(letter: str) -> str:
    if letter in _SYMBOLS:
        return _SYMBOLS[letter]
    if " " <= letter <= "~":
        return letter
    base, *accents = unicodedata.normalize("NFD", letter)
    if len(accents) == 1 and accents[0] in _ACCENTS and base.isascii() and base.isalpha():
        return f"\\{_ACCENTS[accents[0]]}{{{base}}}"
    return escaped(f"[U+{ord(letter):04X}]")


def latex_table(table: Table) -> str:
    r"""Return a `table` environment for `\usepackage{booktabs}`, or several for more lines than a page has."""
    columns = len(table.heads)
    size, small, most_lines = next(each[1:] for each in _SIZES if columns <= each[0])
    alignment = "".join("l" if head.words else "r" for head in table.heads)
    heads = [*_group_lines(table), *_row_lines([Cell(head.label, head.small) for head in table.heads], small)]
    body = [[_row_lines(row, small) for row in rows] for rows in (table.rows, table.references)]
    pages: list[list[str]] = [[]]
    for place, rows in enumerate(body):
        for number, lines in enumerate(rows):
            if len(pages[-1]) + len(lines) > most_lines:
                pages.append([])
            pages[-1] += [r"\midrule", *lines] if place and not number else lines
    footnote = " ".join(map(escaped, [*table.notes, f"Computed by rococo_jax {__version__}."]))
    text = ["% \\usepackage{booktabs}"]
    for number, lines in enumerate(pages, 1):
        part = f", part {number} of {len(pages)}" if len(pages) > 1 else ""
        text += [r"\begin{table}[tbp]", rf"\centering{size}", rf"\caption{{{escaped(table.caption + part)}}}"]
        text += [
            rf"\setlength{{\tabcolsep}}{{{3 if size else 6}pt}}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
        ]
        text += [*heads, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]
        if number == len(pages):
            text += ["", r"\smallskip", rf"\parbox{{\linewidth}}{{\footnotesize {footnote}}}"]
        text.append(r"\end{table}")
    return "\n".join(text) + "\n"


def _group_lines(table: Table) -> list[str]:
    if not any(label for label, _, _ in table.groups):
        return []
    cells, rules, start = [""] * table.lead, [], table.lead + 1
    for label, columns, _ in table.groups:
        cells.append(rf"\multicolumn{{{columns}}}{{c}}{{{escaped(label)}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + columns - 1}}}")
        start += columns
    return [" & ".join(cells) + r" \\", " ".join(rules)]


def _row_lines(cells: Sequence[Cell], small_type: str) -> list[str]:
    """Return a line of texts, and one of smaller type for each line below them."""
    lines = [[_text(cell) for cell in cells]]
    for number in range(max(len(cell.small) for cell in cells)):
        small = [escaped(cell.small[number]) if number < len(cell.small) else "" for cell in cells]
        lines.append([rf"{{{small_type} {text}}}" if text else "" for text in small])
    rows = [" & ".join(line) + r" \\" for line in lines]
    return rows if len(rows) == 1 else [*rows[:-1], rf"{rows[-1]}[2pt]"]


def _text(cell: Cell) -> str:
    return escaped(cell.text) + (r"\textsuperscript{*}" if cell.strong else "")
