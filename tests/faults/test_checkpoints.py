"""Checkpoints and model directories that are damaged, or whose parts do not belong together."""

import json
import shutil

import numpy as np

from tests.support.faults import Table

FOREIGN, OWN = Table(), Table()


def _npz(name: str, write, **expected):
    @FOREIGN.row(name, **{"says": "tower.npz", **expected})
    def _(world):
        write(world / "tower.npz")
        return world.convert("tower.npz")


def _huge_npz(path):
    """A member whose header claims 4 TB."""
    import io
    import zipfile

    header = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("params/img/embedding/kernel.npy", header.getvalue() + bytes(64))


def _saved_npy(path):
    with path.open("wb") as file:
        np.save(file, np.zeros((3, 3), np.float32))


def _flat_npz(path):
    """Every tensor of SigLIP's image tower that there may be, with two axes each."""
    names = [
        "img/embedding/kernel", "img/embedding/bias", "img/pos_embedding", "txt/Embed_0/embedding", "txt/pos_embedding",
        "t", "b", "img/Transformer/encoderblock/MlpBlock_0/Dense_0/kernel",
        "img/Transformer/encoderblock/MultiHeadDotProductAttention_0/query/kernel", "img/MAPHead_0/probe",
        "txt/Encoder_0/encoderblock/MultiHeadDotProductAttention_0/query/kernel", "txt/head/kernel",
        "txt/Encoder_0/encoderblock/MlpBlock_0/Dense_0/kernel",
    ]  # fmt: skip
    np.savez(path, **{f"params/{name}": np.zeros((4, 4), np.float32) for name in names})


_npz(".npz claims 4 TB", _huge_npz)
_npz(".npz is a .npy", _saved_npy)
_npz(".npz with the right names and wrong ranks", _flat_npz)


def _config(name: str, change, file: str = "config.json", **expected):
    @FOREIGN.row(name, **{"says": file, **expected})
    def _(world):
        world.edit(f"hf/{file}", change)
        return world.convert()


def _value(name: str, value, *keys, file: str = "config.json", **expected):
    def change(config):
        for key in keys[:-1]:
            config = config[key]
        config[keys[-1]] = value

    _config(name, change, file, **expected)


_value("vision hidden_size 1e9", 10**9, "vision_config", "hidden_size")
_value("hidden_act {}", {}, "vision_config", "hidden_act")
_value("layer_norm_eps NaN", float("nan"), "text_config", "layer_norm_eps")
_value("model_type a list", ["clip"], "model_type")
_value("model_type an object", {}, "model_type")
_value("num_channels 4", 4, "vision_config", "num_channels")
_value("eos_token_id 10**6", 10**6, "text_config", "eos_token_id", says="eos")
_value("size 1e9", {"shortest_edge": 10**9}, "size", file="preprocessor_config.json")
_value("crop_size 1e9", 10**9, "crop_size", file="preprocessor_config.json")


def _written(name: str, file: str, text: str, **expected):
    @FOREIGN.row(name, **{"says": file, **expected})
    def _(world):
        (world / "hf" / file).write_text(text)
        return world.convert()


_written("tokenizer_config.json a list", "tokenizer_config.json", "[1]")
_written("eos_token a number", "tokenizer_config.json", '{"eos_token": 5}', says="eos_token")
_written("preprocessor a list", "preprocessor_config.json", "[1]")
_written("config.json a list", "config.json", "[1]")


def _more_tokens(world, file: str) -> None:
    """The tokenizer knows words whose ids lie beyond the table of embeddings."""

    def change(value):
        vocabulary = value["model"]["vocab"]
        for word in ("dog", "cat", "red"):
            vocabulary[word] += 1000

    world.edit(file, change)


@FOREIGN.row("tokenizer with ids beyond the embedding table", says="tokenizer|token ids")
def _(world):
    _more_tokens(world, "hf/tokenizer.json")
    return world.convert()


@OWN.row("tokenizer with ids beyond the embedding table: EVALUATE", says="tokenizer: found token ids")
def _(world):
    _more_tokens(world, "model/tokenizer.json")
    return world.evaluate()


@OWN.row("eos id that no text has: EVALUATE", says="eos_id|end of text")
def _(world):
    world.edit("model/model.json", lambda value: value["spec"]["text"].update(eos_id=299))
    return world.evaluate()


@OWN.row("one inf in a row of the token table: EVALUATE", says="text.words: found")
def _(world):
    world.weights(lambda arrays: arrays["text.words"].__setitem__((7, 3), np.inf))
    return world.evaluate()


@OWN.row("image projection all zeros (vectors of length 0): EVALUATE", says="vision_head.kernel: found zeros")
def _(world):
    world.weights(lambda arrays: arrays["vision_head.kernel"].fill(0))
    return world.evaluate()


def _own(name: str, value, *keys, **expected):
    @OWN.row(name, **{"says": "model.json: ", **expected})
    def _(world):
        def change(config):
            for key in keys[:-1]:
                config = config[key]
            config[keys[-1]] = value

        world.edit("model/model.json", change)
        return world.evaluate()


_own('tokenizer.context_length "x"', "x", "tokenizer", "context_length")
_own("tokenizer.context_length 5.5", 5.5, "tokenizer", "context_length")
_own("tokenizer.pad_id -5", -5, "tokenizer", "pad_id")
_own('tokenizer.pad_id "x"', "x", "tokenizer", "pad_id")
_own("tokenizer.pad_id beyond the table", 10**6, "tokenizer", "pad_id", says="pad_id|token ids")
_own("norm_eps infinite", float("inf"), "spec", "text", "norm_eps", says="model.json")
_own("a billion layers' width", 2**30, "spec", "text", "width", says="model")


@OWN.row("vectors that overflow", says="project|image: found NaN")
def _(world):
    world.weights(lambda arrays: arrays["vision_head.kernel"].__imul__(1e38))
    return world.evaluate()


@OWN.row("params/ replaced by another model, model.json kept: same --out", says="params: weights: found")
def _(world):
    world.run(world.evaluate())
    shutil.rmtree(world / "model/params")
    shutil.copytree(world / "other/params", world / "model/params")
    return world.evaluate()


def _flip(world) -> None:
    """One bit of the largest file of the parameters."""
    path = max((world / "model/params").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else -1)
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)


@OWN.row("one bit flipped in params (real CLI): inspect", says="params: ")
def _(world):
    _flip(world)
    return ["inspect", world / "model"]


@OWN.row("one bit flipped in params: evaluate (real CLI)", says="params: ")
def _(world):
    _flip(world)
    return world.evaluate()


@OWN.row("a directory of before weights were hashed still loads", code=0)
def _(world):
    world.edit("model/model.json", lambda value: value["provenance"].pop("weights_sha256"))
    return ["inspect", world / "model"]


@OWN.row("every value flipped in sign: exchanged weights are noticed", says="params: weights: found")
def _(world):
    description = json.loads((world / "model/model.json").read_text())
    world.weights(lambda arrays: arrays.update({path: -array for path, array in arrays.items()}))
    (world / "model/model.json").write_text(json.dumps(description))
    return ["inspect", world / "model"]


@FOREIGN.each
def test_foreign(fault, world, capsys):
    fault.check(world, capsys)


@OWN.each
def test_own(fault, world, capsys):
    fault.check(world, capsys)
