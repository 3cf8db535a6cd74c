"""Several processes share the captions of an influence table: each once, and the bytes are those of one process."""

import numpy as np
import pytest

from rococo_jax.data.captions import CaptionedImage
from rococo_jax.encoders import Encoder
from rococo_jax.perturb.text import influence_table
from rococo_jax.perturb.text.influence_table import write_influence_table
from tests.support.threads import Threads


@pytest.mark.parametrize(("processes", "captions"), [(2, 11), (3, 12), (3, 4)])
def test_every_caption_is_computed_by_one_process_and_written_in_order(processes, captions, tmp_path, monkeypatch):
    images = [CaptionedImage(f"{n}.jpg", (f"a dog {n}",)) for n in range(captions)]
    computed: list[str] = []

    def word_influence(encoder, texts, **choices):
        for text in texts:
            computed.append(text)
            yield np.array([0.1, 0.2, int(text.split()[-1]) / 100], np.float32)

    monkeypatch.setattr(influence_table, "word_influence", word_influence)
    encoder = object.__new__(Encoder)  # what it would compute is made up above
    encoder.describe = lambda: {"name": "none"}

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
