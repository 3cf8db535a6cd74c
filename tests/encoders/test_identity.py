"""Identity of models: whatever changes a number changes their keys, and what changes none leaves them.

Models that are folders are changed on disk, one value at a time. A change that leaves the key must leave every number
that the model gives, bit for bit; the changes that are known to decide numbers must change the key.
"""

import dataclasses
import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rococo_jax.encoders import LoadOptions
from rococo_jax.encoders.adapters import load_adapted
from rococo_jax.errors import InputError
from rococo_jax.evaluation.models import open_model
from rococo_jax.storage import hash_json
from tests.support import adapter_models, open_clip_stand_in
from tests.support.cases import further
from tests.support.paths import CHECKOUT
from tests.support.single_changes import changes_of, copied, one_of_each_field, unchanged_copies

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.quick

TEXTS = ["a dog", "The CAT and  a zebra", "on the mat is a dog " * 9, "yes no [MASK]"]
IMAGES = [Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 48, 3), np.uint8)) for seed in range(2)]


def keys_of(source: Any, name: str | None = None, **arguments: Any) -> list[str]:
    """Return the key of the results and the keys of cached features."""
    model = open_model(source, name=name, options=LoadOptions(arguments=arguments))
    towers = [model.encoder.describe_tower(side) for side in ("vision", "text")] if model.encoder else []
    scorer = {key: value for key, value in getattr(model, "scorer", _NONE).describe().items() if key != "name"}
    return [hash_json(each) for each in (model.describe(), *towers, scorer)]


_NONE = types.SimpleNamespace(describe=dict)


def embeddings(model: Any) -> list[np.ndarray]:
    return [model.encode_image(IMAGES), model.encode_text(TEXTS)]


def texts_alone(model: Any) -> list[np.ndarray]:
    return [model.encode_text(TEXTS)]


def scores(model: Any) -> list[np.ndarray]:
    return [model.score_pairs([*IMAGES, *IMAGES], TEXTS)]


def scores_of_questions(model: Any) -> list[np.ndarray]:
    # A question must not contain a special token.
    return [model.score_pairs([*IMAGES, *IMAGES], [*TEXTS[:-1], "yes no"])]


def scores_of_texts(model: Any) -> list[np.ndarray]:
    return [model.module.predict([(text, TEXTS[0]) for text in TEXTS], show_progress_bar=False)]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of model that is a folder.

    Attributes:
        prefix: of its source.
        make: writes one into a new folder.
        numbers: what it gives.
        decisive: beginnings of changes that must change the key.
        arguments: adapter options, and other values that change the key.
        changes: how many of all changes change the key, at least.
    """

    prefix: str
    make: Callable[[Path], Path]
    numbers: Callable[[Any], list[np.ndarray]]
    decisive: tuple[str, ...]
    arguments: dict[str, tuple[Any, ...]]
    changes: int


DTYPES = ("bfloat16", "float16")
TOKENIZERS = (
    "tokenizer.json: model/vocab", "tokenizer_config.json: model_max_length",
    "tokenizer_config.json: pad_token", "tokenizer_config.json: unk_token",
)  # fmt: skip
WHOLE_TOKENIZERS = (
    *TOKENIZERS, "tokenizer_config.json: truncation", "tokenizer.json: model/merges", "tokenizer.json: added_tokens",
    "tokenizer.json: normalizer", "tokenizer.json: padding", "tokenizer.json: truncation",
    "tokenizer.json: post_processor/special_tokens",
)  # fmt: skip
LOWER_CASING = ("tokenizer_config.json: do_lower_case",)


def open_clip_with(tokenizer: Callable[[], Any]) -> Callable[[Path], Path]:
    return lambda folder: open_clip_stand_in.save(folder, tokenizer())


def byte_pairs() -> dict[str, Any]:
    words = ["<pad>", "d", "o", "g", "c", "a", "t", "do", "dog", "ca", "cat"]
    merges = [["d", "o"], ["do", "g"], ["c", "a"], ["ca", "t"]]
    return {"vocab": {word: number for number, word in enumerate(words)}, "merges": merges}


KINDS = {
    "transformers": Kind(
        "transformers", adapter_models.clip, embeddings, (*WHOLE_TOKENIZERS, "preprocessor_config.json", "model.safe"),
        {"dtype": DTYPES}, 75,
    ),
    "matching head": Kind(
        "transformers", adapter_models.blip, scores,
        (*TOKENIZERS, *LOWER_CASING, "processor_config.json: image_processor", "model.safetensors"),
        {"dtype": DTYPES}, 60,
    ),
    "VQAScore": Kind(
        "vqascore", adapter_models.llava, scores_of_questions,
        (*TOKENIZERS, *LOWER_CASING, "processor_config.json", "model.safetensors", "chat_template.jinja"),
        {"dtype": DTYPES, "question": ("is it {} ?", "a {}"), "answer": ("no", "dog")}, 75,
    ),
    "sentence-transformers": Kind(
        "sentence_transformers", adapter_models.sentence_model, texts_alone,
        (*TOKENIZERS, *LOWER_CASING, "model.safetensors", "2_Dense/model.safetensors", "1_Pooling/config.json: pooling",
         "2_Dense/config.json: activation", "config_sentence_transformers.json: prompts",
         "config_sentence_transformers.json: default_prompt_name", "config_sentence_transformers.json: similarity"),
        {"dtype": DTYPES}, 50,
    ),
    "cross-encoder": Kind(
        "cross_encoder", adapter_models.cross_encoder, scores_of_texts,
        (*TOKENIZERS, *LOWER_CASING, "model.safetensors", "config_sentence_transformers.json: activation_fn",
         "config_sentence_transformers.json: prompts"),
        {"dtype": DTYPES, "query": ("image",)}, 35,
    ),
    "open_clip": Kind(
        "open_clip", open_clip_with(byte_pairs), embeddings,
        ("open_clip_model.safetensors", "open_clip_config.json: preprocess_cfg", "open_clip_config.json: tokenizer_cfg",
         "open_clip_config.json: model_cfg/heads", "open_clip_config.json: model_cfg/eps",
         "open_clip_config.json: model_cfg/context_length", "byte_pairs.json"),
        {"dtype": DTYPES}, 20,
    ),
    "open_clip with a tokenizer of transformers": Kind(
        "open_clip", open_clip_with(adapter_models.byte_pair_tokenizer), embeddings,
        (*WHOLE_TOKENIZERS, "open_clip_model.safetensors", "open_clip_config.json: preprocess_cfg"),
        {"dtype": DTYPES}, 35,
    ),
}  # fmt: skip
# Kinds whose folders are changed at every run; the others have the same loaders and tokenizers.
TRIED = ("transformers", "VQAScore", "open_clip")
# Kinds whose tensors are changed at every run; one function hashes those of all.
TENSORS_TRIED = ("VQAScore", "sentence-transformers")


@pytest.fixture
def source(request, tmp_path, monkeypatch) -> tuple[Kind, Path]:
    """A kind, and a model of it."""
    kind = KINDS[request.param]
    if kind.prefix in ("sentence_transformers", "cross_encoder"):
        pytest.importorskip("sentence_transformers")
    monkeypatch.setitem(sys.modules, "open_clip", open_clip_stand_in.make())
    (tmp_path / "model").mkdir()
    return kind, kind.make(tmp_path / "model")


def place_of(kind: Kind, folder: Path) -> str:
    return f"{kind.prefix}:{'local-dir:' * (kind.prefix == 'open_clip')}{folder}"


def loaded(kind: Kind, folder: Path) -> Any:
    model = open_model(place_of(kind, folder))
    return (model.encoder or model.scorer).model


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    further(KINDS, TRIED, pytest.mark.thorough),
    indirect=True,
)
def test_every_change_of_a_folder_changes_the_keys_or_no_embedding(source, tmp_path):
    kind, folder = source
    first, expected = keys_of(place_of(kind, folder)), None
    changed, refused, missed = [], [], []
    changes = changes_of(folder)
    if not os.environ.get("ROCOCO_THOROUGH"):
        changes = one_of_each_field(changes, kind.decisive)
    for label, change in changes:
        change(copy := copied(folder, tmp_path / "copy"))
        try:
            keys = keys_of(place_of(kind, copy))
        except InputError:  # the library or the adapter refuses it
            refused.append(label)
            continue
        if keys != first:
            assert keys[0] != first[0], f"{label} changes what is cached, and results are taken as they are"
            changed.append(label)
            continue
        expected = expected or kind.numbers(loaded(kind, folder))
        same = all(map(np.array_equal, kind.numbers(loaded(kind, copy)), expected))
        missed += [] if same and not label.startswith(kind.decisive) else [label]
    print(f"{folder}: {len(changed)} changes of the key, {len(refused)} refused")
    assert not missed
    assert not os.environ.get("ROCOCO_THOROUGH") or len(changed) >= kind.changes, len(changed)
    for beginning in kind.decisive:
        assert any(label.startswith(beginning) for label in changed), beginning


@pytest.mark.parametrize("source", KINDS, indirect=True)
def test_paths_names_devices_and_batch_sizes_do_not_change_the_keys(source, tmp_path):
    kind, folder = source
    first = keys_of(place_of(kind, folder))
    assert keys_of(place_of(kind, folder), "another name", batch_size=3, device="cpu:0") == first
    for label, change in unchanged_copies(folder):
        change(copy := copied(folder, tmp_path / "another folder"))
        assert keys_of(place_of(kind, copy)) == first, label
    used = loaded(kind, folder)
    before = used.fingerprint()
    kind.numbers(used)
    assert used.fingerprint() == before


@pytest.mark.slow
def test_another_process_computes_the_same_keys(tmp_path):
    """Run with another hash seed, which changes hashes of texts and orders of sets."""
    source = place_of(KINDS["VQAScore"], KINDS["VQAScore"].make(tmp_path / "model"))
    lines = "import sys; from rococo_jax.encoders.adapters import load_adapted\n"
    lines += "print(load_adapted(sys.argv[1]).fingerprint())"
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(CHECKOUT)}
    run = subprocess.run([sys.executable, "-c", lines, source], env=environment, capture_output=True, text=True)
    assert run.stdout.strip() == load_adapted(source).fingerprint(), run.stderr


@pytest.mark.parametrize("source", KINDS, indirect=True)
def test_options_of_adapters_change_the_keys(source):
    kind, folder = source
    choices = [{name: value} for name, values in kind.arguments.items() for value in values]
    keys = [keys_of(place_of(kind, folder), **choice)[0] for choice in [{}, *choices]]
    assert len(set(keys)) == len(keys)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    further(KINDS, TENSORS_TRIED, pytest.mark.thorough),
    indirect=True,
)
def test_every_change_of_a_tensor_changes_the_fingerprint_even_in_place(source):
    kind, folder = source
    model = loaded(kind, folder)
    first, tried = model.fingerprint(), 0
    for name, tensor in model.module.state_dict().items():
        flat, before = tensor.view(-1), tensor.clone()
        change = 0.25 if tensor.dtype.is_floating_point else 1
        with torch.no_grad():
            flat[0] += change
        assert model.fingerprint() != first, name
        # Writes that torch does not count.
        tensor.data.copy_(before)
        assert model.fingerprint() == first, name
        tensor.data.view(-1)[-1] += change
        assert model.fingerprint() != first, name
        tensor.data.copy_(before)
        tried += 1
    assert tried > 20 and model.fingerprint() == first
