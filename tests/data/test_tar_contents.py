"""Tars give the captions and images that are in them, whatever their names, sizes and times."""

import io
import json
import os
import pickle
import shutil
import socket
import tarfile
from pathlib import Path
from unittest.mock import Mock

import pytest
from PIL import Image

from rococo_jax.cli.main import main
from rococo_jax.data import remember, tar_index
from rococo_jax.data.captioned_images import open_pairs, read_captioned_images
from rococo_jax.data.remote import FileState
from rococo_jax.data.tar_pairs import split_names
from rococo_jax.locks import hold
from tests.support.refusals import refused
from tests.support.training_pairs import all_of

COUNT = 4


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ROCOCO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def picture(shade: int) -> bytes:
    """An image file whose length does not depend on what it shows."""
    file = io.BytesIO()
    Image.new("RGB", (9, 9), (shade, 100, 7)).save(file, "BMP")
    return file.getvalue()


def tar_bytes(word: str, shade: int = 0, about: str = "txt", names: str = "{:06d}") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number in range(COUNT):
            text = f"{word} dog {number}" if about == "txt" else json.dumps({"caption": f"{word} dog {number}"})
            for suffix, data in (("bmp", picture(shade + number)), (about, text.encode())):
                member = tarfile.TarInfo(f"{names.format(number)}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def contents(tar: Path) -> list[tuple[str, bytes]]:
    """Return captions and images as the standard library reads them."""
    with tarfile.open(tar) as file:
        data = {member.name: file.extractfile(member).read() for member in file.getmembers()}
    images = [name for name in data if name.endswith(".bmp")]
    texts = [data.get(name.replace(".bmp", ".txt"), b"").decode() for name in images]
    texts = [
        text or json.loads(data[name.replace(".bmp", ".json")])["caption"]
        for text, name in zip(texts, images, strict=True)
    ]
    return [(text, data[name]) for text, name in zip(texts, images, strict=True)]


def read(name: object) -> list[tuple[str, bytes]]:
    return [(pair.captions[0], pair.image) for pair in all_of(open_pairs(str(name)))]


def in_place(tar: Path, data: bytes) -> None:
    tar.write_bytes(data)


def by_rename(tar: Path, data: bytes) -> None:
    """Replace a file like rsync."""
    (tar.parent / ".new").write_bytes(data)
    (tar.parent / ".new").replace(tar)


def same_time(replace):
    def replaced(tar: Path, data: bytes) -> None:
        before = tar.stat()
        replace(tar, data)
        os.utime(tar, ns=(before.st_atime_ns, before.st_mtime_ns))

    return replaced


def new_inode(tar: Path, data: bytes) -> None:
    tar.unlink()
    tar.write_bytes(data)


WAYS = {
    "in place": in_place,
    "by rename": by_rename,
    "with the same time": same_time(in_place),
    "by rename with the same time": same_time(by_rename),
    "removed before, with the same time": same_time(new_inode),
}
CHANGES = {
    "captions": tar_bytes("NEW"),
    "captions in JSON": tar_bytes("NEW", about="json"),
    "images": tar_bytes("OLD", shade=9),
    "names": tar_bytes("OLD", names="1{:05d}"),
}


# Every way and every change once; all pairs of them in a thorough run.
TOGETHER = [(way, [*CHANGES][number % len(CHANGES)]) for number, way in enumerate(WAYS)]
APART = [(way, change) for way in WAYS for change in CHANGES if (way, change) not in TOGETHER]


@pytest.mark.parametrize(
    ("way", "change"), TOGETHER + [pytest.param(*case, marks=pytest.mark.thorough) for case in APART]
)
def test_a_changed_tar_is_read_with_its_new_contents(way, change, tmp_path):
    old = tar_bytes("OLD", about="json" if "JSON" in change else "txt")
    assert len(old) == len(CHANGES[change])
    tar = write(tmp_path / "data" / "s.tar", old)
    before, in_use = open_pairs(str(tar)), open_pairs(str(tar))
    assert read(tar) == contents(tar) and in_use[0].captions
    WAYS[way](tar, CHANGES[change])
    after = open_pairs(str(tar))
    assert read(tar) == contents(tar)
    assert [item.captions[0] for item in map(after.captioned, range(COUNT))] == [text for text, _ in contents(tar)]
    fresh = open_pairs(str(write(tmp_path / "fresh" / "other.tar", CHANGES[change])))
    assert before.hash() != after.hash() == fresh.hash()
    # What was opened before never gives the images of one tar with the captions of another.
    if change != "captions" and "JSON" not in change and "in place" in way:
        refused("tars: found written again meanwhile; wanted tars that do not change", before.__getitem__, 0)
        refused("member .*: found other bytes; wanted the bytes that were indexed", in_use.__getitem__, 0)


def test_tars_of_the_same_name_in_several_folders_are_kept_apart(tmp_path):
    tars = {name: write(tmp_path / name / "00000.tar", tar_bytes(name * 3, 20 * place))
            for place, name in enumerate("xyz")}  # fmt: skip
    for pattern in ("{x,y}", "{x,z}", "{y,x}", "{x,y}"):
        wanted = [each for name in pattern[1:-1].split(",") for each in contents(tars[name])]
        assert read(f"{tmp_path}/{pattern}/00000.tar") == wanted
    data = read_captioned_images(f"{tmp_path}/{{x,y}}/00000.tar")
    assert data.names[0] == "x/00000.tar/000000.bmp" and data.names[COUNT] == "y/00000.tar/000000.bmp"
    assert [(item.captions[0], place.read_bytes()) for item, place in zip(data.items, data.paths, strict=True)] == [
        *contents(tars["x"]),
        *contents(tars["y"]),
    ]
    (tmp_path / "x").rename(tmp_path / "t")
    (tmp_path / "y").rename(tmp_path / "x")
    (tmp_path / "t").rename(tmp_path / "y")
    assert read(f"{tmp_path}/{{x,y}}/00000.tar") == [*contents(tars["x"]), *contents(tars["y"])]


def test_skipped_files_of_a_folder_of_tars_are_reported(tmp_path, capsys):
    for name in ("a.tar", "B.TAR", "._a.tar", "c.tar.gz", "d.tgz", "notes.txt"):
        write(tmp_path / "data" / name, tar_bytes("OLD"))
    assert len(read(tmp_path / "data")) == 2 * COUNT
    assert "data: 2 compressed tars left out; the first is c.tar.gz" in capsys.readouterr().err


def test_commands_read_the_captions_of_a_tar(tmp_path):
    tar = tmp_path / "s.tar"
    for word in ("OLD", "NEW"):
        write(tar, tar_bytes(word))
        assert (
            main(["make-benchmark", "--images", str(tar), "--name", word.lower(), "--out", str(tmp_path / "out")]) == 0
        )
        made = json.loads((tmp_path / "out" / word.lower() / "annotations" / "captions.json").read_text())
        assert [item["caption"] for item in made] == [[f"{word} dog {number}"] for number in range(COUNT)]


def test_the_hash_depends_only_on_contents(tmp_path):
    tar = write(tmp_path / "a" / "s.tar", tar_bytes("OLD"))
    first = open_pairs(str(tar)).hash()
    os.utime(tar, (1, 1))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").rename(tmp_path / "c")
    assert {open_pairs(f"{tmp_path}/{folder}/s.tar").hash() for folder in "bc"} == {first}


@pytest.mark.slow
def test_the_hash_depends_on_every_byte_of_images_and_captions(tmp_path):
    data = tar_bytes("OLD")
    tar = write(tmp_path / "s.tar", data)
    seen = {open_pairs(str(tar)).hash()}
    with tarfile.open(tar) as file:
        places = [member.offset_data + offset for member in file.getmembers() for offset in (0, member.size - 1)]
    for place in places[2:]:  # the first member is read to the end of its header
        changed = bytearray(data)
        changed[place] ^= 1
        tar.write_bytes(changed)
        seen.add(open_pairs(str(tar)).hash())
    assert len(seen) == len(places) - 1


def test_tars_that_did_not_change_are_not_read_again(tmp_path, monkeypatch):
    tars = [write(tmp_path / name, tar_bytes(name)) for name in ("aaa.tar", "bbb.tar")]
    pattern, opened, read_tar = f"{tmp_path}/{{aaa,bbb}}.tar", [], tar_index.read_tar
    monkeypatch.setattr(tar_index, "read_tar", lambda path, caption: opened.append(path) or read_tar(path, caption))
    for _ in range(3):
        open_pairs(pattern)
    assert opened == [str(tar) for tar in tars] or opened == [str(tar) for tar in tars[::-1]]
    os.utime(tars[1])
    index = next(tmp_path.glob("*.arrow"))
    before = index.read_bytes()
    open_pairs(pattern)
    assert opened[2:] == [str(tars[1])] and index.read_bytes() == before


def test_tars_that_another_process_has_read_meanwhile_are_not_read_again(tmp_path, monkeypatch):
    tars = [str(write(tmp_path / f"{name}.tar", tar_bytes(name * 3))) for name in "abcd"]
    opened, read_tar = [], tar_index.read_tar

    def read_while_another_process_reads_all(path: str, caption: str):
        opened.append(path)
        if len(opened) == 1:
            tar_index.open_indexes([tar for tar in tars if tar != path])  # as the other process
        return read_tar(path, caption)

    monkeypatch.setattr(tar_index, "read_tar", read_while_another_process_reads_all)
    assert read(f"{tmp_path}/{{a,b,c,d}}.tar") == [each for tar in tars for each in contents(tar)]
    assert sorted(opened) == tars


@pytest.mark.parametrize("damage", ["a changed caption", "cut short", "another format", "another index"])
def test_a_damaged_index_is_written_again(damage, tmp_path):
    tar = write(tmp_path / "a" / "s.tar", tar_bytes("OLD"))
    read(tar)
    index = next(tar.parent.glob("*.arrow"))
    data = index.read_bytes()
    other = write(tmp_path / "b" / "s.tar", tar_bytes("NEW"))
    read(other)
    index.write_bytes({
        "a changed caption": data.replace(b"OLD dog 1", b"BAD dog 1"),
        "cut short": data[:-100],
        "another format": data.replace(b"tar_indexes 7", b"tar_indexes 6"),
        "another index": next(other.parent.glob("*.arrow")).read_bytes(),
    }[damage])  # fmt: skip
    assert read(tar) == contents(tar)
    assert index.read_bytes() == data


def test_leftovers_of_killed_processes_are_removed_when_the_folder_is_opened(tmp_path):
    tar, host = write(tmp_path / "s.tar", tar_bytes("OLD")), socket.gethostname()
    read(tar)
    holders = {"a": f"process 1 of {host}", "b": "", "c": "process 1 of another-machine", "d": f"process 1 of {host}"}
    for name, holder in holders.items():
        write(tmp_path / f"..{name}.tar.index.arrow.lock", holder.encode())
        write(tmp_path / f"..{name}.tar.index.arrow.0123abcd.part", b"half")
    remember._remove_leftovers.cache_clear()  # as in another process
    with hold(tmp_path / ".d.tar.index.arrow"):
        write(tmp_path / "..d.tar.index.arrow.0123abcd.part", b"half")
        read(tar)
        left = {path.name[2] for path in tmp_path.glob("..*")}
    assert left == {"c", "d"}
    # Another machine may still write it, until nothing has changed for a day.
    os.utime(tmp_path / "..c.tar.index.arrow.0123abcd.part", (1, 1))
    remember._remove_leftovers.cache_clear()
    read(tar)
    assert {path.name for path in tmp_path.glob("..*.part")} == {"..d.tar.index.arrow.0123abcd.part"}


def test_machines_that_share_a_tar_record_their_states_without_changing_its_index(tmp_path, monkeypatch):
    tar, opened, read_tar = write(tmp_path / "s.tar", tar_bytes("OLD")), [], tar_index.read_tar
    monkeypatch.setattr(tar_index, "read_tar", lambda path, caption: opened.append(path) or read_tar(path, caption))
    read(tar)
    index = next(tmp_path.glob(".s.tar.index.arrow"))
    before, times = index.read_bytes(), tar.stat()
    for machine, time in (("here", 0), ("there", 1), ("here", 0), ("there", 1)):
        state = FileState(times.st_size, (times.st_mtime_ns + time,), 1.0)
        monkeypatch.setattr(socket, "gethostname", lambda machine=machine: machine)
        monkeypatch.setattr(tar_index, "file_state", lambda path, expected, state=state: state)
        assert read(tar) == contents(tar) and index.read_bytes() == before
    assert len(opened) == 1 + 2  # once to make it, and once for each other state


def test_a_worker_refuses_tars_that_have_changed_since_the_start(tmp_path):
    tar = write(tmp_path / "s.tar", tar_bytes("OLD"))
    sent = pickle.dumps(open_pairs(str(tar)))
    assert pickle.loads(sent)[0].captions == ("OLD dog 0",)
    write(tar, tar_bytes("NEW"))
    open_pairs(str(tar))
    refused("s.tar: tars: found written again meanwhile", pickle.loads, sent)


def test_a_tar_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    tar, read_tar = write(tmp_path / "s.tar", tar_bytes("OLD")), tar_index.read_tar
    monkeypatch.setattr(
        tar_index, "read_tar", lambda path, caption: (read_tar(path, caption), tar.write_bytes(tar_bytes("NEW")))[0]
    )
    refused("s.tar: contents: found changed while it was read", open_pairs, str(tar))


@pytest.mark.parametrize("versioned", [True, False])
def test_tars_behind_a_url_are_read_again_when_they_change(versioned, tmp_path, monkeypatch):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    info = type(memory).info
    if not versioned:
        monkeypatch.setattr(type(memory), "info", lambda self, path: {**info(self, path), "created": None})
    url = f"memory://{tmp_path.name}/s.tar"
    for word, shade in (("OLD", 0), ("NEW", 0), ("NEW", 5)):
        memory.pipe(url, tar_bytes(word, shade))
        for _ in range(2):
            assert read(url) == contents(write(tmp_path / "s.tar", tar_bytes(word, shade)))


def test_the_index_is_kept_in_memory_if_it_cannot_be_written(tmp_path, monkeypatch, capsys):
    tar = write(tmp_path / "s.tar", tar_bytes("OLD"))
    monkeypatch.setenv("ROCOCO_CACHE", str(write(tmp_path / "file", b"")))
    monkeypatch.setattr(remember, "hold", Mock(side_effect=PermissionError))
    pairs = open_pairs(str(tar))
    output = capsys.readouterr().err
    assert output.count("set ROCOCO_CACHE to a folder that can be written") == 1 and output.count("\n") == 2
    assert read(tar) == contents(tar) and all_of(pickle.loads(pickle.dumps(pairs))) == all_of(pairs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "s.tar"]
    write(tar, tar_bytes("NEW"))
    assert read(tar) == contents(tar)


def recaptioned(path: Path) -> Path:
    """A tar with three captions of each image: in .txt, and under two keys of .json."""
    with tarfile.open(path, "w") as tar:
        for number in range(COUNT):
            about = {"caption": f"short {number}", "re_caption": f"long {number}", "both": ["a", "b"]}
            members = {"bmp": picture(number), "txt": f"alt {number}".encode(), "json": json.dumps(about).encode()}
            for suffix, data in members.items():
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return path


def test_captions_of_tars_are_read_from_the_key_that_the_user_names(tmp_path):
    tar = recaptioned(tmp_path / "rc.tar")
    firsts = {"": "alt 0", "txt": "alt 0", "caption": "short 0", "re_caption": "long 0", "both": "a"}
    for _ in range(2):  # each has its own index
        hashes = set()
        for key, first in firsts.items():
            columns = {"caption": key} if key else None
            source = open_pairs(str(tar), columns=columns)
            assert (
                source[0].captions[0] == first and read_captioned_images(str(tar), columns=columns).captions[0] == first
            )
            hashes.add(source.hash())
            if key:
                assert open_pairs(f"{tar}?caption={key}").hash() == source.hash()
        assert len(hashes) == 4
    assert open_pairs(f"{tar}?caption=re_caption", columns={"caption": "caption"})[1].captions == ("long 1",)
    refused("4 without a caption.*the captions are 'none' of NAME.json", open_pairs, f"{tar}?caption=none")
    # The commands take it the same way.
    pack = [
        "pack",
        "--images",
        str(tar),
        "--columns",
        "caption=re_caption",
        "--shards",
        "1",
        "--out",
        f"{tmp_path}/out",
    ]
    assert main(pack) == 0
    assert open_pairs(f"{tmp_path}/out")[0].captions == ("long 0",)


def test_options_that_a_source_does_not_have_are_refused(tmp_path):
    """None of them is dropped silently."""
    tar = recaptioned(tmp_path / "rc.tar")
    photos = tmp_path / "photos"
    write(photos / "a.bmp", picture(0)), write(photos / "a.txt", b"one")
    table = write(tmp_path / "c.csv", b"image,caption\na.bmp,one\n")
    refused("columns: found image=x; wanted caption=KEY alone", open_pairs, str(tar), columns={"image": "x"})
    refused("columns: found image=x; wanted caption=KEY alone", open_pairs, f"{tar}?image=x")
    refused("columns: entry: found 'split=train'|split", open_pairs, f"{tar}?split=train")
    refused("wanted none: NAME.txt has no columns", open_pairs, str(photos), columns={"caption": "x"})
    refused("wanted none: NAME.txt has no columns", open_pairs, f"{photos}?caption=x")
    refused("columns: found caption=x; wanted none", open_pairs, "scenes:20", columns={"caption": "x"})
    refused("columns: found caption=x; wanted none", open_pairs, "tfds:coco", columns={"caption": "x"})
    refused("captions: found a tar; wanted a captions file", open_pairs, str(photos), str(tar))
    refused("columns: found name=x; wanted image=", open_pairs, str(photos), str(table), columns={"name": "x"})


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tgz", "shards"])
def test_compressed_tars_are_refused_as_such(name, tmp_path):
    write(tmp_path / "shards" / "a.tar.gz", b"\x1f\x8b"), write(tmp_path / "shards" / "a_stats.json", b"{}")
    for each in ("a.tar.gz", "a.tgz"):
        write(tmp_path / each, b"\x1f\x8b")
    refused("tars: found compressed tars; wanted .*decompress them", open_pairs, str(tmp_path / name))


def test_many_names_are_split_in_linear_time():
    names = [f"/data/shards/{number:05}.tar" for number in range(20_000)]
    assert split_names(",".join(names)) == names
    pattern = "{" + ",".join(names) + "}.tar"
    assert split_names(f"a.tar,{pattern},b.tar") == ["a.tar", pattern, "b.tar"]
