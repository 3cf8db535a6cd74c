"""Check that the bits of an influence do not depend on other captions, devices or the number of processes."""

import numpy as np
import pytest

from rococo_jax.benchmarks.rococo.generate import candidate_influence
from rococo_jax.data.captions import CaptionedImage
from rococo_jax.encoders import Encoder
from rococo_jax.perturb.text import influence_table
from rococo_jax.perturb.text.influence import word_influence
from rococo_jax.perturb.text.influence_table import write_influence_table
from rococo_jax.perturb.text.lexicon import shipped_lexicon
from rococo_jax.runtime import make_mesh
from tests.support.threads import Threads
from tests.support.tiny import tiny_encoder


@pytest.mark.parametrize(("processes", "captions"), [(2, 11), (3, 12), (3, 4)])
def test_every_caption_is_computed_by_one_process_and_written_in_order(processes, captions, tmp_path, monkeypatch):
    images = [CaptionedImage(f"{n}.jpg", (f"a dog {n}",)) for n in range(captions)]
    computed: list[str] = []

    def made_up(encoder, texts, **choices):
        for text in texts:
            computed.append(text)
            yield np.array([0.1, 0.2, int(text.split()[-1]) / 100], np.float32)

    monkeypatch.setattr(influence_table, "word_influence", made_up)
    encoder = object.__new__(Encoder)  # what it would compute is made up above
    encoder.describe, encoder.mesh = lambda: {"name": "none"}, make_mesh()

    def write(name: str) -> int:
        return write_influence_table(encoder, images, tmp_path / name, captions_at_once=2)

    write("alone.jsonl")
    assert computed == [f"a dog {n}" for n in range(captions)]
    computed.clear()
    threads = Threads(processes)
    monkeypatch.setattr(influence_table, "jax", threads.jax)
    monkeypatch.setattr(influence_table, "gather", threads.gather)
    monkeypatch.setattr(influence_table, "run_on_all_processes", threads.run)
    threads.start(lambda: write("together.jsonl"))
    assert sorted(computed) == sorted(f"a dog {n}" for n in range(captions))
    assert (tmp_path / "together.jsonl").read_bytes() == (tmp_path / "alone.jsonl").read_bytes()


@pytest.fixture(scope="module")
def tiny():
    """A causal tower that no test changes."""
    return tiny_encoder()


@pytest.mark.slow
def test_the_influence_of_a_candidate_has_the_same_bits_as_alone(tiny):
    """Prefixes are not shared here: the captions beside it would decide how a caption's tokens are added up."""
    more = {"street": "", "kitchen": "and a cat ", "park": "and a cat and a cat "}
    captions = [f"a red dog sits on the big house {words}near a {place}" for place, words in more.items()]
    images = [CaptionedImage(f"{number}.jpg", (caption,)) for number, caption in enumerate(captions)]
    lexicon = shipped_lexicon()
    for image, among in zip(images, candidate_influence(tiny, images, lexicon), strict=True):
        np.testing.assert_array_equal(candidate_influence(tiny, [image], lexicon)[0], among)


@pytest.mark.slow
@pytest.mark.parametrize("share_prefix", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_influence_does_not_depend_on_order_or_batch_or_the_number_of_devices(tiny, share_prefix):
    captions = ["...", "dog", 'the man\'s T-shirt, &amp; "sit"!']
    eight = tiny_encoder(devices=8)
    reference = list(word_influence(tiny, captions, share_prefix=share_prefix))
    backwards = list(word_influence(tiny, captions[::-1], share_prefix=share_prefix, captions_at_once=2))[::-1]
    sharded = list(word_influence(eight, captions, share_prefix=share_prefix))
    for first, second, third in zip(reference, backwards, sharded, strict=True):
        # Where prefixes are shared, attention adds the same numbers in another order: float32, as above.
        np.testing.assert_allclose(first, second, rtol=0, atol=1e-6 if share_prefix else 0)
        np.testing.assert_array_equal(first, third)
