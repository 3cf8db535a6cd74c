"""Time the mixing of the published gallery beside the published script's loop in torch; print one JSON object.

    python perf/mixing.py [--images 5000] [--method mix] [--repeats 3]

Both work in memory: no file is read or written, nothing is compressed. Images of 384 pixels with random bytes (a few
hundred, in rotation) are split into the plan's batches of 64, in one process; the fastest run of each counts
(compilation is reported separately). Besides wall time it reports processor time (all threads together), which other
work on the machine disturbs little:

- `ours`: `mix_pair`, image by image, from bytes in NumPy to bytes in NumPy;
- `torch`: bytes to float pixels in [0, 1], mixed with the permuted batch, times 255 plus a half, clamped, to bytes;
- `torch_one_thread`: the same on one thread;
- `torch_from_floats`: `torch` from float pixels, as the script's loader provides them;
- `copy`: one NumPy copy of the same bytes, the limit set by memory bandwidth.
"""

import json

import jax
import measuring
import numpy as np

from rococo_jax.benchmarks.rococo.published_mixing import SIDE, MixingPlan, make_plan, mix_pair, plan_batches

DISTINCT = 320


def batches_of(plan: MixingPlan, images: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return rows of the plan and images of every batch; all batches use the same few hundred images."""
    return [(rows, np.arange(len(rows)) + 64 * (number % (DISTINCT // 64)))
            for number, rows in enumerate(plan_batches(plan))]  # fmt: skip


def ours(plan: MixingPlan, images: np.ndarray) -> None:
    for rows, numbers in batches_of(plan, images):
        image_at = dict(zip(plan.first[rows].tolist(), images[numbers], strict=True))
        for row in rows.tolist():
            mix_pair(plan, row, image_at[plan.first[row]], image_at[plan.partner[row]])


def torch_loop(plan: MixingPlan, images: np.ndarray, floats: np.ndarray | None = None) -> None:
    """Run the script's arithmetic on each batch, starting from `floats` if given."""
    import torch

    for rows, numbers in batches_of(plan, images):
        part = slice(numbers[0], numbers[0] + len(numbers))
        if floats is None:
            pixels = torch.from_numpy(images[part]).to(torch.float32).div(255)
        else:
            pixels = torch.from_numpy(floats[part])
        order = {int(image): position for position, image in enumerate(plan.first[rows])}
        permutation = torch.tensor([order[int(image)] for image in plan.partner[rows]])
        if plan.method == "mix":
            mixed = plan.ratio * pixels + (1 - plan.ratio) * pixels[permutation]
        else:
            x1, y1, x2, y2 = plan.boxes[plan.batch[rows[0]]].tolist()
            mixed = pixels.clone()
            mixed[:, x1:x2, y1:y2] = pixels[permutation, x1:x2, y1:y2]
        mixed.mul(255).add_(0.5).clamp_(0, 255).to(torch.uint8).numpy()


def torch_one_thread(plan: MixingPlan, images: np.ndarray) -> None:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch_loop(plan, images)
    torch.set_num_threads(threads)


def copy(plan: MixingPlan, images: np.ndarray) -> None:
    for _, numbers in batches_of(plan, images):
        images[numbers[0] : numbers[0] + len(numbers)].copy()


def main() -> None:
    parser = measuring.options(__doc__)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--method", choices=("mix", "patch"), default="mix")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()

    images = np.random.default_rng(0).integers(0, 256, (DISTINCT, SIDE, SIDE, 3), dtype=np.uint8)
    floats = images.astype(np.float32) / 255
    plan = make_plan([str(number) for number in range(arguments.images)], arguments.method, 0.9, 1)
    ways = {
        "ours": lambda: ours(plan, images),
        "torch": lambda: torch_loop(plan, images),
        "torch_one_thread": lambda: torch_one_thread(plan, images),
        "torch_from_floats": lambda: torch_loop(plan, images, floats),
        "copy": lambda: copy(plan, images),
    }
    try:
        import torch  # noqa: F401
    except ImportError:
        ways = {name: way for name, way in ways.items() if not name.startswith("torch")}
    first = make_plan(plan.images[: 64 + arguments.images % 64], arguments.method, 0.9, 1)
    compiled = measuring.measure(lambda: ours(first, images)).seconds
    best = {name: measuring.fastest(times) for name, times in measuring.alternate(ways, arguments.repeats).items()}
    speed = measuring.rounded({name: arguments.images / each.seconds for name, each in best.items()}, 1)
    work = measuring.rounded({name: arguments.images / each.processor for name, each in best.items()}, 1)
    figures = {
        "images": arguments.images,
        "side": SIDE,
        "method": arguments.method,
        "device": jax.devices()[0].device_kind,
        "compile_seconds": round(compiled, 2),
        "images_per_second": speed,
        "images_per_processor_second": work,
        "gigabytes_moved_per_second": round(3 * SIDE * SIDE * 3 * speed["ours"] / 1e9, 2),
        "ratio": {name: round(speed["ours"] / other, 2) for name, other in speed.items() if name != "ours"},
        "processor_ratio": {name: round(work["ours"] / other, 2) for name, other in work.items() if name != "ours"},
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
