"""Known checkpoints: their published figures beside a result."""

import pytest

from rococo_jax.evaluation.summary import print_summary
from rococo_jax.metrics.known_figures import COLUMNS, compare_with_published, known_figures


def result(source="openai/clip-vit-base-patch32", r1=50.14, images=5000, **changes):
    """What a results file of a converted checkpoint holds of these."""
    provenance = {"source": source, "format": "huggingface", "weights_sha256": "ab"}
    clean = {
        "image_to_text": {"clean": {"r1": r1, "r5": 75.02, "r10": 83.5}},
        "text_to_image": {"clean": {"r1": 30.45, "r5": 55.95, "r10": 66.9}},
    }
    queries = {"image_to_text": images, "text_to_image": 5 * images + 10}
    made = {
        "model": "b32", "protocol": "paper", "tasks": clean, "kinds": dict.fromkeys(clean, "rank"), "intervals": {},
        "sizes": {task: {"clean": {"queries": count, "images": images}} for task, count in queries.items()},
        "fingerprint": {"model": {"dtype": "float32"}},
        "about": {"provenance": provenance, "weights_sha256": "ab", "warnings": []},
    }  # fmt: skip
    return made | changes


def test_a_known_checkpoint_is_compared_with_its_published_figures(capsys):
    lines = compare_with_published(result())
    assert lines[0].startswith("image to text: R@1 50.1, published 50.1; R@5 75.0, published 75.0")
    assert lines[-1] == "as published, within 0.3 points"
    print_summary([result()])
    assert "b32, as published" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fingerprint": {"model": {"dtype": "bfloat16"}}}, "bfloat16"),
        ({"protocol": "strict"}, "the protocol is strict"),
        ({}, "usual reasons are the activation"),
    ],
)
def test_a_difference_names_what_explains_it(changes, reason):
    last = compare_with_published(result(r1=47.0, **changes))[-1]
    assert last.startswith("up to 3.1 points away")
    assert reason in last


def test_nothing_is_said_of_other_images_or_other_weights():
    assert compare_with_published(result(images=281)) == []
    assert compare_with_published(result(source="me/mine")) == []
    trained = result()
    trained["about"]["weights_sha256"] = "cd"  # as after training on from the checkpoint
    assert compare_with_published(trained) == []


@pytest.mark.parametrize(
    ("provenance", "r1"),
    [
        ({"source": "hf-hub:laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "format": "open_clip"}, 56.32),
        ({"source": "/models/ViT-L-14-336px.pt", "format": "openai", "model_type": "ViT-L/14@336px"}, 57.94),
        ({"source": "ViT-B-32.pt", "format": "openai", "model_type": "ViT-B/32"}, 50.12),
        ({"source": "/home/me/openai/clip-vit-base-patch32", "format": "huggingface"}, 50.12),
        ({"source": "ViT-B-32.pt", "format": "openai", "model_type": "clip"}, None),
    ],
)
def test_a_checkpoint_is_known_by_its_name_on_the_hub_or_the_hash_of_its_file(provenance, r1):
    known = known_figures({"provenance": {**provenance, "weights_sha256": "ab"}, "weights_sha256": "ab"})
    assert known is None or set(known) == set(COLUMNS)
    assert (known and known["image_to_text_r1"]) == r1
