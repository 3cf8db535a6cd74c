"""Count the work of an exhaustive one-word attack with a CLIP B/32-sized text tower, with and without shared prefixes.

    python perf/attack_words.py --captions coco_karpathy_test.json [--count 32]

Nothing is run: the operations are those of the traced programs. Three ways to encode all altered captions of a group of
images, which `rococo attack` encodes together:

    shared       common prefixes once, as `rococo attack` does for causal towers
    buckets      every altered caption anew, padded to its length bucket, as `encode_text` does
    padded       every altered caption anew, padded to 77 tokens, as the usual loop does

A synthetic tokenizer with one token per word or punctuation mark, as CLIP's mostly has.
"""

import argparse
import json

import jax
import jax.numpy as jnp
from influence import word_level_tokenizer
from towers import CONTEXT

from rococo_jax.attacks.captions import GROUP
from rococo_jax.attacks.settings import CaptionAttack, Spaces
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.encoders.programs import bucket_length
from rococo_jax.models import HeadSpec, ModelSpec, TextSpec
from rococo_jax.models.dual_encoder import abstract_model
from rococo_jax.models.flops import program_flops, text_flops
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.perturb.text.shared_prefix import build_prefix_trees, embed_trees


def main() -> None:
    """Print numbers of texts, operations and ratios as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--captions", required=True, help="captions file in Karpathy form")
    parser.add_argument("--count", type=int, default=2 * GROUP, help="images")
    parser.add_argument("--tree", type=int, default=1024, help="tokens of a tree: 1024 on CPUs, 32768 on accelerators")
    arguments = parser.parse_args()
    items = list(read_captions(arguments.captions).items)
    items = items[:: max(1, len(items) // arguments.count)][: arguments.count]
    attack = CaptionAttack("words", (1,), "gallery", shipped_lexicon())
    spaces = Spaces(attack, items)
    tokenizer = word_level_tokenizer([caption for item in items for caption in item.captions])
    text = TextSpec(
        vocabulary_size=49408, context_length=CONTEXT, width=512, layers=12, heads=8, mlp_width=2048,
        activation="quick_gelu", norm_eps=1e-5, attention="causal",
        norm_after_blocks=False, pooling="highest_id",
    )  # fmt: skip
    spec = ModelSpec(None, text, text_head=HeadSpec("linear", 512))
    graph, state = abstract_model(spec)

    def tree_flops(tree) -> int:
        shapes = [jax.ShapeDtypeStruct((1, *field.shape), jnp.int32) for field in tree[:-1]]
        program = jax.make_jaxpr(lambda state, *inputs: embed_trees(graph, state, *inputs))(state, *shapes)
        return program_flops(program.jaxpr)

    flops, texts, by_depth = {"shared": 0, "buckets": 0, "padded": 0}, 0, {}
    queries = attack.make_queries(items)
    for start in range(0, len(queries), GROUP):
        group = dict.fromkeys(each.text for q in queries[start : start + GROUP] for each in spaces(q).combinations(1))
        ids = tokenizer.encode(list(group))
        texts += len(ids)
        for tree in build_prefix_trees(ids, arguments.tree, CONTEXT):
            depth = tree.paths.shape[1]
            by_depth.setdefault(depth, tree_flops(tree))
            flops["shared"] += by_depth[depth]
        flops["buckets"] += sum(text_flops(spec, bucket_length(len(row), CONTEXT)) for row in ids)
        flops["padded"] += len(ids) * text_flops(spec)
    ratios = {name: round(flops[name] / flops["shared"], 2) for name in ("buckets", "padded")}
    gigaflops = {name: round(value / len(items) / 1e9, 1) for name, value in flops.items()}
    print(json.dumps({
        "images": len(items), "altered_captions_per_image": round(texts / len(items), 1),
        "gigaflops_per_image": gigaflops, "times_shared": ratios,
    }, indent=2))  # fmt: skip


if __name__ == "__main__":
    main()
