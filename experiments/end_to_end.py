"""Test models that were trained whole on drawn scenes, plain and with the recipe, on attacks unlike those of training.

    python experiments/end_to_end.py data --out scenes
    python experiments/end_to_end.py table --runs runs/seed-? --evaluations evaluations --out end_to_end.csv

`data` draws 1,000 test scenes and writes

    images/, captions.json        the scenes and their captions
    first.json                    the first caption of each scene, for the adaptive attack
    lexicon.json                  nouns of training: those of captions and half of the others
    known_lexicon.json            nouns of captions only
    attack_lexicon.json           all nouns of the demo, for the adaptive attack
    seen/, unseen/                captions in which a noun is replaced by one of the nouns that no caption contains:
                                  those in lexicon.json, or the other half (`HELD_OUT`)
    known/                        captions in which a noun is replaced by a noun of other captions
    choices/items.jsonl           a caption of each scene beside an altered caption of each of six kinds

`table` compares an arm of the sweeps `runs` with `plain` as `claims` does: seeds and images are both random.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from claims import Claim, compare_arms, counts_of_claim, runs_by_arm, write_claims

from rococo_jax.benchmarks.readers.plain_choices import text_choice
from rococo_jax.benchmarks.rococo.generate import alter_captions, write_altered
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.demo.captions import captions_of, demo_lexicon
from rococo_jax.demo.objects import OBJECTS, PLACES, ObjectKind
from rococo_jax.demo.scenes import draw_scene, make_scene
from rococo_jax.metrics.counts import Counts
from rococo_jax.perturb.text.kinds import KINDS, KindAlterer
from rococo_jax.perturb.text.lexicon import Group, Lexicon
from rococo_jax.storage import read_json, write_json, write_json_lines

SCENES, SEED = 1000, 61
VARIANTS = ("same_concept", "diff_concept")
# Every second noun that no caption contains, in the order of the demo's lexicon.
HELD_OUT = frozenset(
    """
    lion wolf ostrich ambulance van doctor teacher queen bread armchair hat ladder drum basket hut rose airport museum
    library tunnel market office
    """.split()
)
# A claim and the evaluation that has its results.
CLAIMS = (
    ("clean", Claim("R@1, image to text", "image_to_text", ("clean",), "r1", "higher", "equivalence", 3.0)),
    ("clean", Claim("R@1, text to image", "text_to_image", ("clean",), "r1", "higher", None, 3.0)),
    ("clean", Claim("FR@1, nouns of training", "image_to_text", VARIANTS, "fr1", "lower", "difference", 3.0)),
    ("unseen", Claim("FR@1, unseen nouns", "image_to_text", VARIANTS, "fr1", "lower", "difference", 3.0)),
    ("choices", Claim("accuracy, unseen kinds", "choices", KINDS, "ota", "higher", "difference", 3.0)),
    ("greedy", Claim("FR@1, adaptive attack", "image_to_text", VARIANTS[:1], "fr1", "lower", "difference", 3.0)),
    ("known", Claim("FR@1, nouns of captions", "image_to_text", VARIANTS, "fr1", "lower", None, 3.0)),
    ("clean", Claim("R@1 among altered, nouns of training", "image_to_text", VARIANTS, "r1", "higher", None, 3.0)),
    ("unseen", Claim("R@1 among altered, unseen nouns", "image_to_text", VARIANTS, "r1", "higher", None, 3.0)),
    ("known", Claim("R@1 among altered, nouns of captions", "image_to_text", VARIANTS, "r1", "higher", None, 3.0)),
    ("greedy", Claim("R@1, adaptive attack", "image_to_text", VARIANTS[:1], "r1", "higher", None, 3.0)),
    ("clean", Claim("blind, nouns of training", "image_to_text", VARIANTS, "blind", None, None, 5.0, target=50.0)),
    ("unseen", Claim("blind, unseen nouns", "image_to_text", VARIANTS, "blind", None, None, 5.0, target=50.0)),
    ("known", Claim("blind, nouns of captions", "image_to_text", VARIANTS, "blind", None, None, 5.0, target=50.0)),
    ("clean", Claim("grounding, nouns of training", "image_to_text", VARIANTS, "grounding", "higher", None, 3.0)),
    ("unseen", Claim("grounding, unseen nouns", "image_to_text", VARIANTS, "grounding", "higher", None, 3.0)),
    ("known", Claim("grounding, nouns of captions", "image_to_text", VARIANTS, "grounding", "higher", None, 3.0)),
    ("greedy", Claim("grounding, adaptive attack", "image_to_text", VARIANTS[:1], "grounding", "higher", None, 3.0)),
    ("choices", Claim("grounding, unseen kinds", "choices", KINDS, "grounding", "higher", None, 3.0)),
    *(("choices", Claim(f"accuracy, {kind}", "choices", (kind,), "ota", "higher", None, 3.0)) for kind in KINDS),
)


def nouns_of_captions(kinds: Iterable[ObjectKind] = OBJECTS) -> frozenset[str]:
    """Return the nouns that captions of scenes with things of these kinds contain."""
    of_objects = (word for kind in kinds for word in kind.nouns)
    of_places = (word for place in PLACES for word in place.nouns)
    return frozenset((*of_objects, *of_places))


def lexicon_of(inserted: Iterable[str], name: str) -> Lexicon:
    """Return the demo's lexicon with the nouns of captions, and these others as the only replacements."""
    allowed = nouns_of_captions() | frozenset(inserted)
    groups = [
        Group(group.concept, group.kind, tuple(noun for noun in group.nouns if noun.name in allowed))
        for group in demo_lexicon().groups.values()
    ]
    # Synonyms never replace each other.
    return Lexicon(groups, [sorted(nouns_of_captions())], name=name)


def demo_lexicon_with(is_included: Callable[[str], bool]) -> dict[str, Any]:
    """Return the demo's lexicon with these nouns only, as JSON."""
    lexicon = demo_lexicon().to_json()
    for group in lexicon["groups"]:
        group["nouns"] = {noun: plural for noun, plural in group["nouns"].items() if is_included(noun)}
    lexicon["groups"] = [group for group in lexicon["groups"] if group["nouns"]]
    return lexicon


def training_lexicon() -> dict[str, Any]:
    """Return the demo's lexicon without the held-out nouns, as JSON."""
    return demo_lexicon_with(lambda noun: noun not in HELD_OUT)


def write_data(out: Path) -> None:
    """Write the scenes, the lexicon and the altered captions."""
    scenes = [make_scene("test", SEED, index) for index in range(SCENES)]
    items = [CaptionedImage(f"{scene.name}.png", tuple(captions_of(scene))) for scene in scenes]
    (out / "images").mkdir(parents=True)
    write_json(out / "captions.json", [{"image": each.image, "caption": list(each.captions)} for each in items])
    write_json(out / "first.json", [{"image": each.image, "caption": [each.captions[0]]} for each in items])
    write_json(out / "lexicon.json", training_lexicon())
    write_json(out / "known_lexicon.json", demo_lexicon_with(nouns_of_captions().__contains__))
    write_json(out / "attack_lexicon.json", demo_lexicon().to_json())
    other = frozenset(noun.name for noun in demo_lexicon().nouns) - nouns_of_captions()
    if not other > HELD_OUT:
        raise ValueError(f"not among the nouns outside captions: {sorted(HELD_OUT - other)}")
    lexicons = {
        "seen": lexicon_of(other - HELD_OUT, "seen"),
        "unseen": lexicon_of(HELD_OUT, "unseen"),
        "known": Lexicon.from_json(demo_lexicon_with(nouns_of_captions().__contains__), "known"),
    }
    for name, lexicon in lexicons.items():
        sets = alter_captions(None, items, VARIANTS, lexicon=lexicon, seed=SEED, select="random", fit_article=True)
        for variant, altered in sets.items():
            write_altered(out / name / f"{variant}.json", altered, {"lexicon": lexicon.hash(), "seed": SEED})
            print(f"{name}, {variant}: {dict(altered.unaltered)} unaltered of {5 * SCENES}")
    lines = []
    for kind in KINDS:
        alterer = KindAlterer(kind, demo_lexicon(), seed=SEED)
        for item in items:
            pairs = ((caption, alterer.alter(caption, item.captions)) for caption in item.captions)
            pair = next(((caption, altered[0].caption) for caption, altered in pairs if altered), None)
            if pair is not None:
                lines.append(text_choice(f"{kind} {item.image}", kind, pair[:1], pair[1], item.image))
    write_json_lines(out / "choices" / "items.jsonl", lines)
    print("items by kind:", dict(Counter(line["part"] for line in lines)))
    counts = Counter(caption for item in items for caption in item.captions)
    shared = [item for item in items if all(counts[caption] > 1 for caption in item.captions)]
    print(f"{len(counts)} distinct captions of {5 * SCENES}; {len(shared)} scenes without a caption of their own")
    for scene in scenes:
        draw_scene(scene, 256).save(out / "images" / f"{scene.name}.png", compress_level=3)


def folders_by_arm(sweeps: Sequence[Path], arms: Sequence[str]) -> dict[str, list[Path]]:
    """Return the folders of the runs of some arms, in the order of the sweeps."""
    folders: dict[str, list[Path]] = {arm: [] for arm in arms}
    for sweep in sweeps:
        for point in read_json(sweep / "sweep.json", "a sweep")["points"]:
            if point["arm"] in folders:
                folders[point["arm"]].append(sweep / "points" / point["run"])
    return folders


def table(sweeps: Sequence[Path], evaluations: Path, out: Path, arm: str = "recipe") -> None:
    """Write and print a row for each claim about an arm."""
    folders = folders_by_arm(sweeps, ("plain", arm))
    names = [folder.name for of_arm in folders.values() for folder in of_arm]
    if len(set(names)) < len(names) or len(folders["plain"]) != len(folders[arm]):
        raise ValueError(f"not one run of each arm and seed: {names}")
    comparisons = []
    for evaluation, claim in CLAIMS:
        counts: dict[str, list[Counts]] = {}
        for name, of_arm in folders.items():
            is_of_sweep = evaluation == "clean"
            results = [each / "evaluation" if is_of_sweep else evaluations / evaluation / each.name for each in of_arm]
            counts[name] = counts_of_claim(results, claim)
        comparisons.append(compare_arms(claim, runs_by_arm(counts, claim.metric)))
    write_claims(comparisons, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writer = commands.add_parser("data", help="draw the test scenes and write altered captions")
    writer.add_argument("--out", type=Path, required=True)
    tabulator = commands.add_parser("table", help="compare an arm with plain")
    tabulator.add_argument("--runs", nargs="+", type=Path, required=True, help="working folders of the sweeps")
    tabulator.add_argument("--evaluations", type=Path, required=True, help="folders unseen, known, choices and greedy")
    tabulator.add_argument("--arm", default="recipe", help="the arm that is compared with plain")
    tabulator.add_argument("--out", type=Path, required=True, help="the table, CSV")
    arguments = parser.parse_args()
    if arguments.command == "data":
        write_data(arguments.out)
    else:
        table(arguments.runs, arguments.evaluations, arguments.out, arguments.arm)


if __name__ == "__main__":
    main()
