"""The memory map of an influence table gives what the table says, and no worker holds it."""

import json
import pickle

import numpy as np
import pytest

from rococo_jax.perturb.text import influence_table
from rococo_jax.perturb.text.influence_table import InfluenceTable, read_influence_table
from rococo_jax.training.inputs.altered_captions import CaptionsOfSource
from tests.support.refusals import refused


def write_table(path, captions) -> None:
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for caption in captions:
            words = caption.split()
            values = [None if rng.random() < 0.1 else round(float(value), 7) for value in rng.random(len(words))]
            file.write(json.dumps({"image": "x", "caption": caption, "words": words, "influence": values}) + "\n")


def test_the_memory_map_equals_the_table_and_uses_the_last_of_equal_captions(tmp_path):
    captions = [" ".join(f"w{n % k}x{n}" for k in range(2, 2 + n % 6)) for n in range(300)]
    write_table(tmp_path / "t.jsonl", [*captions, *captions[40:80], "", captions[7]])
    table, wanted = InfluenceTable(tmp_path / "t.jsonl"), read_influence_table(tmp_path / "t.jsonl")
    again = pickle.loads(pickle.dumps(table))
    assert len(table) == len(wanted) == len({*captions, ""}) and len(pickle.dumps(table)) < 1000
    for caption, values in wanted.items():
        for each in (table, again):
            assert each[caption].dtype == np.float32
            np.testing.assert_array_equal(each[caption], values)
    for missing in ("w", "another", captions[7] + " "):
        with pytest.raises(KeyError):
            table[missing]


def test_a_changed_table_and_a_damaged_map_are_mapped_again(tmp_path, monkeypatch):
    path, made = tmp_path / "t.jsonl", []
    make = influence_table._write_map
    monkeypatch.setattr(influence_table, "_write_map", lambda *each: made.append(1) or make(*each))
    write_table(path, ["a dog", "two cats"])
    InfluenceTable(path), InfluenceTable(path)
    assert len(made) == 1
    write_table(path, ["a dog", "two cats", "three more owls"])
    assert len(InfluenceTable(path)) == 3 and len(made) == 2
    with (tmp_path / ".t.jsonl.map").open("ab") as file:
        file.write(b"x")
    assert len(InfluenceTable(path)) == 3 and len(made) == 3
    old = tmp_path / "..t.jsonl.map.0123abcd.part"  # of a process that was killed
    old.write_bytes(b"half")
    place, wanted = tmp_path / ".t.jsonl.map", read_influence_table(path)
    data = place.read_bytes()
    for byte in range(0, len(data), 7):
        place.write_bytes(data[:byte] + bytes([data[byte] ^ 0x40]) + data[byte + 1 :])
        table = InfluenceTable(path)
        for caption, values in wanted.items():
            np.testing.assert_array_equal(table[caption], values)
    assert place.read_bytes() == data and not old.exists()
    path.write_text('{"caption": "a"}\n')
    refused("line 1: found other keys", InfluenceTable, path)
    refused("nothing there", InfluenceTable, tmp_path / "none.jsonl")


def test_a_table_that_changes_while_it_is_mapped_is_refused(tmp_path, monkeypatch):
    path, read = tmp_path / "t.jsonl", influence_table.iterate_influence_table
    write_table(path, ["a dog", "two cats"])

    def read_and_replace(each):
        yield from list(read(each))
        write_table(path, ["a cat", "two dogs"])  # within the same tick of the clock, with the same size

    monkeypatch.setattr(influence_table, "iterate_influence_table", read_and_replace)
    refused("contents: found changed while it was read", InfluenceTable, path)
    monkeypatch.undo()
    assert InfluenceTable(path)["a cat"].shape == (2,)


def test_captions_of_a_source_are_read_without_its_images(tmp_path, monkeypatch):
    from rococo_jax.data.captioned_images import open_pairs
    from rococo_jax.data.tar_pairs import TarPairs
    from tests.support.tar_pairs import caption_of, write_tar
    from tests.support.training_pairs import captions_of, write_pairs

    write_tar(tmp_path / "a.tar", range(20, 40), 0)
    source = open_pairs(f"{write_pairs(tmp_path, 3)[0]},{tmp_path}/a.tar", f"{tmp_path}/captions.json")
    names = [source[index].name for index in range(23)]
    monkeypatch.setattr(TarPairs, "_read", lambda *each: pytest.fail("an image was read"))
    found = list(CaptionsOfSource(source))
    assert [each.image for each in found] == names
    wanted = [*(tuple(captions_of(number)) for number in range(3)), *((caption_of(n),) for n in range(20, 40))]
    assert [each.captions for each in found] == wanted
