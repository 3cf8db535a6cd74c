"""Read contents of other libraries' objects: tokenizers of every kind, functions, buffers, code in a model's folder."""

import functools
import json
import types

import numpy as np
import pytest

from rococo_jax.encoders import ForeignEncoder
from rococo_jax.encoders.adapters import load_adapted
from rococo_jax.encoders.adapters.contents import contents_of
from rococo_jax.encoders.adapters.of_mteb import FromMteb
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.embedding import embed_texts
from tests.support import adapter_models
from tests.support.models import change_json
from tests.support.single_changes import copied

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.quick


def distinct(values: list) -> int:
    return len({json.dumps(contents_of(value), sort_keys=True) for value in values})


def test_tokenizers_written_in_python_are_identified_by_vocabulary_merges_and_settings(tmp_path):
    vocabulary = {"<unk>": 0, "d": 1, "o": 2, "g": 3, "do": 4, "og": 5, "g</w>": 6, "dog</w>": 7}

    def tokenizer(folder: str, vocabulary=vocabulary, merges=("d o", "o g"), **settings):
        (place := tmp_path / folder).mkdir()
        (place / "vocab.json").write_text(json.dumps(vocabulary))
        (place / "merges.txt").write_text("\n".join(["#version", *merges, ""]))
        return transformers.CTRLTokenizer(str(place / "vocab.json"), str(place / "merges.txt"), **settings)

    made = [
        tokenizer("a"), tokenizer("b", {**vocabulary, "d": 2, "o": 1}), tokenizer("c", merges=("o g", "d o")),
        tokenizer("d", model_max_length=7), tokenizer("e", padding_side="left"), tokenizer("f", unk_token="[UNK]"),
    ]  # fmt: skip
    assert not made[0].is_fast
    made += [tokenizer("g")]
    made[-1].add_tokens(["zebra"])
    assert distinct(made) == len(made)
    used = tokenizer("h", dict(reversed(vocabulary.items())))
    assert distinct([made[0], used]) == 1


def test_sentencepiece_tokenizers_are_identified_by_their_model(tmp_path):
    import sentencepiece

    for name, words in (("a", "dog cat mat"), ("b", "cat dog hat")):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(words.split() * 20), model_prefix=str(tmp_path / name), vocab_size=14, pad_id=3,
            minloglevel=9,
        )  # fmt: skip
    (tmp_path / "c.model").write_bytes((tmp_path / "a.model").read_bytes())
    one, other, same = (transformers.SiglipTokenizer(str(tmp_path / f"{name}.model")) for name in "abc")
    assert distinct([one, same]) == 1 and distinct([one, other]) == 2


def test_functions_are_identified_by_name_defaults_closures_and_code():
    def made(value):
        return lambda text, more=(): text + value

    def scale(x, by=2):
        return x * by

    functions = [
        made("a"), made("b"), made(made("a")), lambda text: text.lower(), lambda text: text.upper(), scale, str.lower,
        str.upper, functools.partial(scale, by=3), functools.partial(scale, by=4), functools.partial(str.upper),
    ]  # fmt: skip
    assert distinct(functions) == len(functions)
    assert distinct([made("a"), made("a")]) == 1


def test_objects_are_identified_by_the_types_and_values_of_their_attributes():
    class Own:
        __slots__ = ("inside", "size")

        def __init__(self, size, inside=None):
            self.size, self.inside = size, inside

    values = [
        0, 0.0, False, None, "0", [0], {"0": 0}, {0: 0}, {0, 1}, b"0", np.zeros(2), np.zeros((1, 2)),
        np.zeros(2, np.float32), torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16), torch.float32, torch.float16,
        Own(0), Own(1), Own(0, Own(0)), Own(0, Own(1)), Own,
        transformers.AddedToken("a"), transformers.AddedToken("a", lstrip=True),
    ]  # fmt: skip
    assert distinct(values) == len(values)
    itself = Own(0)
    itself.inside = [itself]
    assert contents_of(itself) != contents_of(Own(0))
    assert distinct([torch.device("cpu"), torch.device("cuda:1")]) == 1
    assert distinct([{"a": 1, "b": 2}, {"b": 2, "a": 1}]) == 1


def test_containers_that_share_their_parts_are_read_once():
    """A container with 2^60 paths; the contents do not depend on whether equal parts are one object."""
    shared = [{}, [], ()]
    for _ in range(60):
        dictionary, items, values = shared
        shared = [{"a": dictionary, "b": dictionary}, [items, items], (values, values)]
    assert distinct(shared) == 2  # a list and a tuple of equal items are alike
    part = {"a": [1]}
    assert distinct([{"x": part, "y": part}, {"x": {"a": [1]}, "y": {"a": [1]}}]) == 1


def test_buffers_outside_of_the_state_dict_and_settings_of_modules_decide():
    def module(heads=2, eps=1e-5, buffer=0.0, activation=torch.nn.functional.gelu):
        made = torch.nn.TransformerEncoderLayer(4, heads, 8, layer_norm_eps=eps, activation=activation)
        made.register_buffer("shift", torch.full((2,), buffer), persistent=False)
        return made

    others = [module(), module(heads=1), module(eps=1e-6), module(buffer=1.0), module(activation=torch.relu)]
    assert distinct(others) == len(others) and distinct([module(), module()]) == 1


CONFIGURATION = """
from transformers import CLIPConfig
class MyConfig(CLIPConfig):
    model_type = "my_clip"
"""
MODELING = """
from transformers import CLIPModel
from .configuration_my import MyConfig
class MyModel(CLIPModel):
    config_class = MyConfig
    def get_text_features(self, *args, **kwargs):
        return super().get_text_features(*args, **kwargs).pooler_output * SIGN
SIGN = {sign}
"""


def test_code_that_comes_with_a_model_decides_and_its_folder_does_not(tmp_path, monkeypatch):
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = adapter_models.clip(tmp_path / "one")
    (folder / "configuration_my.py").write_text(CONFIGURATION)
    (folder / "modeling_my.py").write_text(MODELING.format(sign=1))
    names = {"AutoConfig": "configuration_my.MyConfig", "AutoModel": "modeling_my.MyModel"}
    change_json(folder / "config.json", lambda config: config.update(auto_map=names, model_type="my_clip"))
    change_json(folder / "preprocessor_config.json", lambda config: config.pop("processor_class"))
    change_json(folder / "preprocessor_config.json", lambda config: config.update(processor_class="CLIPProcessor"))
    other, changed = copied(folder, tmp_path / "two"), copied(folder, tmp_path / "three")
    (changed / "modeling_my.py").write_text(MODELING.format(sign=-1))
    how = {"trust_remote_code": True}
    keys = [load_adapted(f"transformers:{place}", how).fingerprint() for place in (folder, other, changed)]
    assert keys[0] == keys[1] != keys[2]


def test_two_models_that_differ_in_their_vocabulary_alone_share_no_cached_embedding(tmp_path):
    folder = adapter_models.clip(tmp_path / "one")
    other, same = copied(folder, tmp_path / "two"), copied(folder, tmp_path / "three")

    def swap(tokenizer):
        vocabulary = tokenizer["model"]["vocab"]
        vocabulary["dog"], vocabulary["cat"] = vocabulary["cat"], vocabulary["dog"]

    change_json(other / "tokenizer.json", swap)
    cache, text = EmbeddingCache(tmp_path / "cache"), ["a dog"]
    one, two, three = (load_adapted(f"transformers:{each}") for each in (folder, other, same))
    vectors = [embed_texts(ForeignEncoder(model), text, cache) for model in (one, two)]
    assert cache.read == 0 and not np.allclose(*vectors, atol=1e-3)
    np.testing.assert_array_equal(embed_texts(ForeignEncoder(three), text, cache), vectors[0])
    assert cache.read == 1


class OfMteb:
    """A model of mteb: an object around a torch module and its tokenizer."""

    def __init__(self, bias=0.0, words=adapter_models.WORDS, folder=None, prompts=None):
        self.model, self.model_prompts = torch.nn.Linear(2, 2), prompts
        torch.nn.init.constant_(self.model.bias, bias)
        torch.nn.init.eye_(self.model.weight)
        self.tokenizer = adapter_models.word_tokenizer(folder, words)

    def encode(self, batches, **about):
        return np.concatenate([np.ones((len(batch["text"]), 2)) for batch in batches])


def test_models_of_mteb_are_identified_by_their_contents_beside_name_and_revision(tmp_path):
    def key(identity=None, role=None, task=None, batch_size=32, **changes):
        model = OfMteb(folder=tmp_path / "words", **changes)
        return FromMteb(
            model, task, batch_size, identity=identity or {"model": "m", "revision": "1"}, role=role
        ).fingerprint()

    words = [*adapter_models.WORDS[:-2], *adapter_models.WORDS[:-3:-1]]
    keys = [
        key(), key({"model": "m", "revision": "2"}), key(role="query"), key(task=types.SimpleNamespace(name="other")),
        key(bias=1.0), key(words=words), key(prompts={"query": "find"}), key(prompts={"query": "seek"}),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys) and key(batch_size=3) == keys[0]
    assert not hasattr(FromMteb(OfMteb(folder=tmp_path / "words")), "fingerprint")
