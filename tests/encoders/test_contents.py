"""Read contents of other libraries' objects: tokenizers of every kind, functions, buffers, code in a model's folder."""

import collections
import functools
import importlib.metadata
import json
import types

import numpy as np
import pytest

from rococo_jax.encoders import ForeignModel
from rococo_jax.encoders.adapters import load_adapted
from rococo_jax.encoders.adapters.contents import _Reader, contents_of, hash_weights, release_of, state_of_weights
from rococo_jax.encoders.adapters.of_mteb import FromMteb
from rococo_jax.encoders.adapters.torch_module import TorchModule, TorchOptions
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


HELPER = "def clean(text):\n    return text.{}()\n"
USERS_CODE = {
    "a function": "def apply(text):\n    return text.{}()\n",
    "a global function": HELPER + "def apply(text):\n    return clean(text)\n",
    "a global value": "TABLE = {{'method': '{}'}}\ndef apply(text):\n    return getattr(text, TABLE['method'])()\n",
    "a default value": "def apply(text, method='{}'):\n    return getattr(text, method)()\n",
    "an attribute of the function": "def apply(text):\n    return apply.how(text)\napply.how = str.{}\n",
    "a nested function": "def apply(text):\n    return (lambda: [clean(each) for each in text])()\n" + HELPER,
    "a partial": HELPER + "import functools\napply = functools.partial(map, clean)\n",
    "a callable object": "class Apply:\n    def __call__(self, text):\n        return text.{}()\napply = Apply()\n",
    "a bound method": "class Own:\n    def clean(self, text):\n        return text.{}()\napply = Own().clean\n",
    "a method of the base": HELPER.replace("def", "class Base:\n  def") + "class Own(Base):\n    pass\napply = Own()\n",
    "a static method": HELPER.replace("def", "class Own:\n  @staticmethod\n  def") + "apply = Own()\n",
    "a property": "class Own:\n    method = property(lambda self: '{}')\napply = Own()\n",
    "an attribute of the class": "class Own:\n    method = '{}'\napply = Own()\n",
    "a dictionary": "class Own(dict):\n    def __missing__(self, text):\n        return text.{}()\napply = Own()\n",
    "a text": "class Own(str):\n    def __call__(self, text):\n        return text.{}()\napply = Own()\n",
    "a wrapper of a library's function": "import functools, html\n@functools.wraps(html.unescape)\n"
    "def apply(text):\n    return text.{}()\n",
    "an exception": "def apply(text):\n    try:\n        return text.{}()\n    except ValueError:\n        return ''\n",
}


@pytest.mark.parametrize("code", USERS_CODE.values(), ids=USERS_CODE)
def test_code_of_a_user_is_part_of_the_identity(code):
    """Whatever refers to it; under one name, and in modules without a file, such as a notebook."""

    def made(method: str):
        module = types.ModuleType("my_code")
        exec(code.format(method), vars(module))
        return module.apply

    assert distinct([made("lower"), made("upper")]) == 2
    assert distinct([made("lower"), made("lower")]) == 1


def test_changes_of_a_user_to_a_module_or_to_a_class_of_a_library_are_recognised(monkeypatch):
    own = types.ModuleType("my_words")
    own.clean = lambda text: text.lower()

    def apply(text):
        return own.clean(text)

    settings = [apply, transformers.AddedToken("a"), transformers.CLIPImageProcessor]
    before = contents_of(settings)
    assert contents_of(settings) == before
    with monkeypatch.context() as patch:
        patch.setattr(own, "clean", lambda text: text.upper())
        assert contents_of(settings) != before
    with monkeypatch.context() as patch:
        patch.setattr(transformers.CLIPImageProcessor, "resize", lambda self, image, size: image)
        assert contents_of(settings) != before
    assert contents_of(settings) == before


def test_functions_of_a_library_are_identified_by_its_release(monkeypatch):
    function = transformers.image_utils.load_image
    before = contents_of(function)
    release_of.cache_clear()
    monkeypatch.setattr(importlib.metadata.Distribution, "version", "0.1")
    assert contents_of(function) != before
    monkeypatch.undo()
    # An install from a folder or from version control has another code under one version.
    release_of.cache_clear()
    monkeypatch.setattr(importlib.metadata.PathDistribution, "read_text", lambda self, name: "{}")
    assert "code" in _Reader()._read_function(function)
    release_of.cache_clear()


def test_all_attributes_of_other_objects_are_part_of_the_identity():
    class Window:
        def __init__(self, **attributes):
            vars(self).update(attributes)

    names = ["revision", "device", "batch_size", "verbose", "cache_dir", "name_or_path"]
    assert all(distinct([Window(**{name: "a"}), Window(**{name: "b"})]) == 2 for name in names)
    configs = [transformers.CLIPConfig(name_or_path=name) for name in "ab"]
    assert distinct(configs) == 1


def test_shared_and_cyclic_containers_are_read_once():
    shared: dict = {}
    for _ in range(40):
        shared = {"a": shared, "b": [shared]}
    itself: list = []
    itself.append(itself)
    assert distinct([shared, itself, []]) == 3


def test_objects_are_identified_by_the_types_and_values_of_their_attributes():
    class Own:
        __slots__ = ("inside", "size")

        def __init__(self, size, inside=None):
            self.size, self.inside = size, inside

    values = [
        0, 0.0, False, None, "0", [0], {"0": 0}, {0: 0}, {0, 1}, b"0", np.zeros(2), np.zeros((1, 2)),
        np.zeros(()), np.array([np.zeros(2000), None], object), np.array([np.eye(2000)[0], None], object),
        np.zeros(2, [("a", "f4")]), np.zeros(2, [("b", "f4")]), np.ma.array([0.0, 0.0], mask=[0, 1]), memoryview(b"1"),
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


def test_buffers_outside_of_the_state_dict_and_module_settings_are_part_of_the_identity():
    def module(heads=2, eps=1e-5, buffer=0.0, activation=torch.nn.functional.gelu):
        torch.manual_seed(0)
        made = torch.nn.TransformerEncoderLayer(4, heads, 8, layer_norm_eps=eps, activation=activation)
        made.register_buffer("shift", torch.full((2,), buffer), persistent=False)
        return made

    others = [module(), module(heads=1), module(eps=1e-6), module(buffer=1.0), module(activation=torch.relu)]
    assert distinct(others) == len(others) and distinct([module(), module()]) == 1


def test_hooks_and_the_order_of_modules_are_part_of_the_identity():
    def module(names="ab", hook=None):
        parts = {"a": torch.nn.ReLU(), "b": torch.nn.Tanh()}
        made = torch.nn.Sequential(collections.OrderedDict((name, parts[name]) for name in names))
        if hook:
            made.register_forward_hook(hook)
        return made

    others = [module(), module("ba"), module(hook=lambda *a: a[2] + 1), module(hook=lambda *a: a[2] + 2)]
    assert distinct(others) == len(others) and distinct([module(), module()]) == 1


def swapped(tensor):
    """The same values at other places, as memory that torch does not count as changed."""
    return tensor.flip(0).clone()


WEIGHTS = {
    "float32": lambda: torch.randn(3, 5),
    "float64": lambda: torch.randn(3, 5, dtype=torch.float64),
    "bfloat16": lambda: torch.randn(3, 5).bfloat16(),
    "bfloat16 of an even number": lambda: torch.randn(4, 4).bfloat16(),
    "rounded": lambda: torch.randn(3, 5).bfloat16().float(),
    "signs": lambda: torch.tensor([1.0, -1.0, -1.0, -1.0]),
    "int8": lambda: torch.arange(7, dtype=torch.int8),
    "bytes within others": lambda: torch.arange(9, dtype=torch.uint8)[1:],
    "bool": lambda: torch.tensor([True, False, False]),
    "complex64": lambda: torch.randn(3, 5, dtype=torch.complex64),
    "complex128": lambda: torch.randn(3, 5, dtype=torch.complex128),
    "conjugated": lambda: torch.randn(3, 5, dtype=torch.complex64).conj(),
    "float8": lambda: torch.randn(3, 5).to(torch.float8_e4m3fn),
    "scalar beside": lambda: torch.stack([torch.tensor(1.0), torch.tensor(2.0)]),
    "transposed": lambda: torch.randn(5, 3).t(),
    "every other": lambda: torch.randn(6, 5)[::2],
    "several sums": lambda: torch.cat([torch.zeros(2**16), torch.ones(2**16), torch.full((3,), 2.0)]),
}


@pytest.mark.parametrize("make", WEIGHTS.values(), ids=WEIGHTS)
def test_values_swapped_in_memory_are_recognised_as_changed_weights(make):
    module = torch.nn.Module()
    module.register_buffer("weight", make())
    module.register_buffer("empty", torch.zeros(0, 3))
    before, weights = state_of_weights(module), hash_weights(module)
    assert state_of_weights(module) == before
    old = module.weight.clone()
    module.weight.data.copy_(swapped(module.weight))  # without a count of torch, at the same place
    assert state_of_weights(module) != before and hash_weights(module) != weights
    module.weight.data.copy_(old)
    assert hash_weights(module) == weights
    module.weight.data = old[..., None]
    assert state_of_weights(module) != before and hash_weights(module) != weights


def test_values_of_sparse_and_quantised_weights_are_part_of_the_identity():
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    formats = [
        lambda x: x.to_sparse(), lambda x: x.to_sparse_csr(), lambda x: x.to_sparse_csc(), lambda x: x.to_sparse_bsr(1),
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), lambda x: x.to_mkldnn(),
        lambda x: torch.quantize_per_channel(x, torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8),
    ]  # fmt: skip
    states, hashes = [], []
    for each in formats:
        for value in (dense, dense.flip(0), 2 * dense):
            module = torch.nn.Module()
            module.register_buffer("weight", each(value))
            states.append(state_of_weights(module))
            hashes.append(hash_weights(module))
            assert state_of_weights(module) == states[-1]
    scales = [torch.quantize_per_tensor(dense, scale, 0, torch.qint8) for scale in (0.1, 0.2)]
    assert len(set(hashes)) == len(hashes) == len(set(map(repr, states))) and distinct(scales) == 2


def test_the_fingerprint_follows_weights_that_change_after_loading():
    def layer():
        torch.manual_seed(0)
        return torch.nn.Linear(2, 2)

    own, of_mteb, transform = layer(), types.SimpleNamespace(model=layer()), layer()
    adapted = TorchModule(own, TorchOptions(), {"transform": transform}, encode_text=own)
    models = {own: adapted, of_mteb.model: FromMteb(of_mteb, identity={"model": "m"})}
    for module, model in models.items():
        before = model.fingerprint()
        module.weight.data[:] = module.weight.data.flip(0).clone()
        changed = model.fingerprint()
        module.weight.data[:] = module.weight.data.flip(0).clone()
        assert changed != before == model.fingerprint()
    # Weights of the modules of a processor count as well.
    torch.nn.init.zeros_(transform.weight)
    assert TorchModule(own, TorchOptions(), {"transform": transform}).fingerprint() != adapted.fingerprint()


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


def test_the_identity_contains_code_that_comes_with_a_model_and_not_its_folder(tmp_path, monkeypatch):
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
    vectors = [embed_texts(ForeignModel(model), text, cache) for model in (one, two)]
    assert cache.read == 0 and not np.allclose(*vectors, atol=1e-3)
    np.testing.assert_array_equal(embed_texts(ForeignModel(three), text, cache), vectors[0])
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


def test_models_of_mteb_are_identified_by_contents_and_name_and_revision(tmp_path):
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
