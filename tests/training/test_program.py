"""The program of a run is compiled once, before the first step, and fits beside the next batch."""

import functools
import re
import types
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from rococo_jax.errors import InputError
from rococo_jax.models.flops import image_flops, text_flops
from rococo_jax.runtime import AXES, enable_compilation_cache
from rococo_jax.training import loop, run
from rococo_jax.training.config import default_config
from rococo_jax.training.program import compile_step, step_flops
from rococo_jax.training.step import host_batch_shapes
from tests.support.tiny import tiny_encoder, tiny_spec
from tests.support.tiny_runs import FEATURES_ALONE, changed, mesh_of, metrics_of, tiny_config
from tests.support.world import write_world

STEPS, BATCH, SIDE = 4, 4, 32


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A compilation cache that keeps every program, and the programs of JAX that were compiled or read from it."""
    monkeypatch.setenv("ROCOCO_CACHE", str(tmp_path / "cache"))
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_compilation_cache_dir", None)
    enable_compilation_cache()
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_disable_most_optimizations", True)
    programs, hits = [], []

    def count(name: str, seconds: float, **about: str) -> None:
        if name == "/jax/core/compile/backend_compile_duration":
            programs.append(about["fun_name"])

    def count_hit(name: str, **_: str) -> None:
        if name == "/jax/compilation_cache/cache_hits":
            hits.append(name)

    jax.monitoring.register_event_duration_secs_listener(count)
    jax.monitoring.register_event_listener(count_hit)
    yield types.SimpleNamespace(programs=programs, hits=hits)
    jax.monitoring.unregister_event_duration_listener(count)
    jax.monitoring.unregister_event_listener(count_hit)
    jax.config.update("jax_disable_most_optimizations", False)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
    jax.config.update("jax_compilation_cache_dir", None)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A run with texts of any length."""
    captions = [[" ".join(["dog"] * words)] for words in (5, 20, 8, 6, 6, 7, 9, 4)]
    start = tiny_encoder(spec=tiny_spec(16), name="start")
    folder = write_world(tmp_path_factory.mktemp("data"), captions, start=start)
    frozen = {"train__vision": "none", "train__text": "none"}
    return tiny_config(folder, steps=STEPS, batch_size=BATCH, checkpoint__every=100, **frozen)


@pytest.fixture
def on_device(monkeypatch):
    """Return the number of batches on the device just after the next one was sent there."""
    counts, place = [], loop.place_batch

    def pixels() -> list[jax.Array]:
        return [each for each in jax.live_arrays() if each.dtype == np.uint8]

    def counted(batch, mesh):
        placed = place(batch, mesh)
        counts.append(sum(each.nbytes for each in pixels() if id(each) not in others) // placed_bytes)
        return placed

    placed_bytes, of_other_tests = BATCH * SIDE * SIDE * 3, pixels()
    others = set(map(id, of_other_tests))
    monkeypatch.setattr(loop, "place_batch", counted)
    yield counts
    del of_other_tests  # held until here, so that no new array takes their places


@pytest.mark.slow
def test_a_run_compiles_one_program_before_its_first_step(config, cache, on_device, tmp_path, capsys):
    starts = []
    for name in ("first", "second"):
        cache.programs.clear()
        cache.hits.clear()
        counts: list[int] = []
        count = functools.partial(lambda counts, *_: counts.append(len(cache.programs)), counts)
        run.run_training(config, tmp_path / name, mesh=mesh_of(1), on_step=count)
        steps = [each for each in cache.programs if "step" in each]
        starts.append((len(steps), len(cache.programs) - len(cache.hits), len(set(counts))))
        said = re.findall(r"a step of texts of 24 tokens takes .*; compiled in [\d.]+ s\n", capsys.readouterr().err)
        assert len(said) == 1
    # None of anything after the first step; at the second start none is compiled.
    (first, compiled, growth), (second, again, growth_again) = starts
    assert (first, second, growth, growth_again, again) == (1, 1, 1, 1, 0) and compiled >= 1
    losses = [[line["loss"] for line in metrics_of(tmp_path / name)] for name in ("first", "second")]
    assert losses[0] == losses[1]
    assert on_device == [1, *[2] * (STEPS - 1)] * 2


@pytest.mark.parametrize(("room", "fits"), [(0, True), (-1, False)])
def test_memory_of_a_step_includes_the_next_batch(config, room, fits, capsys):
    """A device also holds the pixels, token ids, masks and image ids of its rows of the next batch."""
    rows = NamedSharding(mesh_of(2), PartitionSpec(AXES))
    batch = jax.tree.map(lambda leaf: leaf.update(sharding=rows), host_batch_shapes(config, tiny_spec(16), 24))
    second = BATCH // 2 * (SIDE * SIDE * 3 + 24 * (4 + 1) + 4)
    analysis = types.SimpleNamespace(argument_size_in_bytes=7, temp_size_in_bytes=5, output_size_in_bytes=3)
    analysis.alias_size_in_bytes = 2
    compiled = Mock(jax.stages.Compiled, memory_analysis=lambda: analysis)
    arguments = Mock(jax.stages.Lowered, compile=lambda: compiled), batch, config, 13 + second + room
    if fits:
        assert compile_step(*arguments) is compiled
        assert "a step of texts of 24 tokens takes 0.00 GB of a device, which has 0.00 GB" in capsys.readouterr().err
    else:
        with pytest.raises(InputError, match=r"a step of texts of 24 tokens takes 0\.00 GB of a device's 0\.00 GB"):
            compile_step(*arguments)


def test_a_step_that_the_compiler_cannot_fit_is_refused_with_its_memory(config):
    said = "RESOURCE_EXHAUSTED: the total memory required for HLO temporaries (298.12G) exceeds available HBM (15.75G)."
    lowered = Mock(jax.stages.Lowered, compile=Mock(side_effect=jax.errors.JaxRuntimeError(said)))
    batch = host_batch_shapes(config, tiny_spec(16), 24)
    with pytest.raises(InputError, match=r"micro_batches: found 1, .* takes 320\.10 GB of a device's 16\.91 GB"):
        compile_step(lowered, batch, config, int(15.75 * 2**30))


@pytest.mark.parametrize(
    ("settings", "images", "patches", "texts", "heads"),
    [
        ({}, 3, 16, 3, 0),
        # A frozen tower is one pass, whatever is computed again.
        ({"train__text": "none", "remat": "full", "micro_batches": 2}, 3, 16, 1, 0),
        ({"patch_dropout": 0.75}, 3, 4, 3, 0),
        ({"train__vision": "none", "data__cached_features": True}, 0, 16, 3, 3),
        (FEATURES_ALONE, 0, 16, 0, 6),
    ],
    ids=["both towers trained", "frozen texts", "patches dropped", "locked images", "features alone"],
)
def test_flops_of_a_step_are_the_sum_over_passes_of_towers_and_heads(settings, images, patches, texts, heads):
    spec = tiny_spec()  # 16 patches and a class token, 2 blocks of width 32
    block = 2 * (patches + 1) * 32 * (4 * 32 + 2 * 64) + 4 * (patches + 1) ** 2 * 32
    assert image_flops(spec, patches) == 2 * patches * 192 * 32 + 2 * block + 2 * 32 * 16
    per_pair = images * image_flops(spec, patches) + texts * text_flops(spec, 10) + heads * 2 * 32 * 16
    config = changed(default_config(), batch_size=8, **settings)
    assert step_flops(config, spec, 10) == pytest.approx(8 * per_pair)
