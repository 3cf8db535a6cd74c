"""Facts about a group of results: data, protocol and coverage, how to repeat them, notes, and a card of each model.

Also each model in one line, the size of a task in one sentence, and the results of one model at several image sizes,
which are no further models for a study.
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from rococo_jax.benchmarks.benchmark import known_benchmarks
from rococo_jax.benchmarks.subset import phrase_of
from rococo_jax.benchmarks.variants import ALL, MEAN
from rococo_jax.errors import is_number, is_whole, object_of
from rococo_jax.evaluation.conditions import flatten
from rococo_jax.evaluation.model_list import size_suffix
from rococo_jax.evaluation.summary import joined_notes
from rococo_jax.report.blocks import Alert, Folded, Note, Notes, Part, PlainTable, Terms, Text, rich
from rococo_jax.report.collection import Group, Run, label_of, variants_of
from rococo_jax.report.vocabulary import PROTOCOLS, count, percent, task_label, variant_label
from rococo_jax.storage import hash_json

_SIZES = (("image_count", "images"), ("caption_count", "captions"))
_COSTS = (("image", "per image"), ("text", "per text of full length"))
_CARDS = "Origin of each model, how it was evaluated, and the fingerprint of everything that decides its results."
# Losses as the papers abbreviate them; others by their key.
_LOSSES = {"sc": "SC", "vc": "VC", "blind": "blind", "grounding": "grounding", "hard_positives": "hard positives"}
# Parts of a model's fingerprint that its image size changes.
_OF_SIZE = ("spec", "preprocessing")
# The runs of a model by image size, ascending, by its name.
_Sizes = dict[str, dict[int, Run]]


def coverage(data: dict[str, Any]) -> tuple[int, int, str] | None:
    """Return the images used, the images that the annotations name, and the reason for the difference.

    Returns None if all were used, or if the results do not contain the numbers.
    """
    about = object_of(data.get("coverage"))
    annotated_images, limit = about.get("wanted"), about.get("limit")
    images = about.get("present") if limit is None else data.get("image_count")
    if not is_whole(images) or not is_whole(annotated_images) or images >= annotated_images:
        return None
    return images, annotated_images, "were found" if limit is None else f"were used, because of the limit of {limit}"


def data_name(data: dict[str, Any]) -> str:
    """Return the name of the data as the results give it, else the end of the annotations' path."""
    if isinstance(data.get("name"), str):
        return data["name"]
    path = data.get("annotations")
    return "/".join(part for part in PurePath(path).parts[-2:] if part != "/") if isinstance(path, str) else ""


def group_name(group: Group) -> str:
    """Return the data and the protocol of a group of results as a title."""
    names = [name for data in group.data.values() if (name := data_name(data))]
    return ", ".join([*names, f"protocol {group.runs[0].results['protocol']}"])


def setting(group: Group) -> Terms:
    """Return the data of each benchmark, one line each, and the protocol."""
    first = group.runs[0]
    facts: list[tuple[str, Text]] = []
    for benchmark, data in group.data.items():
        # The texts of a benchmark that is one task are choices, not captions of images.
        is_one_task = any(benchmark in run.tasks for run in group.runs)
        names = [(key, "texts" if word == "captions" and is_one_task else word) for key, word in _SIZES]
        sizes = [f"{count(data[key])} {word}" for key, word in names if is_whole(data.get(key))]
        if line := ", ".join(filter(None, [data_name(data), *sizes])):
            facts.append((task_label(benchmark), line))
    protocol = first.results["protocol"]
    definition = f": {PROTOCOLS[protocol]}" if protocol in PROTOCOLS else ""
    return Terms([*facts, ("Protocol", rich("<b>{}</b>{}", protocol, definition))], "setting")


def repetition(group: Group) -> Folded:
    """Return how to repeat and cite the results, folded: the command, seeds, papers and versions."""
    sizes_of_runs = [size for run in group.runs for task in run.tasks for size in run.sizes(task).values()]
    seeds = ",".join(map(str, dict.fromkeys(seed for size in sizes_of_runs for seed in size.get("seeds") or ())))
    limits = {object_of(data.get("coverage")).get("limit") for data in group.data.values()} - {None}
    options = [*(f" --limit {limit}" for limit in limits), *([f" --seeds {seeds}"] if seeds else [])]
    command = "rococo evaluate MODEL ... --data DATA --benchmarks {} --protocol {}{} --out OUT".format(
        ",".join(group.benchmarks), group.runs[0].results["protocol"], "".join(options)
    )
    known = known_benchmarks()
    papers = dict.fromkeys(known[name].paper for name in group.benchmarks if name in known)
    draws = object_of(group.runs[0].results.get("bootstrap"))
    entries: list[tuple[Text, Text]] = [
        ("Command", rich("<code>{}</code>", command)),
        ("Mixing seeds", seeds.replace(",", ", ")),
        ("Bootstrap", f"{count(draws['resamples'])} draws of images, seed {draws['seed']}" if draws else ""),
        ("Papers", "; ".join(paper for paper in papers if paper and not paper.startswith("none"))),
        ("BibTeX", rich("<code>rococo leaderboard OUT --cite</code>")),
    ]
    return Folded("Repeat and cite", [Terms([(term, text) for term, text in entries if text])])


def differences(group: Group) -> Part:
    """Return the conditions in which a group differs from the first."""
    rows = [
        [field, *(rich('<span title="{}">{}</span>', text, _shortened(text)) for text in (first, this))]
        for field, first, this in group.differences
    ]
    note = "Not comparable with section 1, because these results were measured under other conditions:"
    return Part("", [Note(note, ""), PlainTable(rows, ("Field", "Section 1", "This section"))], style="differences")


def _shortened(text: str) -> str:
    return text if len(text) <= 48 else text[:24] + "…" + text[-12:]


def coverage_alerts(group: Group) -> list[Alert]:
    """Return a warning for each benchmark with missing images, or that was evaluated on a list."""
    alerts = []
    for name, data in group.data.items():
        if listed := phrase_of(data):
            text = f"{name}: {listed}. Compare these results with others on the same list only."
            alerts.append(Alert("Not comparable with results on everything.", text))
        if partial := coverage(data):
            images, annotated_images, reason = partial
            text = (
                f"Only {count(images)} of the {count(annotated_images)} images that the annotations of {name} name "
                f"{reason} ({percent(100 * images / annotated_images)} %). Items with missing images are excluded, and "
                "ranking a smaller gallery is easier: compare the models on this page with each other, not with "
                "published numbers."
            )
            alerts.append(Alert("Not comparable with results on all images.", text))
    return alerts


def notes(group: Group) -> Notes | None:
    """Return the notes that the results contain, each once, with the models it is about."""
    labels_of: dict[str, list[str]] = {}
    for run in group.runs:
        for note in dict.fromkeys(run.results.get("notes") or []):
            if isinstance(note, str):
                labels_of.setdefault(note, []).append(run.label)
    if any(map(coverage, group.data.values())):  # the warning above says the same
        labels_of = {note: labels for note, labels in labels_of.items() if not note.startswith(("only ", "limit: "))}
    lines = [
        note if len(labels) == len(group.runs) else f"{', '.join(labels)}: {note}"
        for note, labels in joined_notes(labels_of).items()
    ]
    lines = [*_repeated_results(group.runs), *lines]
    return Notes(lines) if lines else None


def _repeated_results(runs: Sequence[Run]) -> list[str]:
    """Name the runs that are one model with the same results, such as two copies of a folder."""
    labels: dict[str, list[str]] = {}
    for run in runs:
        model = object_of(run.results.get("fingerprint")).get("model")
        if model:
            labels.setdefault(hash_json([model, run.tasks]), []).append(run.label)
    repeated = [each for each in labels.values() if len(each) > 1]
    return [
        f"{', '.join(each)}: the same results of the same model, {len(each)} times in this report" for each in repeated
    ]


def model_cards(runs: Sequence[Run]) -> Part:
    """Return a card for each model, folded under its name."""
    cards = []
    for run in runs:
        fingerprint = Part("Fingerprint", [PlainTable(list(flatten(run.results["fingerprint"]).items()))], "")
        cards.append(Folded(run.label, [PlainTable(model_facts(run)), fingerprint], style="model-card"))
    return Part("Models", [Note(_CARDS), *cards], "task")


def model_facts(run: Run) -> list[tuple[str, str]]:
    """Return what the results say about a model and its evaluation, as terms and texts."""
    return [(term, text) for term, text in _facts(run) if text]


def _facts(run: Run) -> Iterator[tuple[str, str]]:
    about = object_of(run.results.get("about"))
    for term, value in object_of(about.get("provenance")).items():
        yield term.replace("_", " ").capitalize(), _words(value)
    counts, flops = object_of(about.get("parameters")), object_of(about.get("flops"))
    if is_whole(counts.get("total")):
        parts = ", ".join(f"{name.replace('_', ' ')} {count(n)}" for name, n in counts.items() if name != "total")
        yield "Parameters", f"{count(counts['total'])}: {parts}"
    costs = [f"{flops[part] / 1e9:.3g} GFLOP {unit}" for part, unit in _COSTS if is_whole(flops.get(part))]
    yield "Cost", ", ".join(costs)
    yield "Embedding", _words(about.get("embedding_dimensions")) and f"{about['embedding_dimensions']} dimensions"
    yield "Preprocessing", _words(about.get("preprocessing"))
    yield "Tokenizer", _words(about.get("tokenizer"))
    for warning in about.get("warnings") or []:
        yield "Warning", _words(warning)
    yield "Protocol", run.results["protocol"]
    for data in run.data.values():
        counted = [f"{data[key]:,} {word}" for key, word in _SIZES if is_whole(data.get(key))]
        yield "Data", ", ".join([*filter(None, [data_name(data)]), *counted])
        if partial := coverage(data):
            yield "Coverage", f"only {partial[0]:,} of {partial[1]:,} images: not comparable with results on all images"
    versions = object_of(run.results["fingerprint"].get("versions"))
    yield "Versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    for note in run.results.get("notes") or []:
        yield "Note", _words(note)


def _words(value: Any) -> str:
    """Write a JSON value on one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {_words(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return "" if value is None else str(value)


def model_line(run: Run) -> str:
    """Return size and training of a model, such as "1.0 M parameters, trained for 1,000 steps with SC, VC".

    The line contains only what is in the results; it is empty if they have neither.
    """
    about = object_of(run.results.get("about"))
    total = object_of(about.get("parameters")).get("total")
    provenance = object_of(about.get("provenance"))
    return ", ".join(filter(None, [parameter_count(total), _training(provenance), _source(provenance)]))


def parameter_count(total: Any) -> str:
    """Return a number of parameters in words; an empty text for anything that is no number.

    >>> parameter_count(979_969), parameter_count(151_277_313), parameter_count(None)
    ('1.0 M parameters', '151 M parameters', '')
    """
    if not is_whole(total):
        return ""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if total >= 0.95 * size:
            number = total / size
            return f"{number:.1f} {unit} parameters" if number < 10 else f"{number:.0f} {unit} parameters"
    return f"{total} parameters"


def _training(provenance: dict[str, Any]) -> str:
    """Return how long and with which losses a model was trained with this project."""
    trained = object_of(provenance.get("trained"))
    step, config = trained.get("step"), object_of(trained.get("config"))
    if not is_whole(step):
        return ""
    keys = [key for key in config if key.startswith("losses.") and key.endswith(".weight")]
    names = [key.split(".")[1] for key in keys if is_number(config[key]) and config[key]]
    losses = ", ".join(_LOSSES.get(name, name.replace("_", " ")) for name in names)
    return f"trained for {step:,} steps with the contrastive loss {f'and {losses}' if losses else 'alone'}"


def _source(provenance: dict[str, Any]) -> str:
    source = provenance.get("source")
    if not isinstance(source, str) or "trained" in provenance:
        return ""
    # Of a path only the last part is of interest to other readers; a hub name has two parts.
    name = PurePath(source).name if PurePath(source).is_absolute() or source.startswith(".") else source
    # Stored numbers were made elsewhere, and nothing was converted.
    kind = provenance.get("kind")
    return f"{kind if isinstance(kind, str) else 'converted'} from {name}" if name else ""


def sizes(runs: Sequence[Run], task: str) -> Note | None:
    """Return the number of queries and gallery items, or of images or items; None where the results do not say."""
    task_sizes = runs[0].sizes(task)
    if not task_sizes:
        return None
    first = next(iter(task_sizes.values()))
    if "items" in first:
        variants = [name for name in runs[0].variants(task) if "items" in task_sizes.get(name, {})]
        over_all = [name for name in variants if "parts" in task_sizes[name] and name.rpartition("/")[2] == ALL]
        variants = [name for name in variants if name != MEAN and name not in over_all]
        parts = [f"{count(task_sizes[name]['items'])} {label_of(runs[:1], task, name)}" for name in variants]
        return Note(f"Items: {', '.join(parts)}.")
    if "outside" in first:
        parts = [f"{count(each['outside'])} of {variant_label(name)}" for name, each in task_sizes.items()]
        return Note(f"{count(first['inside'])} images of the classes, against {', '.join(parts)}.")
    if "classes" in first:
        return Note(f"{count(first.get('images'))} images of {count(first['classes'])} classes.")
    if "gallery" not in first:
        return None
    galleries = {name: each["gallery"] for name, each in task_sizes.items() if is_whole(each.get("gallery"))}
    altered = variants_of(runs[:1], task, condition=lambda each: not each.is_clean)
    altered = sorted(galleries[name] for name in altered if name in galleries)
    parts = [f"{count(galleries['clean'])} items clean"] if "clean" in galleries else []
    if altered:
        span = count(altered[0]) if altered[0] == altered[-1] else f"{count(altered[0])} to {count(altered[-1])}"
        parts.append(f"{span} with altered ones")
    return Note(f"{count(first.get('queries'))} queries; gallery: {', '.join(parts)}.")


def runs_by_size(runs: Sequence[Run]) -> _Sizes:
    """Return the runs of each model that was evaluated at two or more image sizes, by its name and the size."""
    by_model: dict[str, dict[int, Run]] = {}
    for run in runs:
        size = object_of(run.results.get("about")).get("image_size")
        if is_whole(size):
            model = object_of(run.results["fingerprint"].get("model"))
            key = hash_json({name: value for name, value in model.items() if name not in _OF_SIZE})
            by_model.setdefault(key, {}).setdefault(size, run)
    several = (dict(sorted(of_size.items())) for of_size in by_model.values() if len(of_size) > 1)
    return {_name(*next(iter(of_size.items()))): of_size for of_size in several}


def _name(size: int, run: Run) -> str:
    return run.label.removesuffix(size_suffix(size))


def one_size_each(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without further image sizes of the same model, which are no further models."""
    further_sizes = {id(run) for of_size in runs_by_size(runs).values() for run in list(of_size.values())[1:]}
    return [run for run in runs if id(run) not in further_sizes]
