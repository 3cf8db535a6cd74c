"""Test checkpoints and model directories that are damaged, or whose parts do not belong together."""

import io
import shutil
import zipfile

import numpy as np
import pytest

from tests.support.faults import Fault, each_of, edited, with_value, written


def _npz(name: str, write) -> Fault:
    words = ["convert", "tower.npz", "converted"]
    return Fault(name, lambda world: write(world / "tower.npz"), "tower.npz", lambda world: words)


def _huge_npz(path):
    """A member whose header claims 4 TB."""
    header = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("params/img/embedding/kernel.npy", header.getvalue() + bytes(64))


def _flat_npz(path):
    """Every tensor of SigLIP's image tower that there may be, with two axes each."""
    blocks, texts = "img/Transformer/encoderblock", "txt/Encoder_0/encoderblock"
    query, dense = "MultiHeadDotProductAttention_0/query/kernel", "MlpBlock_0/Dense_0/kernel"
    names = "img/embedding/kernel img/embedding/bias img/pos_embedding txt/Embed_0/embedding txt/pos_embedding t b"
    names = [*names.split(), "img/MAPHead_0/probe", "txt/head/kernel"]
    names += [f"{place}/{name}" for place in (blocks, texts) for name in (query, dense)]
    np.savez(path, **{f"params/{name}": np.zeros((4, 4), np.float32) for name in names})


def _more_tokens(value):
    """The tokenizer knows words whose ids lie beyond the table of embeddings."""
    for word in ("dog", "cat", "red"):
        value["model"]["vocab"][word] += 1000


def _foreign(name: str, keys: str, value: object, says: str = "", file: str = "config.json") -> Fault:
    return Fault(name, with_value(f"hf/{file}", keys, value), says or file, "convert")


def _text(name: str, file: str, text: str, says: str = "") -> Fault:
    return Fault(name, written(f"hf/{file}", text), says or file, "convert")


FOREIGN = [
    _npz(".npz claims 4 TB", _huge_npz),
    _npz(".npz is a .npy", lambda path: np.save(path.open("wb"), np.zeros((3, 3), np.float32))),
    _npz(".npz with the right names and wrong ranks", _flat_npz),
    _foreign("vision hidden_size 1e9", "vision_config.hidden_size", 10**9),
    _foreign("hidden_act {}", "vision_config.hidden_act", {}),
    _foreign("layer_norm_eps NaN", "text_config.layer_norm_eps", float("nan")),
    _foreign("model_type a list", "model_type", ["clip"]),
    _foreign("model_type an object", "model_type", {}),
    _foreign("num_channels 4", "vision_config.num_channels", 4),
    _foreign("eos_token_id 10**6", "text_config.eos_token_id", 10**6, "eos"),
    _foreign("size 1e9", "size", {"shortest_edge": 10**9}, file="preprocessor_config.json"),
    _foreign("crop_size 1e9", "crop_size", 10**9, file="preprocessor_config.json"),
    _text("tokenizer_config.json a list", "tokenizer_config.json", "[1]"),
    _text("eos_token a number", "tokenizer_config.json", '{"eos_token": 5}', "eos_token"),
    _foreign("eos_token of no vocabulary", "eos_token", "nowhere", "'nowhere', which is not", "tokenizer_config.json"),
    _text("preprocessor a list", "preprocessor_config.json", "[1]"),
    _text("config.json a list", "config.json", "[1]"),
    Fault("foreign tokenizer with ids beyond the embedding table", edited("hf/tokenizer.json", _more_tokens),
          "tokenizer|token ids", "convert"),
]  # fmt: skip


def _own(name: str, keys: str, value: object, says: str = "model.json: ") -> Fault:
    return Fault(name, with_value("model/model.json", keys, value), says)


def _weights(name: str, change, says: str) -> Fault:
    return Fault(name, lambda world: world.weights(change), says)


def _other_parameters(world):
    world.run("evaluate")
    shutil.rmtree(world / "model/params")
    shutil.copytree(world / "other/params", world / "model/params")


def _flip(world):
    """Flip one bit of the largest file of the parameters."""
    path = max((world / "model/params").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else -1)
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


def _all_signs(world):
    description = (world / "model/model.json").read_text()
    world.weights(lambda arrays: arrays.update({path: -array for path, array in arrays.items()}))
    (world / "model/model.json").write_text(description)


OWN = [
    Fault("tokenizer with ids beyond the embedding table", edited("model/tokenizer.json", _more_tokens),
          "tokenizer: found token ids"),
    _own("eos id that no text has", "spec.text.eos_id", 299, "eos_id|end of text"),
    _own('tokenizer.context_length "x"', "tokenizer.context_length", "x"),
    _own("tokenizer.pad_id -5", "tokenizer.pad_id", -5),
    _own("tokenizer.pad_id beyond the table", "tokenizer.pad_id", 10**6, "pad_id|token ids"),
    _own("head without dimensions", "spec.text_head.dim", None, "model.json: dim: found None"),
    _own("norm_eps infinite", "spec.text.norm_eps", float("inf")),
    _own("a billion layers' width", "spec.text.width", 2**30, "model"),
    _weights("one inf in a row of the token table", lambda arrays: arrays["text.words"].__setitem__((7, 3), np.inf),
             "text.words: found"),
    _weights("image projection all zeros (vectors of length 0)", lambda arrays: arrays["vision_head.kernel"].fill(0),
             "vision_head.kernel: found zeros"),
    _weights("vectors that overflow", lambda arrays: arrays["vision_head.kernel"].__imul__(1e38),
             "project|image: found NaN"),
    Fault("params/ replaced by another model, model.json kept: same --out", _other_parameters,
          "params: weights: found"),
    Fault("one bit flipped in params: inspect", _flip, "params: ", "inspect"),
    Fault("a directory of before weights were hashed still loads", edited("model/model.json",
          lambda value: value["provenance"].pop("weights_sha256")), "", "inspect", code=0),
    Fault("every value flipped in sign: exchanged weights are noticed", _all_signs, "params: weights: found",
          "inspect"),
]  # fmt: skip


@pytest.mark.slow
@each_of([*FOREIGN, *OWN])
def test_damaged_checkpoints_are_reported_in_one_line(fault, world, capsys):
    fault.check(world, capsys)
