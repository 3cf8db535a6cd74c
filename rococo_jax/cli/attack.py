"""`rococo attack`: the smallest change of a caption or of pixels that fools a model, for each image or caption."""

import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rococo_jax.cli.inputs import PairOptions
from rococo_jax.cli.outputs import output_folder
from rococo_jax.evaluation.options import EmbeddingOptions, ModelOptions
from rococo_jax.options import Option

if TYPE_CHECKING:  # JAX takes a second
    from rococo_jax.attacks.captions import CaptionAttack
    from rococo_jax.attacks.run import AttackedData, AttackedModel
    from rococo_jax.benchmarks.benchmark import Benchmark
    from rococo_jax.data.captions import CaptionedImage
    from rococo_jax.encoders.protocol import LoadedModel

EXAMPLES = """\
  rococo attack demo:plain --images photos --captions captions.json --out out/attack
  rococo attack models/a models/b --data DATA --benchmarks mine --words 1,2 --search beam --out out/attack
  rococo attack models/a --images photos --captions captions.json --words 1 --changes same_concept,attribute \\
      --inserted captions --lexicon nouns.json --out out/nouns
  rococo attack my_models.py:make_clip --images photos --captions captions.json --characters 1 --queries 500 --out out/x
  rococo attack models/a --images photos --captions captions.json --pixels 1/255,2/255,4/255 --norm linf \\
      --steps 100 --out out/pixels
  rococo attack models/a --data DATA --benchmarks classes --pixels 1/255 --out out/classes
Next: `rococo evaluate MODEL --images photos --annotations out/attack/annotations --out OUT`.
If this command is interrupted, run it again: it resumes."""


# What the options of an attack on words, on words or characters, and on pixels need.
_WORDS = ("words", "!characters+!pixels")
_CAPTIONS = ("words", "characters", "!pixels")
_OF_PIXELS = Option(needs=("pixels",))


def radii(text: str) -> tuple[float, ...]:
    """Read radii, numbers or fractions. Raises InputError for another text."""
    from rococo_jax.errors import InputError

    try:
        return tuple(sorted({float(Fraction(part)) for part in text.split(",")}))
    except (ValueError, ZeroDivisionError):
        wanted = "numbers or fractions with commas between them, such as 1/255,2/255"
        raise InputError("--pixels", "numbers", text, wanted) from None


@dataclasses.dataclass(frozen=True)
class AttackedPairs(PairOptions):
    """Images and captions.

    Attributes:
        images: folder of images, or a source with captions, instead of --data
    """

    images: Annotated[str, Option("DIR")] = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Attack models: find the smallest change of a caption or of pixels that makes a right query wrong.

    Attributes:
        models: models, as `rococo evaluate` takes them; several are compared with the first, and attacks transferred
        out: output folder: attack.json, items.parquet, and annotations/ and attacked_images/, which `rococo evaluate`
            reads; of several models in a folder each, beside comparison.json
        data: folder in the documented layout, instead of --images and --captions
        benchmarks: the benchmark under --data whose captions are attacked (default: the only one that ranks captions);
            for --pixels alone also one with classes
        templates: prompts of classes: 1, 5, 30 or 80 of ours, or a file with one template per line, {} for the class
        words: numbers of changed words, such as 1,2 (default: 1, without --characters and --pixels)
        characters: numbers of changed letters of the queries of text-to-image retrieval, such as 1,2
        pixels: radii of changes of pixels from 0 to 1, such as 1/255,2/255,4/255; only models of this project
        norm: norm of the radii
        steps: gradient steps of each restart
        restarts: random starts
        loss: what is maximised: cross-entropy (ce), margin of the best wrong caption, difference of logits ratio (dlr),
            or several in turn
        goal: the altered caption must be as similar as every caption (gallery), or as the image's own captions (own)
        changes: replace a noun (same_concept, diff_concept, danger), replace an attribute, relation or count, swap two
            words (order), add a word (negation, addition), remove a negation (deletion)
        inserted: insert any word of the lexicon and of the rules, or only words that captions of the data contain
        lexicon: concept groups as JSON, or demo, that of the drawn scenes (default: the shipped lexicon)
        search: try all changes (exhaustive), change the best candidates again (beam), or change words in the order of
            their influence (greedy)
        width: candidates of each caption that a beam keeps
        queries: largest number of altered captions that are scored for a query (default: no limit)
        witness: altered caption to return: of the smallest successful changes the one with the highest margin, or the
            first that is found, which ends the query and needs a fraction of the work
        universal: also search this number of altered captions that rank first for most images
        seed: seed of the order in which changes are tried (default: 0)
        pairs: images and captions
        model: model
        embedding: embedding
    """

    models: Annotated[tuple[str, ...], Option("MODEL", positional=True)]
    out: Annotated[str, Option("DIR", check=output_folder)]
    data: Annotated[str | None, Option("DATA")] = None
    benchmarks: Annotated[tuple[str, ...], Option("NAME", needs=("data",))] = ()
    templates: Annotated[str, Option("N|FILE", needs=("pixels",))] = "80"
    words: Annotated[tuple[int, ...], Option("N,N", least=1)] = ()
    characters: Annotated[tuple[int, ...], Option("N,N", least=1)] = ()
    pixels: Annotated[tuple[float, ...], Option("E,E", check=radii)] = ()
    norm: Annotated[Literal["linf", "l2"], _OF_PIXELS] = "linf"
    steps: Annotated[int, Option("N", least=1, needs=("pixels",))] = 100
    restarts: Annotated[int, Option("K", least=1, needs=("pixels",))] = 1
    loss: Annotated[str, Option("A+B", needs=("pixels",))] = "ce+margin"
    goal: Annotated[Literal["gallery", "own"], Option(needs=_WORDS)] = "gallery"
    changes: Annotated[tuple[str, ...], Option("A,B", needs=_WORDS)] = (
        "same_concept", "attribute", "relation", "count", "order", "negation", "addition",
    )  # fmt: skip
    inserted: Annotated[Literal["all", "captions"], Option(needs=_WORDS)] = "all"
    lexicon: Annotated[str | None, Option("F", needs=_CAPTIONS)] = None
    search: Annotated[str, Option("NAME", needs=_CAPTIONS)] = "exhaustive"
    width: Annotated[int, Option("N", flag="beam-width", least=1, needs=("search=beam",))] = 8
    queries: Annotated[int | None, Option("N", least=1, needs=_CAPTIONS)] = None
    witness: Annotated[Literal["best", "first"], Option(needs=_CAPTIONS)] = "best"
    universal: Annotated[int | None, Option("N", least=1, needs=_WORDS)] = None
    seed: Annotated[int, Option("N")] = 0
    pairs: AttackedPairs
    model: ModelOptions
    embedding: EmbeddingOptions


def run(options: Options) -> None:
    from rococo_jax.attacks.pixels import PixelAttack
    from rococo_jax.attacks.run import attack_models
    from rococo_jax.encoders.loading import load_encoder
    from rococo_jax.evaluation.model_list import read_models
    from rococo_jax.runtime import enable_compilation_cache, set_gpu_options
    from rococo_jax.storage import write_json

    set_gpu_options()
    enable_compilation_cache()
    compute, load_options = options.embedding.compute(), options.model.load_options()
    sources = {model.name: model.source for model in read_models(options.models)}
    attacks = _attacks(options)
    pixels = None
    if options.pixels:
        pixels = PixelAttack(options.pixels, options.norm, options.steps, options.restarts, options.loss, options.seed)
    data = _data(options)
    folders = {name: Path(options.out) / (name if len(sources) > 1 else "") for name in sources}

    def load(name: str) -> "LoadedModel":
        model = load_encoder(sources[name], compute=compute, options=load_options)
        model.name = name
        return model

    models, comparison = attack_models(
        load,
        folders,
        data,
        attacks,
        options.embedding.open_cache(),
        pixels=pixels,
        by_pairs=options.model.by == "pairs",
        universal=options.universal or 0,
    )
    for name, each in models.items():
        _write_annotations(folders[name], data.items, each)
    if comparison:
        write_json(Path(options.out) / "comparison.json", comparison)
    if not options.embedding.quiet:
        _print(models, comparison)


def _attacks(options: Options) -> "list[CaptionAttack]":
    """Return the requested attacks."""
    from rococo_jax.attacks.captions import CaptionAttack
    from rococo_jax.perturb.text.lexicon import open_lexicon

    budgets = {"words": options.words, "characters": options.characters}
    if not any(budgets.values()) and not options.pixels:
        budgets["words"] = (1,)
    attack = CaptionAttack(
        "words", (), options.goal, open_lexicon(options.lexicon or ""), options.changes, options.inserted == "captions",
        options.search, options.width, options.queries, options.seed, options.witness,
    )  # fmt: skip
    return [
        dataclasses.replace(
            attack,
            unit=unit,
            budgets=tuple(sorted(set(numbers))),
            goal=options.goal if unit == "words" else "image",
        )
        for unit, numbers in budgets.items()
        if numbers
    ]


def _data(options: Options) -> "AttackedData":
    """Return the images with their captions or classes.

    Raises InputError: neither or both ways of naming data are used, or not one benchmark can be attacked.
    """
    from rococo_jax.attacks.run import AttackedData
    from rococo_jax.benchmarks.settings import Settings
    from rococo_jax.errors import InputError
    from rococo_jax.evaluation.inputs import open_benchmarks

    if bool(options.data) == bool(options.pairs.images):
        found = "both" if options.data else "neither"
        raise InputError("rococo attack", "data", found, "--data, or --images and --captions")
    if options.pairs.images:
        pairs = options.pairs.read()
        return AttackedData(pairs.items, pairs.paths, pairs.hash())
    settings = Settings(mixed_galleries=(), templates=(options.templates,))
    benchmarks = open_benchmarks(settings, data=options.data, names=options.benchmarks)
    usable = {benchmark.name: data for benchmark in benchmarks if (data := captioned_images(benchmark))}
    if not usable and options.pixels and not (options.words or options.characters):
        usable = {benchmark.name: data for benchmark in benchmarks if (data := labelled_images(benchmark))}
    if len(usable) != 1:
        found = ", ".join(usable) or "none that ranks captions"
        wanted = "one that ranks captions, or for --pixels alone has classes, named by --benchmarks"
        raise InputError(options.data, "benchmarks", found, wanted)
    (data,) = usable.values()
    return data


def captioned_images(benchmark: "Benchmark") -> "AttackedData | None":
    """Return the images of a benchmark's clean retrieval task with their captions, and the files; None without one."""
    import numpy as np

    from rococo_jax.attacks.run import AttackedData
    from rococo_jax.benchmarks.tables import ORIGINALS
    from rococo_jax.benchmarks.tasks.rank import IMAGE_TO_TEXT
    from rococo_jax.benchmarks.variants import CLEAN
    from rococo_jax.data.captions import CaptionedImage
    from rococo_jax.storage import hash_json

    tasks = (task for task in benchmark.tasks if task.name == IMAGE_TO_TEXT and task.variant == CLEAN)
    task, files = next(tasks, None), benchmark.image_sets.get(ORIGINALS)
    if task is None or not hasattr(files, "paths"):
        return None
    texts = np.array(benchmark.texts, object)[task.gallery.index]
    images = task.query_group.tolist()
    items = [
        CaptionedImage(benchmark.images[image], tuple(texts[(task.gallery_group == image) & ~task.gallery_altered]))
        for image in images
    ]
    return AttackedData(items, [files.paths[image] for image in images], hash_json(benchmark.fingerprint()))


def labelled_images(benchmark: "Benchmark") -> "AttackedData | None":
    """Return the images of a benchmark's first classification task, with labels as captions; None without one."""
    from rococo_jax.attacks.run import AttackedData
    from rococo_jax.benchmarks.tables import ORIGINALS
    from rococo_jax.benchmarks.tasks.classify import ClassifyTask
    from rococo_jax.data.captions import CaptionedImage
    from rococo_jax.storage import hash_json

    task = next((task for task in benchmark.tasks if isinstance(task, ClassifyTask)), None)
    files = benchmark.image_sets.get(ORIGINALS)
    if task is None or not hasattr(files, "paths"):
        return None
    named = benchmark.conditions["classes"]
    labels = sorted(named, key=lambda label: (named[label], label))  # the order of the task's classes
    items = [
        CaptionedImage(benchmark.images[image], (labels[label],))
        for image, label in zip(task.image_names.tolist(), task.label.tolist(), strict=True)
    ]
    prompts = ([benchmark.texts[row] for row in rows] for rows in task.prompts.tolist())
    classes = {label: (named[label], each) for label, each in zip(labels, prompts, strict=True)}
    paths = [files.paths[image] for image in task.image_names.tolist()]
    return AttackedData(items, paths, hash_json([benchmark.fingerprint(), classes]), classes)


def _write_annotations(folder: Path, items: "Sequence[CaptionedImage]", model: "AttackedModel") -> None:
    """Write captions and attacked captions as a benchmark annotation, one altered caption for each image."""
    from rococo_jax.benchmarks.rococo.annotations import AlteredCaptions, write_annotation
    from rococo_jax.storage import write_json

    records = model.records.get("words")
    if records is None:
        return
    captions_of_images, changes = [], []
    for item, record in zip(items, records, strict=True):
        places = range(len(item.captions))
        captions_of_images.append(
            AlteredCaptions(
                item.image, item.captions, tuple(record["text"] if n == record["caption"] else None for n in places)
            )
        )
        about = {key: record[key] for key in ("smallest", "margin", "right", "changes")}
        changes.append([about if number == record["caption"] else None for number in places])
    annotations = folder / "annotations"
    write_json(annotations / "captions.json", [{"image": i.image, "caption": list(i.captions)} for i in items])
    made_by = {key: model.summary[key] for key in ("rococo_jax", "model", "attacks", "fingerprint")}
    write_annotation(annotations / "attacked.json", "attacked", captions_of_images, made_by=made_by, changes=changes)


def _print(models: "Mapping[str, AttackedModel]", comparison: Mapping[str, Any]) -> None:
    """Print R@1, survival and certificates for each model and budget, then differences and transfer."""
    from rococo_jax.report.markdown import print_table

    names = (
        "Model", "Attack", "Changes", "R@1", "R@1 after", "95 %", "Survival", "95 % ", "FR@1", "Proved, broken, open",
    )  # fmt: skip
    rows = []
    for name, model in models.items():
        for unit, results in model.summary["results"].items():
            for label, certificates in results.get("certificates", {}).items():
                values, intervals = results["values"], results["intervals"]
                cells = [f"{values['r1']:.1f}"]
                for metric in (f"r1_{label}", f"survival_{label}"):
                    low, high = intervals[metric] or (float("nan"),) * 2
                    cells += [f"{values[metric]:.1f}", f"{low:.1f} to {high:.1f}"]
                counts = ", ".join(str(certificates.get(kind, 0)) for kind in ("proved", "broken", "open"))
                rows.append([name, unit, label, *cells, f"{values[f'fr1_{label}']:.1f}", counts])
    print_table(names, rows, names[2:])
    for name, model in models.items():
        for unit, results in model.summary["results"].items():
            if results.get("warning"):
                print(f"{name}, {unit}: {results['warning']}")
            if results.get("without_changes"):
                print(f"{name}, {unit}: {results['without_changes']} queries have no allowed change")
            for each in results.get("captions", ()):
                print(
                    f"{name}: {each['text']!r} and those above rank first for {each['found']:.1f} % of the images "
                    f"where they were found, {each['tested']:.1f} % of the others"
                )
    for unit, compared in comparison.items():
        if not isinstance(compared, Mapping):
            continue
        for each in compared["differences"]:
            print(
                f"{unit}: {each['model']} against {each['reference']}, {each['metric']}: {each['points']:+.1f} "
                f"({each['low']:+.1f} to {each['high']:+.1f}), p {each['p_corrected']:.3g}, {each['verdict']}"
            )
        for made_against, tested in compared["transfer"].items():
            cells = ", ".join(f"{name} {each['r1']:.1f}" for name, each in tested.items())
            print(f"{unit}: R@1 under the attack on {made_against}: {cells}")
