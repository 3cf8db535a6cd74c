"""Count the work of an exhaustive one-word attack with a CLIP B/32-sized text tower, with and without shared prefixes.

    python perf/attack_words.py --captions coco_karpathy_test.json [--count 32] [--topology v5e:2x2]

Nothing is run: the operations are those of the traced programs. Three ways to encode all altered captions of a group of
images, which `rococo attack` encodes together:

    shared       common prefixes once, as `rococo attack` does for causal towers
    buckets      every altered caption anew, padded to its length bucket, as `encode_text` does; so does `rococo attack`
                 for bidirectional towers, whose activations all depend on the changed word
    padded       every altered caption anew, padded to 77 tokens, as the loops of CLIP and `transformers` do

With `--topology` the commonest program of each kind is also compiled for one chip of it: `compiled_by_traced` is the
number of operations that the compiler counts in it, divided by that of the traced program.

A synthetic tokenizer with one token per word or punctuation mark of the altered captions, as CLIP's mostly has.
`tokens` are those of an altered caption: in the three ways, and `new`, those that no other caption of its group shares,
which every exact way must compute.
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from influence import word_level_tokenizer
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from towers import CONTEXT

from rococo_jax.attacks.captions import GROUP, CaptionAttack, Spaces
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.encoders.programs import bucket_length
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec
from rococo_jax.models.dual_encoder import abstract_model
from rococo_jax.models.flops import program_flops, text_flops
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.perturb.text.shared_prefix import build_prefix_trees, embed_trees

_LAYERS = 12
# Texts that a compiled program encodes at once.
_BATCH = 512


def text_spec(layers: int) -> ModelSpec:
    """Return the text tower of CLIP B/32 with a number of layers."""
    text = TextSpec(
        vocabulary_size=49408, context_length=CONTEXT, width=512, layers=layers, heads=8, mlp_width=2048,
        activation="quick_gelu", norm_eps=1e-5, attention="causal",
        norm_after_blocks=False, pooling="highest_id",
    )  # fmt: skip
    return ModelSpec(None, text, text_head=HeadSpec("linear", 512))


def traced(layers: int, length: int | None, fields: Sequence[np.ndarray]) -> float:
    """Return the operations of one tree, or of one text of a length, in the traced program."""
    if length is not None:
        return text_flops(text_spec(layers), length)
    graph, state = abstract_model(text_spec(layers))
    shapes = [jax.ShapeDtypeStruct((1, *field.shape), jnp.int32) for field in fields]
    program = jax.make_jaxpr(lambda state, *inputs: embed_trees(graph, state, *inputs))(state, *shapes)
    return program_flops(program.jaxpr)


def compiled(topology: str, length: int | None, fields: Sequence[np.ndarray]) -> float:
    """Return the same operations as the compiler for a chip counts them.

    It counts the body of a loop over blocks once. So a program with one block (a tree: with two, as the last one is
    outside the loop) is compiled, and the operations of its body are taken for every block.
    """
    device = topologies.get_topology_desc(topology, "tpu").devices[0]
    shapes = [(1, *field.shape) for field in fields] if length is None else [(_BATCH, length)]
    texts = 1 if length is None else _BATCH

    def count(layers: int) -> float:
        graph, state = abstract_model(text_spec(layers))
        inputs = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes]
        place = partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
        arguments = jax.tree.map(lambda leaf: place(leaf.shape, leaf.dtype), (state, *inputs))

        def encode(state, *inputs):
            if length is None:
                return embed_trees(graph, state, *inputs)
            return nnx.merge(graph, state).text_embeddings(inputs[0], inputs[0] >= 0)

        with jax.default_matmul_precision("highest"):
            return jax.jit(encode).lower(*arguments).compile().cost_analysis()["flops"] / texts

    one = count(1)
    block = count(2) - one if length is None else one - (2 * traced(1, length, ()) - traced(2, length, ()))
    return one + (_LAYERS - 1) * block


def main() -> None:
    """Print numbers of texts, tokens, operations and ratios as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captions", required=True, help="captions file in Karpathy form")
    parser.add_argument("--count", type=int, default=2 * GROUP, help="images")
    parser.add_argument("--tree", type=int, default=1024, help="tokens of a tree: 1024 on CPUs, 32768 on accelerators")
    parser.add_argument("--topology", help="chips to compile for, such as v5e:2x2; they need not be here")
    arguments = parser.parse_args()
    count = partial(traced, _LAYERS)
    items = list(read_captions(arguments.captions).items)
    items = items[:: max(1, len(items) // arguments.count)][: arguments.count]
    attack = CaptionAttack("words", (1,), "gallery", shipped_lexicon())
    spaces, queries = Spaces(attack, items), attack.make_queries(items)
    groups = [
        list(dict.fromkeys(each.text for query in of_group for each in spaces(query).combinations(1)))
        for of_group in (queries[start : start + GROUP] for start in range(0, len(queries), GROUP))
    ]
    tokenizer = word_level_tokenizer([text for group in groups for text in group])
    trees: dict[tuple[int, ...], list[Sequence[np.ndarray]]] = {}
    lengths, new_tokens = Counter(), 0
    for group in groups:
        ids = tokenizer.encode(group)
        lengths.update(bucket_length(len(row), CONTEXT) for row in ids)
        new_tokens += len({tuple(row[:end]) for row in ids for end in range(1, len(row) + 1)})
        for tree in build_prefix_trees(ids, arguments.tree, CONTEXT):
            trees.setdefault(tree.paths.shape, []).append(tree[:-1])
    texts = lengths.total()
    flops = {
        "shared": sum(len(each) * count(None, each[0]) for each in trees.values()),
        "buckets": sum(number * count(length, ()) for length, number in lengths.items()),
        "padded": texts * count(CONTEXT, ()),
    }
    tokens = {
        "new": new_tokens,
        "shared": sum(len(fields[0]) for each in trees.values() for fields in each),
        "buckets": sum(number * length for length, number in lengths.items()),
        "padded": texts * CONTEXT,
    }
    about: dict[str, object] = {}
    if arguments.topology:
        programs = {"shared": (None, max(trees.values(), key=len)[0]), "buckets": (lengths.most_common(1)[0][0], ())}
        about["compiled_by_traced"] = {
            name: round(compiled(arguments.topology, *program) / count(*program), 4)
            for name, program in programs.items()
        }
    print(json.dumps({
        "images": len(items), "altered_captions_per_image": round(texts / len(items), 1),
        "tokens": {name: round(value / texts, 2) for name, value in tokens.items()},
        "gigaflops_per_image": {name: round(value / len(items) / 1e9, 1) for name, value in flops.items()},
        "times_shared": {name: round(flops[name] / flops["shared"], 2) for name in ("buckets", "padded")},
        **about,
    }, indent=2))  # fmt: skip


if __name__ == "__main__":
    main()
