"""Your own benchmark: made from images and captions, and recognised below a data folder.

DATA/NAME/images/                     the images, byte for byte
DATA/NAME/annotations/captions.json   the captions, and a file for each altered variant (`rococo.generate`)
DATA/NAME/choices/items.jsonl         each altered caption beside its original, in the plain form of choices
DATA/NAME/README.md                   the data card
DATA/NAME/manifest.json               written last: sources and settings, the card's numbers, hashes of all files

It is evaluated like RoCOCO (`NAME`) and as a choice between true and altered captions (`NAME_choices`). An interrupted
run is resumed. `rococo evaluate --captions` keeps such a benchmark in the cache folder (`make_once`).
"""

import dataclasses
import functools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rococo_jax.benchmarks.benchmark import Benchmark, BenchmarkInfo, known_benchmarks
from rococo_jax.benchmarks.choices.reader import open_choices
from rococo_jax.benchmarks.readers.plain_choices import INFO as PLAIN_CHOICES
from rococo_jax.benchmarks.readers.plain_choices import text_choice
from rococo_jax.benchmarks.readers.rococo import INFO as ROCOCO
from rococo_jax.benchmarks.rococo.annotations import altered_pairs, annotation_json, is_no_op
from rococo_jax.benchmarks.rococo.benchmark import open_rococo
from rococo_jax.benchmarks.rococo.generate import HALF_TRUTH, NO_CANDIDATE, AlteredSet, alter_captions, made_by_of
from rococo_jax.benchmarks.rococo.mixed_galleries import parse_mix, write_mixed
from rococo_jax.benchmarks.rococo.published_mixing import make_plan
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.data.captioned_images import read_captioned_images
from rococo_jax.data.pair_source import CaptionedImages
from rococo_jax.encoders import Encoder
from rococo_jax.errors import InputError
from rococo_jax.locks import hold
from rococo_jax.perturb.images.image_folders import MANIFEST, ResumableFolder
from rococo_jax.perturb.text.lexicon import Lexicon, shipped_lexicon
from rococo_jax.perturb.text.replacement import Alteration
from rococo_jax.progress import progress
from rococo_jax.runtime import cache_folder
from rococo_jax.storage import hash_json, read_json_object
from rococo_jax.version import __version__

FORMAT = "rococo_jax.benchmark 1"
CAPTIONS, ITEMS, CARD = "annotations/captions.json", "choices/items.jsonl", "README.md"
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


def check_name(name: str) -> None:
    """Raise InputError for a name that no folder can have, or that another benchmark or folder of the layout has."""
    infos = known_benchmarks().values()
    reserved = {place.split("/")[0] for info in infos for place in (info.name, *info.folders.values())}
    if not _NAME.fullmatch(name) or name in reserved:
        found = f"{name!r}, a name of the documented layout" if name in reserved else repr(name)
        raise InputError("benchmark", "name", found, "small letters, digits, - and _, such as mine")


def make_own(
    folder: Path,
    data: CaptionedImages,
    lexicon: Lexicon,
    *,
    encoder: Encoder | None = None,
    select: str | None = None,
    seed: int = 0,
    licence: str = "not stated",
) -> dict[str, Any]:
    """Make the benchmark `folder.name` of images and captions, and return the numbers of its card.

    Args:
        encoder: model whose influence selects the replaced nouns.
        select: the noun to replace, by influence: lowest, highest or random; by default lowest with a model.
        seed: seed of the replacements.
        data, lexicon, licence: as for `write_own`, and its errors.
    """
    choices = {"seed": seed, "select": select or ("random" if encoder is None else "lowest")}
    altered = alter_captions(encoder, data.items, lexicon=lexicon, fit_article=True, **choices)
    made_by = {"model": None if encoder is None else encoder.describe(), **choices}
    return write_own(folder, data, altered, lexicon, licence=licence, made_by=made_by)


def make_once(images: str, captions: str, allow_missing: bool = False) -> Path:
    """Return a data folder with the benchmark of images and captions; it is made once and kept in the cache folder.

    Its place is the hash of names, captions, images, lexicon and version. It is named after the file of captions, or
    `mine` if that is no name of a benchmark.

    Args:
        images, captions: in any form, as `read_captioned_images` reads them.
        allow_missing: skip images that have no file.

    Raises InputError: as `read_captioned_images` and `write_own`.
    """
    data = read_captioned_images(images, captions, allow_missing=allow_missing)
    lexicon, name = shipped_lexicon(), Path(captions).stem.lower()
    try:
        check_name(name)
    except InputError:
        name = "mine"
    folder = cache_folder() / "benchmarks" / hash_json([name, data.hash(), lexicon.hash(), __version__])[:16] / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold(folder, beside=True, wait=True):
        if not (folder / MANIFEST).is_file():
            make_own(folder, data, lexicon)
    return folder.parent


def write_own(
    folder: Path,
    data: CaptionedImages,
    altered: Mapping[str, AlteredSet],
    lexicon: Lexicon,
    *,
    licence: str,
    made_by: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the benchmark `folder.name`, or its missing files, and return the numbers of its card.

    Args:
        data: images and captions.
        altered: the variants of the same captions.
        lexicon: lexicon of the alterations.
        licence: licence of the data, for the card.
        made_by: settings of the alterations; any JSON.

    Raises:
        InputError: an image cannot be read or has changed since the start, or the folder contains another benchmark.
    """
    check_name(folder.name)
    captions = [{"image": item.image, "caption": list(item.captions)} for item in data.items]
    items = [item for each in altered.values() for item in choice_items(each)]
    numbers = statistics_of(data, altered, items)
    about = {"format": FORMAT, "name": folder.name, "licence": licence, "made_by": {"version": __version__, **made_by}}
    about |= {"lexicon": {"name": lexicon.name, "sha256": lexicon.hash()}, "captions": hash_json(captions)}
    writer = ResumableFolder(folder, {**about, "figures": numbers}, dict(zip(data.names, data.paths, strict=True)))
    texts = {CAPTIONS: json.dumps(captions, indent=1, ensure_ascii=False)}
    for variant, each in altered.items():
        value = annotation_json(variant, each.items, made_by_of(each, made_by), each.records())
        texts[f"annotations/{variant}.json"] = json.dumps(value, indent=1, ensure_ascii=False)
    texts[ITEMS] = "\n".join(json.dumps(item, ensure_ascii=False) for item in items)
    texts[CARD] = card_text(folder.name, licence, about, numbers)
    places = dict(zip((f"images/{name}" for name in data.names), data.paths, strict=True))
    with progress("writing", len(places), "images") as advance:
        missing = writer.missing([*places, *texts])
        advance(len(places) - sum(name in missing for name in places))
        for name in sorted(missing):
            writer.write(name, places[name].read_bytes() if name in places else (texts[name] + "\n").encode())
            advance(int(name in places))
    writer.finish()
    return numbers


def write_mixed_galleries(folder: Path, data: CaptionedImages, variants: Sequence[tuple[str, int]]) -> None:
    """Write galleries (`mix_0.9`, seed) into `folder/mixed`, each with its manifest; raises as `write_own`."""
    files = dict(zip(data.names, data.paths, strict=True))
    for variant, seed in variants:
        plan = make_plan(list(files), *parse_mix(variant), seed, "paper")
        write_mixed(plan, files, folder / "mixed" / f"{variant}_seed{seed}")


def choice_items(altered: AlteredSet) -> list[dict[str, Any]]:
    """Return items with an image, a caption and the altered caption. The part of a half-truth is its kind of detail."""

    def part(change: Alteration) -> str:
        return f"{HALF_TRUTH}_{change.concept}" if altered.variant == HALF_TRUTH else altered.variant

    return [
        text_choice(f"{altered.variant} {item.image} {number}", part(change), (right,), change.caption, item.image)
        for item, changes in zip(altered.items, altered.alterations, strict=True)
        for number, (right, change) in enumerate(zip(item.originals, changes, strict=True))
        if change and change.caption != right
    ]


def statistics_of(data: CaptionedImages, altered: Mapping[str, AlteredSet], items: Sequence[Mapping]) -> dict[str, Any]:
    """Return the numbers of the data card."""
    count = len(data.captions)
    without_noun = max((each.unaltered.get(NO_CANDIDATE, 0) for each in altered.values()), default=0)
    variants = {
        variant: {
            "altered": count - sum(each.unaltered.values()),
            "unaltered": dict(each.unaltered),
            "no_ops": sum(is_no_op(old, new) for _, old, new in altered_pairs(each.items)),
            "no_ops_strict": sum(is_no_op(old, new, normalised=True) for _, old, new in altered_pairs(each.items)),
            "choices": sum(item["part"] == variant for item in items),
        }
        for variant, each in altered.items()
    }
    return {
        "images": len(data.names),
        "captions": count,
        "distinct_captions": len(set(data.captions)),
        "words_per_caption": round(sum(len(caption.split()) for caption in data.captions) / count, 2),
        "lexicon_coverage": round(1 - without_noun / count, 4),
        "variants": variants,
    }


def card_text(name: str, licence: str, about: Mapping[str, Any], numbers: Mapping[str, Any]) -> str:
    """Return the data card, in the form of the Hugging Face hub."""
    rows = [
        f"| `{variant}` | {each['altered']:,} | {sum(each['unaltered'].values()):,} | {each['no_ops']:,} | "
        f"{each['no_ops_strict']:,} | {each['choices']:,} |"
        for variant, each in numbers["variants"].items()
    ]
    table = "\n".join(rows)
    return f"""---
pretty_name: {json.dumps(name)}
license: other
license_name: {json.dumps(licence)}
---

# {name}

{numbers["images"]:,} images and {numbers["captions"]:,} captions ({numbers["distinct_captions"]:,} different ones,
{numbers["words_per_caption"]} words on average), with altered captions made by rococo_jax {__version__}.

Licence: {licence}

{numbers["lexicon_coverage"]:.1%} of the captions have a noun of the lexicon ({about["lexicon"]["name"]}). One noun of a
caption is replaced; choices ask which of the two captions is right.

| variant | altered | left unaltered | no-ops | no-ops when normalised | choices |
| --- | --- | --- | --- | --- | --- |
{table}

Made with:

```json
{json.dumps(about["made_by"], indent=2, ensure_ascii=False)}
```

Evaluate: `rococo evaluate MODEL --data DATA --benchmarks {name},{name}_choices --out OUT`"""


def own_benchmarks(data: Path) -> dict[str, BenchmarkInfo]:
    """Return your own benchmarks in a data folder, or the one in its own folder, by name."""
    infos: dict[str, BenchmarkInfo] = {}
    for folder in [data, *sorted(data.iterdir())] if data.is_dir() else []:
        if not (folder / CAPTIONS).is_file() or not (folder / MANIFEST).is_file():
            continue
        about = read_json_object(folder / MANIFEST, "a benchmark that `rococo make-benchmark` wrote")
        if about.get("format") == FORMAT:
            infos |= {info.name: info for info in _infos(about, str(folder.relative_to(data)))}
    return infos


def _infos(about: Mapping[str, Any], place: str) -> tuple[BenchmarkInfo, BenchmarkInfo]:
    name, numbers = about["name"], about["figures"]
    common = {"paper": "none; your own data", "licence": about["licence"], "source": "rococo make-benchmark"}
    images, choices = f"{place}/images", f"{name}_choices"
    count = sum(each["choices"] for each in numbers["variants"].values())
    ranks = dataclasses.replace(
        ROCOCO, **common, downloads=(), name=name,
        size=f"{numbers['images']:,} images, {numbers['captions']:,} captions",
        folders={"images": images, "annotations": f"{place}/annotations"}, files=("captions.json",),
        open=functools.partial(_open_ranks, name),
    )  # fmt: skip
    choice_info = dataclasses.replace(
        PLAIN_CHOICES, **common, name=choices, size=f"{count:,} items",
        folders={"images": images, "annotations": f"{place}/choices"}, tasks=(choices,),
        question="Which of two captions is right, the original or the altered one?",
        open=functools.partial(open_choices, choices, PLAIN_CHOICES.files, PLAIN_CHOICES.reader),
    )  # fmt: skip
    return ranks, choice_info


def _open_ranks(name: str, folders: Mapping[str, Path], settings: Settings) -> Benchmark:
    return dataclasses.replace(open_rococo(folders, settings), name=name)
