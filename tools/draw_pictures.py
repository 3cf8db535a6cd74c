"""Draw the pictures that explain the method: docs/figures/method, blind_grounding, reliability and packages (.svg).

    python tools/draw_pictures.py

The first three show drawn scenes and numbers of the demo's plain model; the last one shows the package layers.
"""

import base64
import html
import io
import json
import tempfile
import textwrap
from pathlib import Path

import numpy as np
from PIL import Image

import rococo_jax
from rococo_jax.benchmarks.settings import Settings
from rococo_jax.demo.benchmark import SCENES, SEED, open_questions

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
SCENE = "scene_000004.png"
DARK, SOFT, BLUE, ORANGE, PALE = "#1f2328", "#5b636b", "#2b6a8a", "#b5481d", "#fbe9e1"
LAYERS = (
    ("cli",),
    ("demo", "sweep", "studies"),
    ("report",),
    ("evaluation", "training"),
    ("benchmarks", "losses"),
    ("attacks",),
    ("metrics", "perturb", "similarity"),
    ("encoders",),
    ("checkpoints",),
    ("models", "data"),
)


def text(x: float, y: float, words: str, size: int = 14, fill: str = DARK, **more: str) -> str:
    """Return a line of text as SVG; further attributes have an underscore in place of a hyphen."""
    attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}"{attributes}>{html.escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, radius: int = 4) -> str:
    """Return a filled rectangle as SVG."""
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height}" rx="{radius}" fill="{fill}"/>'


def thumbnail(path: Path, x: float, y: float, side: int) -> str:
    """Return a small copy of an image as SVG."""
    buffer = io.BytesIO()
    Image.open(path).convert("RGB").resize((2 * side, 2 * side)).save(buffer, "JPEG", quality=80)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<image x="{x}" y="{y}" width="{side}" height="{side}" href="data:image/jpeg;base64,{data}"/>'


def write(name: str, width: int, height: int, parts: list[str]) -> None:
    """Write a picture on white."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="Helvetica, sans-serif">'
    )
    lines = [head, box(0, 0, width, height, "#ffffff", 0), *parts, "</svg>\n"]
    (FIGURES / name).write_text("\n".join(lines), encoding="utf-8")


def draw_method(images: Path, captions: list[tuple[str, str]], similarities: np.ndarray) -> None:
    """Draw the first places of a gallery of captions; each has its text and its kind."""
    first = np.argsort(-similarities)[:5]
    parts = [
        text(20, 30, "Query: an image", font_weight="bold"),
        thumbnail(images / SCENE, 20, 44, 190),
        text(20, 262, "An altered caption", fill=ORANGE, font_weight="bold"),
        text(20, 280, "ranks first: false recall", fill=ORANGE, font_weight="bold"),
        text(250, 30, "Gallery: true captions and captions with one wrong word, by similarity", font_weight="bold"),
    ]
    for rank, row in enumerate(first):
        words, kind = captions[row]
        y, is_altered = 44 + 50 * rank, kind.startswith("altered")
        fill = ORANGE if is_altered else BLUE
        parts += [
            text(250, y + 28, str(rank + 1), 16, SOFT),
            box(274, y, 546, 44, PALE if is_altered else "#eef4f7"),
            text(284, y + 18, words),
            text(284, y + 34, kind, 12, fill),
            text(810, y + 27, f"{similarities[row]:.3f}", 15, fill, text_anchor="end"),
        ]
    write("method.svg", 840, 304, parts)


def draw_blind_grounding(
    images: Path, pair: tuple[str, str], examples: list[tuple[str, float]], shares: list[str]
) -> None:
    """Draw the preference of the matching image and of unrelated ones for the true caption of a pair."""
    question = "How much does each image prefer the true caption?  d = similarity(true) - similarity(altered)"
    parts = [
        text(20, 28, f"true: {pair[0]}", fill=BLUE, font_weight="bold"),
        text(20, 50, f"altered: {pair[1]}", fill=ORANGE, font_weight="bold"),
        text(20, 78, question, 13, SOFT),
    ]
    scale = 140 / max(abs(value) for _, value in examples)
    for number, (name, value) in enumerate(examples):
        y, length = 96 + 92 * number, scale * value
        label, fill = ("matching image", BLUE) if number == 0 else ("unrelated image", "#8a949e")
        parts += [
            thumbnail(images / name, 20, y, 80),
            text(112, y + 45, label, font_weight="normal" if number else "bold"),
            box(390 + min(0.0, length), y + 28, abs(length), 24, fill, 2),
            text(545, y + 45, f"{value:+.3f}", 13, SOFT),
        ]
    bottom = 96 + 92 * len(examples)
    parts.append(f'<path d="M 390 92 V {bottom - 8}" stroke="{DARK}"/>')
    parts.append(text(390, bottom + 8, "d = 0", 12, SOFT, text_anchor="middle"))
    for y, name, fill, words in ((132, "grounding", BLUE, shares[0]), (240, "blind", SOFT, shares[1])):
        parts.append(text(620, y, name, fill=fill, font_weight="bold"))
        parts += [text(620, y + 20 + 18 * n, line, 13) for n, line in enumerate(textwrap.wrap(words, 30))]
    write("blind_grounding.svg", 840, bottom + 24, parts)


def draw_reliability(bins: dict[str, list[tuple[int, float, float]]], ece: dict[str, float]) -> None:
    """Draw accuracy against confidence, as the model computes it and after temperature scaling.

    Args:
        bins: for both, (number of images, mean confidence, accuracy) of each bin.
        ece: expected calibration error of both, in percent.
    """
    parts = []
    for left, name, title in ((60, "as it is", "as computed"), (460, "scaled", "after temperature scaling")):

        def place(confidence: float, accuracy: float, left: int = left) -> tuple[float, float]:
            return left + 3 * confidence, 345 - 3 * accuracy

        parts.append(text(left, 24, f"{title}: ECE {ece[name]:.1f} %", 15, font_weight="bold"))
        parts.append(f'<path d="M {left} 345 V 45 M {left} 345 h 300" stroke="{DARK}"/>')
        parts.append(f'<path d="M {left} 345 L {left + 300} 45" stroke="{SOFT}" stroke-dasharray="4 4"/>')
        for tick in (0, 50, 100):
            parts.append(text(left + 3 * tick, 364, str(tick), 12, SOFT, text_anchor="middle"))
            parts.append(text(left - 8, 349 - 3 * tick, str(tick), 12, SOFT, text_anchor="end"))
        parts.append(text(left + 150, 384, "confidence, %", 13, SOFT, text_anchor="middle"))
        parts.append(text(left + 8, 60, "accuracy, %", 13, SOFT))
        for count, confidence, accuracy in bins[name]:
            if count:
                (x, y), (_, diagonal) = place(100 * confidence, 100 * accuracy), place(0, 100 * confidence)
                parts.append(f'<path d="M {x:.1f} {y:.1f} V {diagonal:.1f}" stroke="{ORANGE}" stroke-width="2"/>')
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 + count**0.5 / 2:.1f}" fill="{BLUE}"/>')
    write("reliability.svg", 800, 396, parts)


def draw_packages() -> None:
    """Draw the layers of packages from top to bottom."""
    parts = [text(20, 26, "Imports go only downwards", 13, SOFT)]
    for row, names in enumerate(LAYERS):
        y, width = 40 + 44 * row, (560 - 12 * (len(names) - 1)) / len(names)
        for column, name in enumerate(names):
            x = 20 + column * (width + 12)
            parts += [box(x, y, width, 34, "#e4edf2"), text(x + width / 2, y + 22, name, 15, text_anchor="middle")]
    bottom = 40 + 44 * len(LAYERS)
    arrow = f'<path d="M 606 48 V {bottom - 14} m -6 -10 l 6 10 l 6 -10" fill="none" stroke="{SOFT}" stroke-width="2"/>'
    write("packages.svg", 630, bottom + 4, [*parts, arrow])


def main() -> None:
    draw_packages()
    model = rococo_jax.load_model("demo:plain")
    with tempfile.TemporaryDirectory() as folder:
        images, annotations = rococo_jax.draw_benchmark(folder)
        items = json.loads((annotations / "same_concept.json").read_text(encoding="utf-8"))["items"]
        names = [item["image"] for item in items]
        pairs = [
            (number, original, altered)
            for number, item in enumerate(items)
            for original, altered in zip(item["originals"], item["altered"], strict=True)
            if altered is not None
        ]
        vectors = model.encode_image([Image.open(images / name) for name in names])
        originals = model.encode_text([original for _, original, _ in pairs])
        altered = model.encode_text([words for *_, words in pairs])
        query = names.index(SCENE)
        captions = [
            (words, "true caption" if owner == query else "caption of another image") for owner, words, _ in pairs
        ]
        captions += [
            (words, f"altered caption of {'this' if owner == query else 'another'} image") for owner, _, words in pairs
        ]
        draw_method(images, captions, np.concatenate([originals, altered]) @ vectors[query])

        differences = (originals - altered) @ vectors.T
        owners = np.array([owner for owner, *_ in pairs])
        unrelated = owners[:, None] != np.arange(len(names))
        matching = differences[np.arange(len(pairs)), owners]
        blind = (differences > 0).mean(axis=1, where=unrelated)
        grounding = (differences < matching[:, None]).mean(axis=1, where=unrelated)
        fitting = np.flatnonzero((grounding > 0.9) & (blind > 0.55) & (blind < 0.75))
        pair_row = min(fitting, key=lambda row: len(pairs[row][1]))
        order = [place for place in np.argsort(-differences[pair_row]) if place != owners[pair_row]]
        examples = [owners[pair_row], *(order[int(share * len(order))] for share in (0.3, 0.55, 0.95))]
        values = [(names[place], float(differences[pair_row, place])) for place in examples]
        shares = [
            f"{100 * grounding[pair_row]:.0f} % of the unrelated images have a smaller d than the matching image",
            f"{100 * blind[pair_row]:.0f} % of the unrelated images have a d above 0: "
            "they prefer the true caption, too",
        ]
        draw_blind_grounding(images, pairs[pair_row][1:], values, shares)

        open_questions(images, annotations, SCENES, SEED, Settings(templates=("5",)))
        results = rococo_jax.evaluate(model, images, images.parents[1] / "questions" / "classes", templates=5)
        classes = results["tasks"]["classes"]["clean"]
        errors = {"as it is": classes["ece"], "scaled": classes["ece_scaled"]}
        draw_reliability(results["curves"]["classes"]["clean"]["reliability"], errors)


if __name__ == "__main__":
    main()
