"""Divide items with true and false texts by whether training captions contain the bindings of these texts [ours].

A model that prefers true texts may only prefer what it has read before. So items whose true and false texts each have a
binding of their own (`perturb.text.bindings` has the parser) are counted once more, in four classes:

    PART/bindings_both_known          training captions contain these bindings of both sides
    PART/bindings_only_true_known     all of those of the true side, but not of the false side
    PART/bindings_only_false_known    all of those of the false side, but not of the true side
    PART/bindings_none_known          of neither side all

and, if there are several parts, over the items of all of them: `all/bindings_both_known`, ... The idea is that of the
protocol BindSplit (OpenReview 0riiPY0Egp, May 2026; read: its abstract). The parser and the classes are ours.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rococo_jax.benchmarks.benchmark import Benchmark
from rococo_jax.errors import InputError
from rococo_jax.perturb.text.bindings import PARSER, Binding, bindings_of, class_of
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.storage import hash_json


class KnownBindings(NamedTuple):
    """Bindings in training captions, and where they are from: source, number and hash of the captions; the parser."""

    bindings: frozenset[Binding]
    about: dict[str, Any]


def known_bindings(captions: Sequence[str], about: Mapping[str, Any]) -> KnownBindings:
    """Return the bindings in training captions. `about` has their `source` and `hash`.

    Raises InputError: there are none, as in captions that are not English.
    """
    lexicon = shipped_lexicon()
    bindings = bindings_of(captions, lexicon)
    if not bindings:
        found = f"none in {len(captions):,} captions, the first {captions[0][:60]!r}"
        raise InputError(about["source"], "bindings", found, "English captions, such as 'a red dog behind a tree'")
    return KnownBindings(bindings, {**about, "parser": PARSER, "lexicon": lexicon.hash()})


def with_bindings(benchmark: Benchmark, known: KnownBindings) -> Benchmark:
    """Return the benchmark with the class of each item of its choices among texts; unchanged if no item has one."""
    find_class = functools.partial(class_of, known=known.bindings, lexicon=shipped_lexicon())
    tasks = tuple(task.with_bindings(benchmark.texts, find_class) for task in benchmark.tasks)
    classes = np.concatenate([task.bindings for task in tasks if task.bindings is not None] or [np.empty(0, object)])
    count = int((classes != "").sum())
    if not count:
        return benchmark
    about = known.about
    identity = hash_json([about[key] for key in ("hash", "parser", "lexicon")])
    note = (
        f"variants with `bindings` divide the {count:,} of {len(classes):,} items whose true and false texts each have "
        f"a binding of their own, by the {about['captions']:,} captions of {about['source']} ({about['hash'][:12]}), "
        f"with version {PARSER} of the parser"
    )
    return dataclasses.replace(
        benchmark,
        tasks=tasks,
        notes=(*benchmark.notes, note),
        data={**benchmark.data, "bindings": {**about, "items": count}},
        requested={**benchmark.requested, "bindings": {"captions": {"from": about["source"], "sha256": identity}}},
    )
