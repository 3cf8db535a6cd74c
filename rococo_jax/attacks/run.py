"""Attack models one after the other, resume, compare, transfer, and write the results.

    attack.json      model, data, settings, and the numbers of each attack; written last
    items.parquet    a row for each query of each attack: the records of `captions`

While an attack runs, its journal `.attack.UNIT.jsonl` has a line for each finished group of queries; its first line has
the fingerprint of model, data and settings. A journal of another attack, or a damaged rest, is discarded.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

from rococo_jax.attacks import captions
from rococo_jax.attacks.captions import CaptionAttack, Spaces, attack_captions
from rococo_jax.attacks.pixel_attack import MASKED, PixelAttacker
from rococo_jax.attacks.pixels import PixelAttack
from rococo_jax.attacks.scoring import (
    GOALS,
    EmbeddedSimilarities,
    Goal,
    PairSimilarities,
    Query,
    Similarities,
    best_own_and_wrong,
)
from rococo_jax.attacks.summary import Record, compare, summarise, transfer_matrix, universal_captions
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.data.pictures import open_image
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.protocol import LoadedModel
from rococo_jax.errors import InputError
from rococo_jax.progress import progress, say
from rococo_jax.storage import (
    atomic_write,
    hash_json,
    read_json_object,
    read_table,
    write_json,
    write_json_lines,
    write_text,
)
from rococo_jax.version import __version__

FORMAT, VERSION = "rococo_jax.attack", 1
SUMMARY, ITEMS = "attack.json", "items.parquet"
MASKED_GRADIENTS = "random search beats the gradient on more than 5 % of the images, so the gradient may be masked"
_SCHEMA = pyarrow.schema(
    [
        *((name, pyarrow.string()) for name in ("attack", "image")),
        *((name, pyarrow.bool_()) for name in ("right", "beaten")),
        ("smallest", pyarrow.float64()),
        *((name, pyarrow.int64()) for name in ("candidates", "tried", "complete", "first", "caption")),
        *((name, pyarrow.string()) for name in ("text", "changes")),
        ("margin", pyarrow.float64()),
    ]
)


@dataclasses.dataclass(frozen=True)
class AttackedData:
    """Captioned images: names and captions, the files, and a hash of all of them.

    Attributes:
        classes: if the captions are labels of classes, the name and the prompts of each label.
    """

    items: Sequence[CaptionedImage]
    files: Sequence[Any]
    hash: str
    classes: Mapping[str, tuple[str, Sequence[str]]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class AttackedModel:
    """The results of one model: the content of `attack.json`, and the records of each attack."""

    summary: Mapping[str, Any]
    records: Mapping[str, Sequence[Record]]


def attack_models(
    load: Callable[[str], LoadedModel],
    folders: Mapping[str, Path],
    data: AttackedData,
    attacks: Sequence[CaptionAttack],
    cache: EmbeddingCache,
    *,
    pixels: PixelAttack | None = None,
    by_pairs: bool = False,
    universal: int = 0,
) -> tuple[dict[str, AttackedModel], dict[str, Any]]:
    """Attack every model and write its results; return them, and the comparison of several models.

    Args:
        load: returns the model of a name.
        folders: where the results of each model are written, by its name.
        data: the images and captions.
        attacks: the attacks on captions, one of each unit.
        cache: cache of the embeddings of images.
        pixels: the attack on pixels, if any.
        by_pairs: score pairs, also with a model that embeds.
        universal: number of universal captions to search.

    Raises:
        InputError: a folder contains another attack, a model cannot be attacked in this way, or as `Spaces`.
    """
    spaces = {attack.unit: Spaces(attack, data.items) for attack in attacks}
    queries = {attack.unit: attack.make_queries(data.items) for attack in attacks}
    models: dict[str, AttackedModel] = {}
    attackers: dict[str, PixelAttacker] = {}
    goals: dict[str, dict[str, Goal]] = {attack.unit: {} for attack in attacks}
    for name, folder in folders.items():
        model = load(name)
        description = model.describe()
        described = [attack.as_json() for attack in (*attacks, *([] if pixels is None else [pixels]))]
        settings = {"attacks": described, "by_pairs": by_pairs, "universal": universal}
        identity = {key: value for key, value in description.items() if key != "name"}
        fingerprint = hash_json({"model": identity, "data": data.hash, **settings, "version": __version__})
        is_identified = identity.get("fingerprint", "") is not None
        records = read_finished(folder, fingerprint) if is_identified else {}
        numbers: dict[str, Any] = {}
        if pixels is not None:
            prompts = {label: prompts for label, (_, prompts) in data.classes.items()}
            attacker = PixelAttacker(model, data.items, data.files, pixels, prompts)
            attackers[name] = attacker
            if "pixels" not in records:
                journal = _journal(folder, "pixels", fingerprint, attacker.group, is_identified)
                records["pixels"] = _attack_pixels(attacker, folder, journal, name)
                _write_annotations(folder / "attacked_images" / "annotations", data)
            numbers["pixels"] = summarise(records["pixels"], pixels.budgets)
            if numbers["pixels"]["beaten_by_random_search"] > 100 * MASKED:
                say(f"{name}: warning: {MASKED_GRADIENTS}")
                numbers["pixels"]["warning"] = MASKED_GRADIENTS
        similarities = _similarities(model, data.files, cache, by_pairs) if attacks else None
        for attack in attacks:
            unit = attack.unit
            if attack.goal == "image" and isinstance(similarities, PairSimilarities):
                raise InputError(name, "characters", "a model that only scores pairs", "a model that embeds")
            goals[unit][name] = goal = GOALS[attack.goal](attack.goal, similarities, queries[unit], data.items)
            if unit not in records:
                journal = _journal(folder, unit, fingerprint, captions.GROUP, is_identified)
                records[unit] = _attack(attack, goal, queries[unit], spaces[unit], data.items, journal, name)
            numbers[unit] = summarise(records[unit], attack.budgets)
            if universal and unit == "words":
                numbers["universal"] = _universal(similarities, data.items, queries[unit], spaces[unit], universal)
        summary = {
            "format": FORMAT, "version": VERSION, "rococo_jax": __version__, "fingerprint": fingerprint,
            "model": description, "data": {"images": len(data.items), "sha256": data.hash}, **settings,
            "results": numbers,
        }  # fmt: skip
        models[name] = AttackedModel(summary, records)
        _write(folder, models[name])
    if len(models) == 1:
        return models, {}
    comparison = _compare(models, goals, queries, attacks)
    if pixels is not None:
        comparison["pixels"] = _compare_pixels(models, attackers, folders, pixels)
    return models, comparison


def read_finished(folder: Path, fingerprint: str) -> dict[str, list[dict[str, Any]]]:
    """Return the records of a finished attack by unit; nothing if there is none.

    Raises InputError if the folder contains another attack, or a damaged one.
    """
    if not (folder / SUMMARY).exists():
        return {}
    if read_json_object(folder / SUMMARY, "results of an attack").get("fingerprint") != fingerprint:
        wanted = "those of this attack: the same model, data and settings, or another folder"
        raise InputError(folder / SUMMARY, "fingerprint", "results of another attack", wanted)
    records: dict[str, list[dict[str, Any]]] = {}
    table = read_table(folder / ITEMS, "the queries of an attack")
    if not table.schema.equals(_SCHEMA):
        wanted = f"those of {SUMMARY} beside it, {', '.join(_SCHEMA.names)}"
        raise InputError(folder / ITEMS, "columns", ", ".join(table.column_names), wanted)
    for row in table.to_pylist():
        unit = row.pop("attack")
        row["changes"] = json.loads(row["changes"])
        if unit != "pixels" and row["smallest"] is not None:
            row["smallest"] = int(row["smallest"])
        records.setdefault(unit, []).append(row)
    return records


def _similarities(model: LoadedModel, files: Sequence[Any], cache: EmbeddingCache, by_pairs: bool) -> Similarities:
    """Return the cosines of a model's embeddings, or its scores of pairs."""
    if model.embedder is not None and not by_pairs:
        return EmbeddedSimilarities(model.embedder, files, cache)
    if model.pair_scorer is None:
        raise InputError(model.name, "score_pairs", "none", "a model that scores pairs")
    return PairSimilarities(model.pair_scorer, files)


def _attack(
    attack: CaptionAttack,
    goal: Goal,
    queries: Sequence[Query],
    spaces: Spaces,
    items: Sequence[CaptionedImage],
    journal: "Journal",
    name: str,
) -> list[dict[str, Any]]:
    """Return the record of each query; see `attack_captions`."""
    records = journal.read()
    right = int(goal.right.sum())
    limit = "" if attack.queries is None else f", at most {attack.queries:,} captions each"
    budget = f"up to {max(attack.budgets)} {attack.unit}, {attack.search} search{limit}"
    say(f"{name}: attacking {len(queries):,} queries, {right:,} of them right: {budget}")
    fooled, tried = sum(record["smallest"] is not None for record in records), 0
    with progress(f"{name}: attacking {attack.unit}", len(queries), "queries", done=len(records)) as advance:
        for group in attack_captions(attack, queries, items, goal, spaces, start=len(records)):
            journal.add(group)
            records += group
            fooled += sum(record["smallest"] is not None for record in group)
            tried += sum(record["tried"] for record in group)
            advance(len(group), f"{fooled:,} fooled, {tried:,} captions tried")
    return records


def _universal(
    similarities: Similarities, items: Sequence[CaptionedImage], queries: Sequence[Query], spaces: Spaces, count: int
) -> dict[str, Any]:
    """Search universal captions among all altered captions with one change; images take turns between the halves."""
    own, wrong = best_own_and_wrong(similarities, items)
    half = np.arange(len(items)) % 2 == 0
    candidates = (each.text for query in queries if half[query.image] for each in spaces(query).combinations(1))
    texts = list(dict.fromkeys(candidates))
    is_first = np.zeros((len(items), len(texts)), bool)
    threshold = np.maximum(own, wrong)
    for rows, block in similarities.blocks(texts):
        is_first[rows] = block >= threshold[rows, None]
    return universal_captions(texts, is_first, half, count)


def _attack_pixels(attacker: PixelAttacker, folder: Path, journal: "Journal", name: str) -> list[dict[str, Any]]:
    """Attack the images, and write each attacked image, as the model sees it."""
    records, total = journal.read(), len(attacker.items)
    settings = attacker.attack
    say(f"{name}: attacking {total:,} images: {settings.norm}, {settings.steps} steps, {settings.restarts} restarts")
    with progress(f"{name}: attacking pixels", total, "images", done=len(records)) as advance:
        for group, images in attacker.run(start=len(records)):
            for record, pixels in zip(group, images, strict=True):
                path = folder / "attacked_images" / "images" / png_name(record["image"])
                with atomic_write(path) as temporary:
                    Image.fromarray(pixels).save(temporary, "PNG")
            journal.add(group)
            records += group
            advance(len(group))
    return records


def _write_annotations(folder: Path, data: AttackedData) -> None:
    """Write captions, or labels and names of classes, of the attacked images for `rococo evaluate`."""
    if not data.classes:
        items = [{"image": png_name(item.image), "caption": list(item.captions)} for item in data.items]
        write_json(folder / "captions.json", items)
        return
    labels = ({"image": png_name(item.image), "label": item.captions[0]} for item in data.items)
    write_json_lines(folder / "labels.jsonl", labels)
    write_json(folder / "classes.json", {label: name for label, (name, _) in data.classes.items()})


def png_name(image: str) -> str:
    """Return the name of an attacked image: losslessly stored, so with another extension."""
    return image if image.lower().endswith(".png") else f"{image}.png"


def _journal(folder: Path, unit: str, fingerprint: str, group: int, is_identified: bool) -> "Journal":
    return Journal(folder / f".attack.{unit}.jsonl" if is_identified else None, f"{fingerprint} {group}", group)


def _write(folder: Path, model: AttackedModel) -> None:
    """Write the table and the summary, and remove the journals."""
    rows = [
        {"attack": unit, **record, "changes": json.dumps(record.get("changes", []), ensure_ascii=False)}
        for unit, records in model.records.items()
        for record in records
    ]
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / ITEMS) as temporary:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, _SCHEMA), temporary, write_page_checksum=True)
    write_json(folder / SUMMARY, model.summary)
    for unit in model.records:
        (folder / f".attack.{unit}.jsonl").unlink(missing_ok=True)


def _compare(
    models: Mapping[str, AttackedModel],
    goals: Mapping[str, Mapping[str, Goal]],
    queries: Mapping[str, Sequence[Query]],
    attacks: Sequence[CaptionAttack],
) -> dict[str, Any]:
    """Return the paired differences and the transfer matrix of each attack."""
    comparison: dict[str, Any] = {"format": f"{FORMAT}.comparison", "version": VERSION}
    for attack in attacks:
        records = {name: model.records[attack.unit] for name, model in models.items()}
        comparison[attack.unit] = {
            "differences": compare(records, attack.budgets),
            "transfer": transfer_matrix(records, goals[attack.unit], queries[attack.unit]),
        }
    return comparison


def _compare_pixels(
    models: Mapping[str, AttackedModel],
    attackers: Mapping[str, PixelAttacker],
    folders: Mapping[str, Path],
    attack: PixelAttack,
) -> dict[str, Any]:
    """Return the paired differences, and R@1 of each model on the images made against each, as in `transfer_matrix`."""
    records = {name: model.records["pixels"] for name, model in models.items()}
    transfer: dict[str, dict[str, dict[str, float]]] = {}
    for made_against, folder in folders.items():
        names = [png_name(record["image"]) for record in records[made_against]]
        images = [np.asarray(open_image(folder / "attacked_images" / "images" / name)) for name in names]
        transfer[made_against] = {}
        for tested, attacker in attackers.items():
            right = np.array([record["right"] for record in records[tested]])
            stays = right & (attacker.margins(images) < 0)
            transfer[made_against][tested] = {"r1": 100.0 * float(stays.mean())}
    return {"differences": compare(records, attack.budgets), "transfer": transfer}


class Journal:
    """Records of finished groups of queries, as lines of a file; see the module.

    Args:
        path: the file; None to keep nothing.
        fingerprint: hash of everything that decides the records.
        group: number of records of a complete group.
    """

    def __init__(self, path: Path | None, fingerprint: str, group: int):
        self.path, self.fingerprint, self.group = path, fingerprint, group

    def read(self) -> list[dict[str, Any]]:
        """Return the records of complete groups of an earlier run, and remove the rest of the file."""
        if self.path is None:
            return []
        head, *lines = self._lines() or [""]
        groups = list(self._complete_groups(lines)) if head == self._head else []
        if groups:
            write_text(self.path, "".join(f"{line}\n" for line in (self._head, *map(json.dumps, groups))))
        else:
            self.path.unlink(missing_ok=True)
        return [record for group in groups for record in group]

    def add(self, group: Sequence[dict[str, Any]]) -> None:
        """Append the records of a group."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write((self._head + "\n" if file.tell() == 0 else "") + json.dumps(group) + "\n")

    @property
    def _head(self) -> str:
        return json.dumps({"fingerprint": self.fingerprint})

    def _lines(self) -> list[str]:
        if not self.path.is_file():
            return []
        return self.path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]

    def _complete_groups(self, lines: Sequence[str]) -> Iterator[list[dict[str, Any]]]:
        for line in lines:
            try:
                group = json.loads(line)
            except (ValueError, RecursionError):
                return
            if not isinstance(group, list) or len(group) != self.group:
                return
            yield group
