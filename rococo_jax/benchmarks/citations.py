"""BibTeX of benchmarks, from the title and arXiv number that each declares, and of this software.

The year is that of the arXiv number. Authors are given where this project records them; other entries have none, and a
comment with the address that lists them.
"""

import re
from collections.abc import Iterable

from rococo_jax.benchmarks.benchmark import BenchmarkInfo, known_benchmarks
from rococo_jax.version import __version__

# As in CITATION.cff.
TITLE = "rococo_jax: robustness of image-text models under altered captions and mixed images"
AUTHORS = {
    "2304.10727": "Park, Seulki and Um, Daeho and Yoon, Hajung and Chun, Sanghyuk and Yun, Sangdoo and Choi, Jin Young"
}
_ARXIV = re.compile(r"(?P<title>.+), arXiv (?P<number>(?P<year>\d\d)\d\d\.\d{4,5})")
_SPECIAL = re.compile(r"([&%$#_{}])")


def bibtex(benchmarks: Iterable[BenchmarkInfo] = ()) -> str:
    """Return BibTeX of this software and of each paper of the benchmarks, once.

    A benchmark without a paper, such as one of your own, has no entry.
    """
    entries = [
        _entry(
            "software",
            "rococo_jax",
            title=f"{{{_escaped(TITLE)}}}",
            author=r"{The rococo\_jax authors}",
            version=__version__,
        )
    ]
    papers: dict[str, str] = {}
    for info in benchmarks:
        if not info.paper.startswith("none") and info.paper:
            papers.setdefault(info.paper, info.name)
    return "\n\n".join([*entries, *(_paper(paper, name) for paper, name in papers.items())])


def bibtex_of(names: Iterable[str]) -> str:
    """Return BibTeX of this software and of the benchmarks of these names; one that it does not know has no entry."""
    known = known_benchmarks()
    return bibtex(known[name] for name in dict.fromkeys(names) if name in known)


def _paper(paper: str, name: str) -> str:
    """Return the entry of a paper; one without an arXiv number is a note, because its parts are not known."""
    match = _ARXIV.fullmatch(paper)
    if match is None:
        return _entry("misc", name, note=_escaped(paper))
    number, address = match["number"], f"https://arxiv.org/abs/{match['number']}"
    authors = AUTHORS.get(number)
    entry = _entry(
        "article",
        name,
        title=f"{{{_escaped(match['title'])}}}",
        **({"author": authors} if authors else {}),
        journal=f"arXiv preprint arXiv:{number}",
        year=f"20{match['year']}",
        url=address,
    )
    return entry if authors else f"% authors: {address}\n{entry}"


def _entry(kind: str, key: str, **fields: str) -> str:
    lines = [f"  {name:7} = {{{value}}}" for name, value in fields.items()]
    return f"@{kind}{{{key},\n" + ",\n".join(lines) + "\n}"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
