"""BibTeX has what CITATION.cff and the benchmarks declare, each paper once, and nothing else."""

import re
from pathlib import Path

import yaml

from rococo_jax.benchmarks.benchmark import known_benchmarks
from rococo_jax.benchmarks.citations import bibtex
from rococo_jax.cli import benchmarks
from tests.support.commands import run_command

CITATION = yaml.safe_load((Path(__file__).parents[2] / "CITATION.cff").read_text())
ENTRY = re.compile(r"@(\w+)\{([^,]+),\n((?:  \w+ += \{.*\},?\n)+)\}")


def entries_of(text: str) -> dict[str, dict[str, str]]:
    """The fields of each entry, by key; all text outside of entries is comments."""
    assert all(not line or line.startswith("%") for line in ENTRY.sub("", text).splitlines())
    entries = {}
    for _, key, fields in ENTRY.findall(text):
        assert key not in entries and fields.count("{") == fields.count("}")
        entries[key] = dict(re.findall(r"  (\w+) += \{(.*)\},?", fields))
    return entries


def plain(text: str) -> str:
    return text.strip("{}").replace("\\", "")


def test_software_and_rococo_are_cited_as_in_the_citation_file():
    entries = entries_of(bibtex([known_benchmarks()["rococo"]]))
    assert [*entries] == ["rococo_jax", "rococo"]
    (paper,) = CITATION["references"]
    for entry, cited in (("rococo_jax", CITATION), ("rococo", paper)):
        assert plain(entries[entry]["title"]) == cited["title"]
    assert entries["rococo_jax"]["version"] == CITATION["version"]
    assert plain(entries["rococo_jax"]["author"]) == CITATION["authors"][0]["name"]
    names = [f"{each['family-names']}, {each['given-names']}" for each in paper["authors"]]
    assert entries["rococo"]["author"] == " and ".join(names)
    assert entries["rococo"]["year"] == str(paper["year"]) and entries["rococo"]["url"] == paper["url"]


def test_each_paper_of_all_benchmarks_is_cited_once_without_invented_authors(capsys):
    run_command(benchmarks, "--cite")
    entries = entries_of(capsys.readouterr().out)
    papers = {info.paper for info in known_benchmarks().values() if not info.paper.startswith("none")}
    assert len(entries) == len(papers) + 1
    assert "classes" not in entries and {"negbench", "negbench_retrieval"} & entries.keys() == {"negbench"}
    text = str([*entries.values()])
    assert all(number in text for paper in papers for number in re.findall(r"\d{4}\.\d{5}", paper))
    assert [key for key, fields in entries.items() if "author" in fields] == ["rococo_jax", "rococo"]
    assert entries["objectnet"] == {"note": "ObjectNet, Barbu et al., NeurIPS 2019"}
    assert entries["whatsup"]["year"] == "2023" and 'What\'s "up" with' in entries["whatsup"]["title"]


def test_only_the_named_benchmarks_are_cited(capsys):
    run_command(benchmarks, "winoground", "--cite")
    entries = entries_of(capsys.readouterr().out)
    assert [*entries] == ["rococo_jax", "winoground"]
    assert entries["winoground"]["journal"] == "arXiv preprint arXiv:2204.03162"
