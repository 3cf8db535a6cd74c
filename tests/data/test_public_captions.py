"""Captions in the forms in which people publish them: each gives the same items, splits are reported and chosen."""

import io
import json
import pickle
import tarfile
import unicodedata
from pathlib import Path

import pandas
import pyarrow
import pytest

from rococo_jax.cli.main import main
from rococo_jax.data.caption_forms import read_captions
from rococo_jax.data.captioned_images import open_pairs, read_captioned_images
from rococo_jax.data.tar_pairs import split_names
from rococo_jax.perturb.images.image_folders import names_without_suffix
from rococo_jax.training.config import default_config
from rococo_jax.training.inputs.batches import open_source
from tests.support.refusals import refused
from tests.support.training_pairs import all_of, grey_of, png
from tests.support.world import write_pictures

ITEMS = {"1_a.jpg": ("A dog .", 'a "big" one'), "2_b.jpg": ("Two | cats", "a, b")}
ROWS = [(image, number, text) for image, texts in ITEMS.items() for number, text in enumerate(texts)]
SPLIT = {"train": ["1_a.jpg"], "test": ["2_b.jpg"]}
KARPATHY = {
    "dataset": "coco",
    "images": [
        {"filename": image, "imgid": place, "split": split, "cocoid": place, "sentids": [0, 1],
         "sentences": [{"raw": text, "tokens": text.split(), "imgid": place, "sentid": 0} for text in ITEMS[image]]}
        for place, (split, (image,)) in enumerate(SPLIT.items())
    ],
}  # fmt: skip
COCO = {
    "info": {}, "licenses": [],
    "images": [{"id": place, "file_name": image} for place, image in enumerate([*ITEMS, "none.jpg"])],
    "annotations": [{"image_id": [*ITEMS].index(image), "id": 7, "caption": text} for image, _, text in ROWS],
}  # fmt: skip


def numbered(pattern: str, first: int) -> pandas.DataFrame:
    texts = {image: {pattern.format(n): text for n, text in enumerate(each, first)} for image, each in ITEMS.items()}
    return pandas.DataFrame.from_dict(texts, "index").reset_index(names="image")


def with_splits(key: str = "split", splits: dict[str, list[str]] = SPLIT) -> list[dict]:
    split_of = {image: split for split, images in splits.items() for image in images}
    return [{"image": i, "caption": text, key: split_of[i]} for i, _, text in ROWS if i in split_of]


# What it is -> the file's name and its contents.
FORMS = {
    "Karpathy's own": ("dataset_flickr8k.json?split=all", json.dumps(KARPATHY)),
    "COCO's own": ("captions_val2017.json", json.dumps(COCO)),
    "BLIP": ("coco_train.json", json.dumps([{"image": i, "caption": text, "image_id": 3} for i, _, text in ROWS])),
    "strings and lists": ("c.json", json.dumps([{"image": "1_a.jpg", "caption": list(ITEMS["1_a.jpg"])},
                                                *({"image": i, "caption": text} for i, _, text in ROWS[2:])])),
    "Flickr8k.token.txt": ("Flickr8k.token.txt", "".join(f"{i}#{n}\t{text}\n" for i, n, text in ROWS)),
    "Flickr30k's": ("results_20130124.token", "".join(f"{i}#{n}\t{text}\n" for i, n, text in ROWS)),
    # One line of the file that is passed around lacks its second bar.
    "Kaggle's": ("results.csv", "image_name| comment_number| comment\n"
                 + "".join(f"{i}| {n}{'  ' if n else '|'} {text}\n" for i, n, text in ROWS)),
    "captions.txt": ("captions.txt", pandas.DataFrame(ROWS)[[0, 2]].to_csv(index=False, header=["image", "caption"])),
    "numbered from 0": ("c.csv", numbered("caption_{}", 0).to_csv(index=False)),
    "numbered from 1": ("c.csv", numbered("caption{}", 1).to_csv(index=False)),
    "numbered with blanks": ("c.tsv", numbered("Caption {}", 9).to_csv(index=False, sep="\t")),
    "sentences": ("c.jsonl", numbered("sentence_{}", 0).to_json(orient="records", lines=True)),
    "a split in each row": ("c.csv", pandas.DataFrame(with_splits()).to_csv(index=False)),
    "a split in each item": ("c.json", json.dumps(with_splits())),
    "lists by name": ("captions.json", json.dumps({image: list(texts) for image, texts in ITEMS.items()})),
    "JSON lines called JSON": ("c.json", "".join(json.dumps(row) + "\n" for row in with_splits("number"))),
    "a list called JSON lines": ("c.jsonl", json.dumps(with_splits("number"))),
    "a list over many lines": ("c.jsonl", json.dumps([{"image": i, "caption": t} for i, t in ITEMS.items()], indent=1)),
    "Karpathy's own called JSON lines": ("c.jsonl?split=all", json.dumps(KARPATHY, indent=1)),
    # As CLIP_benchmark has Flickr30k: commas and quotation marks of a caption mean nothing.
    "flickr30k_test_karpathy.txt": ("f.txt", "image,caption\n" + "".join(f"{i},{text}\n" for i, _, text in ROWS)),
    "large letters": ("C.JSONL", "".join(json.dumps(row) + "\n" for row in with_splits("number"))),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_captions_are_read_from_every_published_form(form, tmp_path):
    name, content = FORMS[form]
    (tmp_path / name.partition("?")[0]).write_text(content)
    assert {item.image: item.captions for item in read_captions(f"{tmp_path}/{name}").items} == ITEMS


def test_a_single_caption_is_read_from_an_object_of_names_or_one_row(tmp_path):
    path = tmp_path / "c.json"
    for value in (
        {"1_a.jpg": "a dog"},
        {"image": "1_a.jpg", "caption": "a dog"},
        {"IMG": "1_a.jpg", "Text": ["a dog"]},
    ):
        path.write_text(json.dumps(value))
        assert [(item.image, item.captions) for item in read_captions(path).items] == [("1_a.jpg", ("a dog",))]
    path.write_text(json.dumps({"1000092795": ["a dog"], "10002456": ["a cat", "a bear"]}))
    assert [item.captions for item in read_captions(path).items] == [("a dog",), ("a cat", "a bear")]


def test_lines_are_split_as_clip_benchmark_splits_them(tmp_path):
    """Its reader strips a line and splits it at ".jpg,"; a file whose quotes are right is a table."""
    texts = ['"A man", he says', " Two dogs, one cat ,", "x.png, y", 'a "b', "plain  "]
    path = tmp_path / "flickr30k_test_karpathy.txt"
    path.write_text("image,caption\n" + "".join(f"{n}.jpg,{text}\n" for n, text in enumerate(texts)) + "\n")
    split = [line.strip().split(".jpg,") for line in path.read_text().splitlines()[1:] if line.strip()]
    read = read_captions(path).items
    assert [(item.image, item.captions) for item in read] == [(f"{name}.jpg", (text,)) for name, text in split]
    path.write_text('image,caption\n1.jpg,"a man, he says"\n2.jpg,a dog\n')
    assert read_captions(path).items[0].captions == ("a man, he says",)


@pytest.mark.parametrize("form", ["file", "stream"])
def test_captions_and_images_are_read_from_arrow_files(form, tmp_path):
    frame = pandas.DataFrame([{"image": image, "caption": list(texts)} for image, texts in ITEMS.items()])
    inside = frame.assign(image=[{"bytes": png(n), "path": image} for n, image in enumerate(frame["image"])])
    for number, content in enumerate([frame, inside]):
        path, table = tmp_path / f"{number}.arrow", pyarrow.Table.from_pandas(content)
        with {"file": pyarrow.ipc.new_file, "stream": pyarrow.ipc.new_stream}[form](path, table.schema) as writer:
            writer.write_table(table)
        file = read_captions(path)
        assert {item.image: item.captions for item in file.items} == ITEMS
        if number:
            pairs = pickle.loads(pickle.dumps(open_pairs(str(path))))
            assert [pair.image for pair in all_of(pairs)] == [png(n) for n in range(2)]


def test_numbered_columns_of_parquet_are_read_and_blank_cells_are_skipped(tmp_path):
    frame = numbered("caption_{}", 0).assign(caption_2=[None, " "], caption_10=["ten", None])
    frame.to_parquet(tmp_path / "c.parquet")
    items = read_captions(f"{tmp_path}/c.parquet").items
    assert [item.captions for item in items] == [(*ITEMS["1_a.jpg"], "ten"), ITEMS["2_b.jpg"]]
    frame[["image", "caption_0"]].assign(caption="x").to_csv(tmp_path / "both.csv", index=False)
    refused("any of which may be the captions", read_captions, f"{tmp_path}/both.csv")
    only = read_captions(f"{tmp_path}/both.csv?caption=caption_0").items
    assert [item.captions for item in only] == [(texts[0],) for texts in ITEMS.values()]


def test_images_without_a_caption_and_repeated_captions_are_counted(tmp_path):
    path = tmp_path / "c.json"
    path.write_text(json.dumps(COCO))
    file = read_captions(path)
    assert file.skipped == 1 and "2 images, 4 captions, 1 images without a caption left out" in file.summary()
    path.write_text(json.dumps(COCO | {"images": [*COCO["images"], {"id": 1, "file_name": "other.jpg"}]}))
    refused("id of images 3: found 1, an id of two images; wanted every id once", read_captions, path)
    (tmp_path / "c.csv").write_text("image,caption\n1.png,one\n1.png,one\n")
    file = read_captions(f"{tmp_path}/c.csv")
    assert file.items[0].captions == ("one", "one")
    assert file.summary() == "c.csv: 1 images, 2 captions, 1 of them twice for one image, columns image and caption"


def test_splits_are_reported_and_can_be_selected(tmp_path, capsys):
    files = dict(zip(ITEMS, write_pictures(tmp_path / "photos", ITEMS, grey_of), strict=True))
    pandas.DataFrame(with_splits()).to_csv(tmp_path / "c.csv", index=False)
    (tmp_path / "k.json").write_text(json.dumps(KARPATHY))
    (tmp_path / "plain.csv").write_text("image,caption\n1_a.jpg,x\n")
    photos, table, karpathy, plain = (f"{tmp_path}/{name}" for name in ("photos", "c.csv", "k.json", "plain.csv"))
    assert read_captioned_images(photos, table).names == tuple(ITEMS)
    assert "splits train (2), test (2): all read; `split` chooses" in capsys.readouterr().err
    none = r"split: found none named, of several; wanted train \(1\), test \(1\), one or several \(train\+val\), or all"
    refused(none, read_captioned_images, photos, karpathy)
    wrong = r"split: found 'val'; wanted train \(\d\), test \(\d\)"
    for captions in (table, karpathy):
        assert read_captioned_images(photos, captions, split="test").names == ("2_b.jpg",)
        assert "read: test" in capsys.readouterr().err
        assert [len(open_pairs(photos, captions, split=split)) for split in ("train+test", "all")] == [2, 2]
        refused(wrong, open_pairs, photos, captions, split="train+val")
    assert read_captioned_images(photos, f"{karpathy}?split=test").names == ("2_b.jpg",)
    assert read_captioned_images(photos, table, columns={"split": "split"}, split="train").names == ("1_a.jpg",)
    refused("split: found 'test'; wanted a column split", read_captioned_images, photos, plain, split="test")
    images = [{"bytes": files[row["image"]].read_bytes(), "path": row["image"]} for row in with_splits()]
    pandas.DataFrame(with_splits()).assign(image=images).to_parquet(tmp_path / "c.parquet")
    inside = read_captioned_images(f"{tmp_path}/c.parquet", split="test")
    assert inside.names == ("2_b.jpg",) and inside.items[0].captions == ITEMS["2_b.jpg"]
    assert inside.paths[0].read_bytes() == files["2_b.jpg"].read_bytes()
    (tmp_path / "shards").mkdir()
    for split, names in SPLIT.items():
        rows = pandas.DataFrame(with_splits("part", {split: names}))
        rows.to_parquet(tmp_path / f"shards/{split}-00000-of-00001.parquet")
    refused("none named, of several", read_captioned_images, photos, f"{tmp_path}/shards")
    assert read_captioned_images(photos, f"{tmp_path}/shards", split="test").names == ("2_b.jpg",)
    config = default_config().data
    config.images, config.captions, config.split = photos, karpathy, "train"
    assert len(open_source(config)) == 1
    command = ["make-benchmark", "--images", photos, "--captions", karpathy, "--out", f"{tmp_path}/out"]
    assert main(command) == 2 and main([*command, "--split", "test"]) == 0
    assert [path.name for path in (tmp_path / "out/mine/images").iterdir()] == ["2_b.jpg"]


def test_images_are_found_by_both_unicode_spellings_of_a_name(tmp_path):
    composed = "Zoë/Bär.png"
    apart = unicodedata.normalize("NFD", composed)
    write_pictures(tmp_path, [f"stored apart/{apart}", f"stored composed/{composed}"])
    for folder in ("stored apart", "stored composed"):
        for name in (composed, apart):
            (tmp_path / "c.json").write_text(json.dumps([{"image": name, "caption": ["x"]}], ensure_ascii=False))
            read = read_captioned_images(f"{tmp_path}/{folder}", f"{tmp_path}/c.json")
            assert read.names == (name,) and read.paths[0].read_bytes()
    write_pictures(tmp_path / "stored composed", [f"Zoë/{Path(apart).name}"])
    twice, arguments = "two files of this name, .* that Unicode calls the same", (f"{tmp_path}/stored composed",)
    refused(twice, read_captioned_images, *arguments, f"{tmp_path}/c.json")


def test_images_of_the_same_name_in_two_folders_are_kept_apart(tmp_path):
    bytes_of = {path: path.read_bytes() for path in write_pictures(tmp_path, ["a/0.png", "a/1.png", "b/0.png"])}
    (tmp_path / "a.csv").write_text("image,caption\n0.png,a dog\n1.png,a cat\n")
    (tmp_path / "b.csv").write_text("image,caption\n0.png,a sheep\n")
    folders = f"{tmp_path}/a,{tmp_path}/b"
    read = read_captioned_images(folders, f"{tmp_path}/a.csv,{tmp_path}/b.csv")
    assert read.names == ("a/0.png", "1.png", "b/0.png") and read.captions == ("a dog", "a cat", "a sheep")
    assert [path.read_bytes() for path in read.paths] == list(bytes_of.values())
    twice = "image '0.png': found two of this name, .*a/0.png and .*b/0.png"
    refused(twice, read_captioned_images, folders, f"{tmp_path}/a.csv")
    # A copy is the same image.
    (tmp_path / "b/0.png").write_bytes((tmp_path / "a/0.png").read_bytes())
    assert len(read_captioned_images(folders, f"{tmp_path}/a.csv").names) == 2


def test_names_without_their_suffixes_stay_distinct():
    assert names_without_suffix(["a.jpg", "b.jpg"]) == ["a", "b"]
    for names in (["a.jpg", "a.png", "a.jpg.jpg"], ["a.jpg.jpg", "a.png", "a.jpg", "a.png.png"]):
        assert len(set(names_without_suffix(names))) == len(names)


def test_names_of_folders_may_contain_commas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("photos{a,b}", "x, y", "plain"):
        write_pictures(Path(name), ["1.png"])
        Path(name, "metadata.csv").write_text("file_name,text\n1.png,a dog\n")
    names = ["photos{a,b}", "x, y", "plain", "t-{0,1}.tar"]
    assert split_names(",".join(names)) == names
    assert split_names("a,plain/metadata.csv?split=test,x, y") == ["a", "plain/metadata.csv?split=test", "x, y"]
    for name in names[:2]:
        assert read_captioned_images(name).items[0].captions == ("a dog",)
        assert len(open_pairs(f"{name},plain")) == 2
        assert len(open_pairs(name, f"{name}/metadata.csv")) == 1


@pytest.mark.parametrize("text", ["one\ntwo\n", "\ufeffone\r\n\r\ntwo"])
def test_a_text_file_has_one_caption_per_line_in_folders_and_tars(tmp_path, capsys, text):
    write_pictures(tmp_path / "f", ["1.png"])
    (tmp_path / "f/1.TXT").write_bytes(text.encode())
    (tmp_path / "f/alone.txt").write_text("no image\n")
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for name in ("1.png", "1.TXT"):
            tar.add(tmp_path / "f" / name, name)
        tar.add(tmp_path / "f/1.png", "2.png")
        member = tarfile.TarInfo("2.txt")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"\xff\xfe\x00"))
    for source in ("f", "t.tar"):
        read = read_captioned_images(f"{tmp_path}/{source}", allow_missing=True)
        assert [item.captions for item in read.items] == [("one", "two")]
        output = capsys.readouterr().err
        assert "1 images, 2 captions" in output and "line of NAME.txt" in output
        assert ("1 texts without an image left out" in output) == (source == "f")
    assert "1 samples left out: 0 without an image and 1 without a caption" in output
    write_pictures(tmp_path / "f", ["2.png"])
    missing = "1 of 2 images without a text; the first is '2.png'; wanted metadata.csv"
    refused(missing, read_captioned_images, f"{tmp_path}/f")


def test_a_text_of_several_paragraphs_is_one_caption_if_configured(tmp_path, capsys):
    """Recaptioned images have such captions; a cell of a table and a JSON text are one caption in both cases."""
    text = 'A dog runs.\n\nIt is brown, and "happy".\n  The sun shines.\n'
    write_pictures(tmp_path / "f", ["1.png", "2.png"])
    for name, line_end in (("1", "\n"), ("2", "\r\n")):
        (tmp_path / f"f/{name}.txt").write_text(f"\n{text}\n".replace("\n", line_end), newline="")
    folder, paragraphs, lines = f"{tmp_path}/f", text.rstrip("\n"), [line for line in text.split("\n") if line.strip()]
    assert [list(item.captions) for item in read_captioned_images(folder).items] == [lines] * 2
    capsys.readouterr()
    for read in (
        read_captioned_images(folder, text_files="whole"),
        read_captioned_images(f"{folder}?text_files=whole"),
        read_captioned_images(folder, f"{folder}?text_files=whole"),
    ):
        assert [item.captions for item in read.items] == [(paragraphs,)] * 2
    assert capsys.readouterr().err.count("2 images, 2 captions, each NAME.txt a caption") == 3
    for choice in ({"text_files": "whole"}, {}):
        pairs = open_pairs(folder if choice else f"{folder}?text_files=whole", **choice)
        assert [pair.captions for pair in all_of(pairs)] == [(paragraphs,)] * 2
    config = default_config().data
    config.images = f"{folder}?text_files=whole"
    assert [pair.captions for pair in all_of(open_source(config))] == [(paragraphs,)] * 2
    out = tmp_path / "out"
    assert main(["make-benchmark", "--images", folder, "--text-files", "whole", "--out", str(out)]) == 0
    written = json.loads((out / "mine/annotations/captions.json").read_text())
    assert [item["caption"] for item in written] == [[paragraphs]] * 2
    frame = pandas.DataFrame({"image": ["1.png", "2.png"], "caption": [text, text]})
    frame.to_csv(tmp_path / "c.csv", index=False)
    frame.to_json(tmp_path / "c.jsonl", orient="records", lines=True)
    for name in ("c.csv", "c.jsonl", "c.csv?text_files=whole"):
        assert [item.captions for item in read_captions(f"{tmp_path}/{name}").items] == [(text,)] * 2
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for name in ("1.png", "1.txt"):
            tar.add(tmp_path / "f" / name, name)
    refused("text_files: found 'whole' with .*NAME.json", open_pairs, f"{tmp_path}/t.tar", text_files="whole")
    refused("text_files: found 'paragraphs'; wanted lines or whole", read_captions, f"{folder}?text_files=paragraphs")
