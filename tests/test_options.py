"""Options from dataclasses: each type's text, what is refused, groups, and the same from a config."""

import argparse
import dataclasses
import functools
import re
from typing import Annotated, Literal

import pytest

from rococo_jax.options import Group, Option, add_options, parse, read, refuse_combinations
from tests.support.refusals import refused


@dataclasses.dataclass(frozen=True)
class Questions:
    """Options of a command.

    Attributes:
        kinds: of questions, 100 % of them
        seeds: of the drawing
        folders: where they are,
            each by name
        limit: at most (default: 0, all)
    """

    kinds: tuple[str, ...] = ("a", "b")
    seeds: Annotated[tuple[int, ...], Option("N,N")] = (1, 10)
    folders: Annotated[tuple[tuple[str, str], ...], Option("NAME=DIR")] = ()
    limit: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    """Draw.

    Attributes:
        models: which
        out: where
        way: how
        share: of the images
        extra: words
        fast: no care
        asked: questions
    """

    models: Annotated[tuple[str, ...], Option("MODEL", positional=True)] = ()
    out: Annotated[str, Option("DIR", check=str.upper)]
    way: Literal["mix", "patch"] | None = None
    share: float = 0.5
    extra: Annotated[tuple[str, ...], Option(repeated=True)] = ()
    fast: bool = False
    asked: Annotated[Questions, Group(("kinds", "seeds", "folders"), {"seeds": "drawing_seeds"})]


def drawn(*words: str) -> Drawing:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser, Drawing)
    return parse(Drawing, vars(parser.parse_args(words)))


def test_values_of_every_type_are_parsed_from_text():
    words = "m n --out here --way mix --share 0.9 --extra x,y --extra z --fast --kinds c,d --drawing-seeds 3"
    found = drawn(*words.split(), "--folders", "a=b", "--folders", "c=d=e")
    asked = Questions(("c", "d"), (3,), (("a", "b"), ("c", "d=e")))
    assert found == Drawing(
        models=("m", "n"), out="HERE", way="mix", share=0.9, extra=("x,y", "z"), fast=True, asked=asked
    )


def test_absent_options_have_the_default_of_the_dataclass_and_none_means_empty():
    assert drawn("--out", "x") == Drawing(out="X", asked=Questions())
    assert drawn("--out", "x", "--kinds", "none").asked.kinds == ()


@pytest.mark.parametrize(("words", "said"), [
    ("--drawing-seeds 1,x", "--drawing-seeds: numbers: found 1,x; wanted whole numbers with commas"),
    ("--share half", "--share: number: found half; wanted a number"),
    ("--folders a", "--folders: entry: found a; wanted NAME=DIR, each name once"),
    ("--folders a=b --folders a=c", "--folders: entry: found a=c; wanted NAME=DIR, each name once"),
])  # fmt: skip
def test_a_value_that_cannot_be_parsed_is_refused_with_its_option(words, said):
    refused(re.escape(said), drawn, "--out", "x", *words.split())


def test_a_config_sets_the_same_options_and_its_errors_name_the_keys():
    texts = {"kinds": "c", "seeds": "3,4", "folders": "a=b,c=d", "limit": 7, "other": "ignored"}
    assert read(Questions, texts, str) == Questions(("c",), (3, 4), (("a", "b"), ("c", "d")), 7)
    assert read(Questions, {"folders": "", "limit": 0}, str) == Questions()
    refused(r"config\.eval\.seeds: numbers: found ;", read, Questions, {"seeds": ""}, "config.eval.{}".format)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """Search.

    Attributes:
        method: how
        width: of the beam
        quick: at once
        slow: with care
        depth: of all
    """

    method: Literal["all", "beam"] = "all"
    width: Annotated[int, Option(needs=("method=beam",))] = 8
    quick: Annotated[bool, Option(excludes=("slow", "method=beam"))] = False
    slow: bool = False
    depth: Annotated[int, Option(needs=("quick", "!slow+!width"))] = 3


@pytest.mark.parametrize(("words", "said"), [
    ("--method beam --width 3", ""),
    ("--depth 3", ""),
    ("--depth 3 --quick --method all", ""),
    ("--width 3", "rococo x: --width: found it alone; wanted it with --method beam"),
    ("--width 3 --method all", "--width: found it alone"),
    ("--quick --slow", "--quick: found also --slow; wanted one of the two"),
    ("--quick --method beam", "--quick: found also --method beam"),
    ("--depth 3 --slow", "--depth: found it alone; wanted it with --quick or without --slow and --width"),
])  # fmt: skip
def test_options_that_require_or_exclude_each_other_are_checked_and_documented_in_the_help(words, said):
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser, Search)
    check = functools.partial(refuse_combinations, Search, vars(parser.parse_args(words.split())), "rococo x")
    refused(re.escape(said), check) if said else check()
    text = " ".join(parser.format_help().split())
    assert "of the beam (default: 8) (with --method beam)" in text
    assert "at once (not with --slow, not with --method beam)" in text


def test_the_help_contains_the_docstring_and_the_defaults():
    parser = argparse.ArgumentParser()
    add_options(parser, Drawing)
    text = " ".join(parser.format_help().split())
    for said in (
        "of questions, 100 % of them (default: a,b)",
        "--drawing-seeds N,N of the drawing (default: 1,10)",
        "where they are, each by name",
        "--way {mix,patch} how",
        "questions: --kinds",
        "of the images (default: 0.5)",
    ):
        assert said in text
    assert "--limit" not in text
