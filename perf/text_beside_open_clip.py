"""Time caption encoding: ours in length buckets and open_clip's own tower, whole and with short contexts, in turns.

    python perf/text_beside_open_clip.py --captions coco/captions_test.json [--count 1000] [--model ViT-B-32]

Both have the same random weights, made by open_clip and converted, and read the same made-up ids (`text_tower.py`).
`whole` pads to the context length, as open_clip's tokenizer does by default. `short` sorts the captions by length and
gives the tower batches that are as long as their longest caption, with as much of its mask, since open_clip 3.3 masks
whole contexts alone: the fastest way that it has.
"""

import json

import measuring
import numpy as np
import text_tower


def main() -> None:
    parser = measuring.options(__doc__, cores=True, beside=True)
    parser.add_argument("--captions", required=True, help="captions file in Karpathy form")
    parser.add_argument("--count", type=int, default=1000, help="captions, spread over the file")
    parser.add_argument("--whole-count", type=int, default=256, help="how many of these are padded whole")
    parser.add_argument("--batch", type=int, default=32, help="batch size of open_clip")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    measuring.use_cores(arguments.cores)
    ids = [text_tower.token_ids(caption) for caption in text_tower.read_captions(arguments.captions, arguments.count)]
    theirs, _, ours = measuring.open_clip_pair(arguments)
    ours.tokenizer = text_tower.made_up_tokenizer()
    report = {"tokens_per_caption": round(float(np.mean([len(row) for row in ids])), 2)}
    for name, count, way in (("whole", arguments.whole_count, whole), ("short", len(ids), short)):
        report[name] = measuring.compare(
            "captions",
            ours=lambda: ours.encode_text(ids),
            theirs=lambda way=way, count=count: way(theirs, ids[:count], arguments.batch),
            items=len(ids),
            items_of_reference=count,
            rounds=arguments.rounds,
        )
    print(json.dumps(report))


def whole(model, ids: list[list[int]], batch: int) -> np.ndarray:
    """Batches padded to the context length."""
    return np.concatenate([encode(model, ids[at : at + batch], text_tower.CONTEXT) for at in range(0, len(ids), batch)])


def short(model, ids: list[list[int]], batch: int) -> np.ndarray:
    """Batches of captions of about one length, padded to the longest of each."""
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    vectors = None
    for at in range(0, len(order), batch):
        rows = order[at : at + batch]
        made = encode(model, [ids[row] for row in rows], max(len(ids[row]) for row in rows))
        vectors = np.empty((len(ids), made.shape[1]), np.float32) if vectors is None else vectors
        vectors[rows] = made
    return vectors


def encode(model, ids: list[list[int]], length: int) -> np.ndarray:
    """Unit vectors of one batch. Zeros pad: open_clip pools at the largest id, the end token."""
    import torch

    padded = torch.zeros((len(ids), length), dtype=torch.long)
    for row, tokens in zip(padded, ids, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    masks = model.text.__dict__.setdefault("whole_mask", model.text.attn_mask)
    model.text.attn_mask = masks[:length, :length]
    with torch.no_grad():
        return model.encode_text(padded, normalize=True).numpy()


if __name__ == "__main__":
    main()
