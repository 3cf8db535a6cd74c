"""Training data whose every pixel and word is known, and the batches that a config makes of them.

Images say where each of their pixels was (red: column, green: row) and which image it is (blue). Draws of the order are
restated from their definition.
"""

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
from PIL import Image

from rococo_jax.data.preprocessing import Preprocessing
from rococo_jax.encoders import Encoder
from rococo_jax.runtime import make_mesh
from rococo_jax.training.config import default_config
from rococo_jax.training.inputs.batches import PairBatches, make_batches, open_source
from rococo_jax.training.inputs.feature_pool import Features
from rococo_jax.training.inputs.field_maker import FieldContext
from tests.support.tiny import tiny_encoder, tiny_spec, tiny_tokenizer
from tests.support.tiny_runs import changed
from tests.support.world import write_world

IMAGES, COLUMNS, SIDE = 12, 48, 32
ADJECTIVES = "red blue green big small".split()


def captions_of(number: int) -> list[str]:
    """Return captions that no two images share; dog and house are the nouns of the lexicon."""
    colours = f"{ADJECTIVES[number % 5]} {ADJECTIVES[number // 5]}"
    return [f"a dog {verb} {colours} house" for verb in ("sits", "runs", "near")]


def pixels_of(number: int, columns: np.ndarray | None = None, lift: int = 0) -> np.ndarray:
    """The image, or some of its columns; by default the 32 in the middle."""
    columns, rows = np.meshgrid(np.arange(8, 40) if columns is None else columns, np.arange(SIDE))
    return np.stack([5 * columns, 7 * rows, np.full_like(rows, 10 * number + lift)], -1).astype(np.uint8)


def resized(number: int) -> np.ndarray:
    """48 columns to 32 by the nearest."""
    return pixels_of(number, ((np.arange(SIDE) + 0.5) * COLUMNS / SIDE).astype(int))


def order(seed: int) -> np.ndarray:
    """The first epoch's images."""
    digest = hashlib.blake2b(json.dumps([seed, "order", 0]).encode(), digest_size=4).digest()
    return np.random.Generator(np.random.Philox(int.from_bytes(digest, "little"))).permutation(IMAGES)


def make_world(folder: Path) -> SimpleNamespace:
    """Files, an encoder, and `take`: batches of a config."""
    captions = [captions_of(number) for number in range(IMAGES)]
    nouns = {"animal": ["dog", "cat", "owl"], "place": ["house", "boat", "igloo"]}
    for name, groups in (("lexicon", nouns), ("other_lexicon", {**nouns, "animal": ["dog", "sheep"]})):
        groups = [{"concept": concept, "nouns": words} for concept, words in groups.items()]
        (folder / f"{name}.json").write_text(
            json.dumps({"format": "rococo_jax.lexicon", "version": 1, "groups": groups})
        )
    for name, of_word in (("dog", {"house": 0.5}), ("house", {"dog": 0.5})):
        lines = [
            {"caption": caption, "words": caption.split(), "influence": [of_word.get(w, 0.1) for w in caption.split()]}
            for texts in captions for caption in texts
        ]  # fmt: skip
        (folder / f"lowest_{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    spec, tiny = tiny_spec(16), tiny_encoder(spec=tiny_spec(16))
    preprocessing = Preprocessing(shortest_edge=SIDE, crop_size=(SIDE, SIDE), resample="nearest")
    encoder = Encoder(tiny.model, preprocessing, tiny_tokenizer(), name="tiny", mesh=make_mesh(jax.devices()[:1]))

    def picture(number: int, _: np.random.Generator) -> Image.Image:
        return Image.fromarray(pixels_of(number, np.arange(COLUMNS)))

    write_world(folder, captions, picture=picture, start=encoder)
    of_id = {index: token for token, index in encoder.tokenizer.rust.get_vocab().items()}

    def config_of(**settings):
        paths = {"data__images": "images", "data__captions": "captions.json"}
        paths |= {"losses__sc__lexicon": "lexicon.json", "losses__sc__influence": "lowest_dog.jsonl"}
        paths = {key: str(folder / name) for key, name in paths.items()}
        common = {"batch_size": 4, "seed": 3, "losses__sc__variants": "same_concept", **paths}
        return changed(default_config(), **{**common, **settings})

    def context(**settings) -> FieldContext:
        config = config_of(**settings)
        return FieldContext(config, encoder, open_source(config.data), folder)

    def take(count: int = 6, **settings) -> list:
        batches = make_batches(context(**settings))
        first_batches = [next(batches) for _ in range(count)]
        batches.close()
        return first_batches

    def text(ids: np.ndarray, mask: np.ndarray) -> str:
        tokens = [of_id[int(each)] for each in ids[mask]]
        assert tokens[0] == "<s>" and tokens[-1] == "</s>"
        return " ".join(tokens[1:-1]).replace(" ##", "")

    def texts(batches: list, field: str | None = None) -> list[str]:
        """The texts of the pairs, or those of a field that count."""
        found = []
        for batch in batches:
            of_field = batch.texts if field is None else batch.fields[field]
            valid = np.ones(len(batch.image_id), bool) if field is None else batch.valid[field]
            found += [text(*row) for row in zip(of_field.ids[valid], of_field.mask[valid], strict=True)]
        return found

    return SimpleNamespace(
        folder=folder, encoder=encoder, spec=spec, config_of=config_of, context=context, take=take, texts=texts
    )


def features_and_batches(context) -> tuple[Features, PairBatches]:
    """Return the features of frozen towers, and the batches of them."""
    features = []
    batches = make_batches(context, lambda config, make: features.append(make()) or features[0])
    return features[0], batches
