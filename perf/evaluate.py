"""Time RoCOCO end to end with a model of CLIP B/32's size: `rococo evaluate` and the published procedure.

    python perf/evaluate.py --images coco/images --annotations rococo/annotations [--count 32] [--cores 2]

The published procedure embeds the inputs of every run again: for each annotation file (clean and four variants) all
images and all captions, padded to 77; for each mixed folder (two methods, three seeds) all images, mixed images and
captions. Here it is a fast version in torch and `transformers`: no_grad, fused attention, full batches, all cores; its
mixed folders exist beforehand and are not timed. Ours reads, mixes (in memory, with the JPEG round trip), embeds each
distinct item once, ranks with both bounds and computes intervals, with an empty cache; it also evaluates the control
gallery. Compilation happens once for any number of images and is reported separately.

Both have the same random weights and word-level tokens (one per word or mark). Every R@1 must agree up to two queries,
whose ranks may depend on the last bits.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import measuring
import numpy as np
from influence import word_level_tokenizer
from towers import CONTEXT, END, padded, seeded, unit

METHODS, SEEDS, BATCH = ("mix", "patch"), (1, 10, 100), 32


def main() -> None:
    parser = measuring.options(__doc__, cores=True)
    parser.add_argument("--images", required=True, help="folder of images")
    parser.add_argument("--annotations", required=True, help="folder of the published annotations")
    parser.add_argument("--count", type=int, default=32, help="number of images, the first that exist")
    arguments = parser.parse_args()
    measuring.use_cores(arguments.cores)
    with tempfile.TemporaryDirectory() as folder:
        report = compare(Path(folder), arguments)
    measuring.print_report(report)


def compare(work: Path, arguments: argparse.Namespace) -> dict:
    """Run both on the same images, ours first (once to compile, once to time)."""
    from rococo_jax.benchmarks.rococo.annotations import read_annotation_folder
    from rococo_jax.benchmarks.settings import Settings
    from rococo_jax.encoders.cache import EmbeddingCache
    from rococo_jax.evaluation.inputs import open_benchmarks
    from rococo_jax.evaluation.models.encoder import EncoderModel
    from rococo_jax.evaluation.runner import evaluate_model

    names = cut_annotations(Path(arguments.annotations), Path(arguments.images), work / "annotations", arguments.count)
    benchmarks = open_benchmarks(Settings(), images=arguments.images, annotations=work / "annotations")
    annotations = read_annotation_folder(work / "annotations")
    paths = dict(zip(names, benchmarks[0].image_sets["originals"].paths, strict=True))
    reference = make_reference(arguments.cores)
    ours = measuring.converted(reference)
    ours.tokenizer = word_level_tokenizer(texts_of(annotations))
    seconds = {}
    for run in ("ours_compiling", "ours"):
        started = time.perf_counter()
        results = evaluate_model(EncoderModel(ours), benchmarks, Settings(), EmbeddingCache(work / run)).results
        seconds[run] = time.perf_counter() - started
    folders = mixed_folders(names, paths, work)
    started = time.perf_counter()
    published = run_published_procedure(reference, ours.tokenizer, annotations, paths, folders)
    seconds["published_way"] = time.perf_counter() - started
    check_agreement(results, published)
    ratio = seconds["published_way"] / seconds["ours"]
    return {"images": len(names), "seconds": {k: round(v, 2) for k, v in seconds.items()}, "ratio": round(ratio, 2)}


def cut_annotations(source: Path, images: Path, out: Path, count: int) -> list[str]:
    """Write the annotation files with only the first `count` images that exist; return their names."""
    out.mkdir()
    names: list[str] = []
    for stem in ("coco_karpathy_test", "same_concept", "diff_concept", "rand_voca", "danger"):
        items = json.loads((source / f"{stem}.json").read_text())
        if not names:
            names = [item["image"] for item in items if (images / item["image"]).is_file()][:count]
        by_name = {item["image"]: item for item in items}
        (out / f"{stem}.json").write_text(json.dumps([by_name[name] for name in names]))
    return names


def mixed_folders(names: list[str], paths: dict[str, Path], work: Path) -> dict[str, list[list[Path]]]:
    """Return for each variant and seed the files of the mixed images, ordered by their first image."""
    from rococo_jax.benchmarks.rococo.mixed_galleries import file_names, write_mixed
    from rococo_jax.benchmarks.rococo.published_mixing import make_plan

    folders: dict[str, list[list[Path]]] = {}
    for method in METHODS:
        for seed in SEEDS:
            plan = make_plan(names, method, 0.9, seed, "paper")
            out = work / f"{method}-{seed}"
            write_mixed(plan, paths, out)
            by_first = dict(zip(plan.first.tolist(), file_names(plan), strict=True))
            folders.setdefault(f"{method}_0.9", []).append([out / by_first[place] for place in range(len(names))])
    return folders


def make_reference(threads: int):
    import transformers

    seeded(threads)
    config = transformers.CLIPConfig()  # the defaults are B/32
    config.text_config.eos_token_id = END
    return transformers.CLIPModel(config).eval()


def texts_of(annotations) -> list[str]:
    """Return all captions, altered ones included."""
    items = [item.captions for item in annotations.clean]
    items += [item.altered for annotation in annotations.variants.values() for item in annotation.items]
    return [text for texts in items for text in texts if text is not None]


def run_published_procedure(
    model, tokenizer, annotations, paths: dict[str, Path], folders: dict[str, list[list[Path]]]
) -> dict[tuple[str, str], float]:
    """Return R@1 in percent of every variant, mixed ones as means over seeds; each run embeds all its inputs."""
    files, clean = list(paths.values()), annotations.clean
    recalls = {}
    runs = {"clean": [(list(item.captions), 0) for item in clean]}
    for name, annotation in annotations.variants.items():
        runs[name] = [
            ([*item.originals, *filter(None, item.altered)], sum(text is not None for text in item.altered))
            for item in annotation.items
        ]
    for name, items in runs.items():
        owner = np.repeat(np.arange(len(items)), [len(texts) for texts, _ in items])
        original = np.concatenate([np.arange(len(texts)) < len(texts) - altered for texts, altered in items])
        captions = [text for texts, _ in items for text in texts]
        similarities = embed_images(model, files) @ embed_texts(model, tokenizer, captions).T
        first = similarities.argsort(axis=1)[:, ::-1][:, 0]
        right = (owner[first] == np.arange(len(items))) & original[first]
        recalls["image_to_text", name] = 100 * float(right.mean())
    captions = [text for item in clean for text in item.captions]
    owner = np.repeat(np.arange(len(clean)), [len(item.captions) for item in clean])
    for variant, of_seeds in folders.items():
        shares = []
        for mixed in of_seeds:
            gallery = np.concatenate([embed_images(model, files), embed_images(model, mixed)])
            similarities = embed_texts(model, tokenizer, captions) @ gallery.T
            shares.append(100 * float((similarities.argsort(axis=1)[:, ::-1][:, 0] == owner).mean()))
        recalls["text_to_image", variant] = float(np.mean(shares))
    return recalls


def embed_images(model, paths: list[Path]) -> np.ndarray:
    from PIL import Image
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil()

    def features(start: int):
        images = [Image.open(path).convert("RGB") for path in paths[start : start + BATCH]]
        pixels = processor(images, return_tensors="pt")["pixel_values"]
        return model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)

    return unit(map(features, range(0, len(paths), BATCH)))


def embed_texts(model, tokenizer, captions: list[str]) -> np.ndarray:
    def features(start: int):
        ids = padded(tokenizer.encode(captions[start : start + BATCH]), CONTEXT, END)
        return model.text_projection(model.text_model(input_ids=ids).pooler_output)

    return unit(map(features, range(0, len(captions), BATCH)))


def check_agreement(results: dict, published: dict[tuple[str, str], float]) -> None:
    """Raise SystemExit if an R@1 differs by more than two queries."""
    for (task, variant), value in published.items():
        ours = results["tasks"][task][variant]["r1"]
        queries = results["sizes"][task][variant]["queries"]
        if abs(ours - value) > 200 / queries + 1e-9:
            raise SystemExit(f"{task} {variant}: found R@1 {ours}; the published procedure gives {value}")


if __name__ == "__main__":
    main()
