"""Test files that claim or unpack to far more than they hold: one line, and no memory for what is not read."""

import gzip
import io
import pickle
import struct
import zipfile

import numpy as np
import pytest

from rococo_jax.checkpoints.torch_archive import open_torch_archive
from rococo_jax.npz import open_arrays
from rococo_jax.storage import load_arrays
from rococo_jax.texts import iterate_lines, read_text
from tests.support.peak_memory import peak_memory_of
from tests.support.refusals import refused

# What importing NumPy, JAX and the readers takes, with a margin.
LIMIT = 450e6


def pickled_tensor(shape, stride, count, offset=0, name="w"):
    """A state dict of one float32 tensor, as torch pickles it."""

    def number(value):
        return b"\x8a\x08" + struct.pack("<q", value)

    def numbers(values):
        return b"(" + b"".join(map(number, values)) + b"t"

    def text(value):
        return b"X" + struct.pack("<I", len(value)) + value.encode()

    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(count) + b"tQ"
    hooks = b"\x89ccollections\nOrderedDict\n)R"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(offset) + numbers(shape) + numbers(stride)
    return b"\x80\x02}" + text(name) + tensor + hooks + b"tRs."


def torch_file(path, pickled, storage, compression=zipfile.ZIP_STORED, order=None):
    with zipfile.ZipFile(path, "w", compression, compresslevel=1) as file:
        file.writestr("a/data.pkl", pickled)
        if order is not None:
            file.writestr("a/byteorder", order)
        with file.open("a/data/0", "w", force_zip64=True) as member:
            for part in storage:
                member.write(part)
    return path


READ_TENSORS = """
import sys
from pathlib import Path
from rococo_jax.errors import InputError
from rococo_jax.checkpoints.torch_archive import open_torch_archive
for path, said in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        with open_torch_archive(Path(path)) as tensors:
            print(tensors.read("w")[:1])
    except InputError as error:
        assert said and said in str(error), (path, said, error)
    else:
        assert not said, (path, said)
"""


def megabytes(count, byte=b"\0"):
    return (byte * 2**20 for _ in range(count))


@pytest.mark.slow
def test_archives_that_unpack_to_far_more_than_their_tensors_take_bounded_memory(tmp_path):
    """All are read in one process, whose peak is bounded."""
    packed, repeated, claimed = zipfile.ZIP_DEFLATED, [bytes(4)], 64 * 2**20
    archives = {
        # A storage that is longer than its tensors, as its pickle says and as it does not.
        "longer": (pickled_tensor((1,), (1,), 1), megabytes(256), packed, "the compressed storage"),
        "claimed": (pickled_tensor((1,), (1,), claimed), megabytes(256), packed, "the compressed storage"),
        "part": (pickled_tensor((1,), (1,), claimed, offset=2**25), megabytes(256), zipfile.ZIP_STORED, ""),
        "repeated": (pickled_tensor((2**30,), (0,), 1), repeated, packed, "that repeats a storage of 1"),
        "array": (b"\x80\x05\x96" + struct.pack("<Q", 2**29) + b".", [], packed, "archive: found"),
        "pickle": (bytes(256 * 2**20), [], packed, "a compressed pickle"),
    }
    words = []
    for name, (pickled, storage, compression, said) in archives.items():
        words += [torch_file(tmp_path / f"{name}.pt", pickled, storage, compression), said]
    assert words[0].stat().st_size < 2e6 and peak_memory_of(READ_TENSORS, *words) < LIMIT


def test_an_undamaged_compressed_archive_is_read(tmp_path):
    """Read an archive that a tool has packed anew."""
    values = np.arange(12, dtype="<f4")
    pickled = pickled_tensor((3, 3), (4, 1), 12, offset=1)
    with open_torch_archive(
        torch_file(tmp_path / "a.pt", pickled, [values.tobytes()], zipfile.ZIP_DEFLATED)
    ) as tensors:
        np.testing.assert_array_equal(tensors.read("w"), values.reshape(3, 4)[:, 1:])


@pytest.mark.parametrize("place", [0, 20, 47])
def test_a_damaged_storage_is_refused_even_if_the_damage_is_outside_of_the_tensor(place, tmp_path):
    path = torch_file(
        tmp_path / "a.pt", pickled_tensor((2,), (1,), 12, offset=4), [np.arange(12, dtype="<f4").tobytes()]
    )
    raw = bytearray(path.read_bytes())
    raw[raw.find(np.arange(12, dtype="<f4").tobytes()) + place] ^= 1
    path.write_bytes(raw)
    with open_torch_archive(path) as tensors:
        refused("archive: found Bad CRC-32", tensors.read, "w")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_storage_that_tensors_share_is_read_once(compression, tmp_path, monkeypatch):
    """Views of a flat buffer: the storage is read through once, for its checksum, and not once for each of them."""
    torch = pytest.importorskip("torch")
    flat, count = torch.arange(64 * 1024.0), 64
    views = {f"w{place}": flat[place * 1024 : (place + 1) * 1024] for place in range(count)}
    torch.save(views, tmp_path / "stored.pt")
    with (
        zipfile.ZipFile(tmp_path / "stored.pt") as stored,
        zipfile.ZipFile(tmp_path / "a.pt", "w", compression) as file,
    ):
        for name in stored.namelist():
            file.writestr(name, stored.read(name))
    unpacked = []
    read = zipfile.ZipExtFile.read

    def counted(file, *arguments):
        unpacked.append(len(data := read(file, *arguments)))
        return data

    with open_torch_archive(tmp_path / "a.pt") as tensors:
        monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
        for name, view in views.items():
            np.testing.assert_array_equal(tensors.read(name), view.numpy())
    assert sum(unpacked) == flat.nbytes


def body(value):
    """Return a pickle without its first and last opcode."""
    return pickle.dumps(value, 2)[2:-1]


# Values whose parts share their own parts, so that they have 2^60 paths.
DICTIONARIES, TUPLES = {}, ()
for _ in range(60):
    DICTIONARIES, TUPLES = {"a": DICTIONARIES, "b": DICTIONARIES}, (TUPLES, TUPLES)


@pytest.mark.parametrize(
    ("pickled", "said"),
    [
        (b"\x80\x02" + body({"state_dict": DICTIONARIES}) + b".", "tensors: found none"),
        (b"\x80\x02}" + body(TUPLES) + b"K\x01s.", "a dictionary with a key that is a tuple"),
        (b"\x80\x02(" + body(TUPLES) + b"K\x01d.", "a dictionary with a key that is a tuple"),
        (b"\x80\x02ccollections\nOrderedDict\n]" + body(TUPLES) + b"K\x01\x86a\x85R.", "a key that is a tuple"),
        (b"\x80\x04}(" + body("w") + b"\x8f(" + body(TUPLES) + b"\x90u.", "tensors: found none"),
        (b"\x80\x04}(" + body("w") + b"(" + body(TUPLES) + b"\x91u.", "tensors: found none"),
        (b"\x80\x02ctorch\ndevice\n" + body(TUPLES) + b"\x85R.", "tensors: found none"),
    ],
    ids=["dictionaries", "key", "dict", "ordered", "set", "frozenset", "device"],
)
def test_a_pickle_of_nested_shared_values_is_refused_quickly(pickled, said, tmp_path):
    """Python hashes and prints shared tuples as trees, too: a file of 400 bytes would take for ever."""
    refused(said, open_torch_archive, torch_file(tmp_path / "a.pt", pickled, []))


def test_nested_shared_dictionaries_with_a_tensor_are_refused_quickly(tmp_path):
    torch = pytest.importorskip("torch")
    dictionaries = {"w": torch.zeros(2)}
    for _ in range(60):
        dictionaries = {"a": dictionaries, "b": dictionaries}
    torch.save(dictionaries, tmp_path / "a.pt")
    refused("modules that contain each other", open_torch_archive, tmp_path / "a.pt")


@pytest.mark.parametrize(("order", "form"), [("little", "<f4"), ("big", ">f4"), (None, "<f4")])
def test_storages_are_read_in_the_byte_order_of_the_archive(order, form, tmp_path):
    values = np.array([1.5, -2.0, 3e-9], form)
    with open_torch_archive(
        torch_file(tmp_path / "a.pt", pickled_tensor((3,), (1,), 3), [values.tobytes()], order=order)
    ) as tensors:
        np.testing.assert_array_equal(tensors.read("w"), values.astype("<f4"))


def test_an_unknown_byte_order_is_refused(tmp_path):
    path = torch_file(tmp_path / "a.pt", pickled_tensor((1,), (1,), 1), [bytes(4)], order="middle")
    refused("the byte order 'middle', neither little nor big", open_torch_archive, path)


READ_NPZ = """
import sys
from rococo_jax.errors import InputError
from rococo_jax.checkpoints.formats import convert
try:
    convert(sys.argv[1], tokenizer="none")
except InputError as error:
    assert sys.argv[2] in str(error), error
else:
    raise AssertionError
"""


@pytest.mark.slow
def test_names_in_an_npz_file_are_checked_before_arrays_are_loaded(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **{"params/img/embedding/kernel": np.zeros(2**27, np.float32)})
    assert path.stat().st_size < 2e6 and peak_memory_of(READ_NPZ, path, "tensors: found no img/pos_embedding") < 600e6


def npy_header(shape):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return header.getvalue()


@pytest.mark.parametrize("shape", [(10**12,), (17,), (15,), (2, 2**40)])
def test_an_array_header_that_claims_more_bytes_than_its_file_has_is_refused(shape, tmp_path):
    content = npy_header(shape) + bytes(64)
    (tmp_path / "a.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("w.npy", content)
    for name in ("a.npy", "a.npz"):
        refused(
            "header claims [0-9,]+ bytes, and the file has 64\\); wanted arrays", load_arrays, tmp_path / name, "arrays"
        )


def test_arrays_are_loaded_on_first_access_and_equal_those_of_numpy(tmp_path):
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.array(["x", "yy"]), "c": np.float16(2), "d": np.zeros((0, 3))}
    arrays["e"] = np.asfortranarray(np.random.default_rng(0).random((3, 4)))
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        loaded, theirs = open_arrays(tmp_path / "a.npz"), dict(np.load(tmp_path / "a.npz"))
        for read in (dict(loaded), {**loaded}, dict(loaded.items()), {name: loaded.get(name) for name in loaded}):
            assert read.keys() == theirs.keys()
            for name, array in theirs.items():
                assert read[name].dtype == array.dtype
                np.testing.assert_array_equal(read[name], array)
    assert loaded.get("z") is None and len(list(loaded.values())) == 5


def test_a_damaged_array_is_refused_on_first_access(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.arange(100_000), b=np.ones(3))
    raw = bytearray((tmp_path / "a.npz").read_bytes())
    raw[raw.find(np.arange(100_000).tobytes()) + 300_000] ^= 1
    (tmp_path / "a.npz").write_bytes(raw)
    arrays = load_arrays(tmp_path / "a.npz", "arrays")
    assert arrays["b"].sum() == 3
    refused("contents: found something else \\(Bad CRC-32", arrays.__getitem__, "a")


READ_TEXT = """
import sys
from rococo_jax.errors import InputError
from rococo_jax.texts import iterate_lines, read_text
for read in (read_text, lambda path, wanted: list(iterate_lines(path, wanted))):
    try:
        read(sys.argv[1], "a text")
    except InputError as error:
        assert "over 100 times its" in str(error) and "gunzip" in str(error), error
    else:
        raise AssertionError
"""


def test_a_compressed_text_that_is_far_larger_than_its_file_takes_bounded_memory(tmp_path):
    with gzip.open(tmp_path / "a.jsonl.gz", "wb", 1) as file:
        for part in megabytes(450, b" "):
            file.write(part)
    assert peak_memory_of(READ_TEXT, tmp_path / "a.jsonl.gz") < LIMIT


def test_compressed_texts_are_read(tmp_path):
    text = "".join(f"a dog of {number}\n" for number in range(10_000))
    for name, content in (("a.txt.gz", text), ("b.txt.gz", "a" * 50_000_000)):
        with gzip.open(tmp_path / name, "wt") as file:
            file.write(content)
        assert read_text(tmp_path / name, "a text") == content
    assert "".join(iterate_lines(tmp_path / "a.txt.gz", "a text")) == text


def test_a_pickled_object_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], object))
    refused("Python objects", load_arrays, tmp_path / "a.npy", "an array")
    (tmp_path / "a.npy").write_bytes(pickle.dumps([1]))
    refused("something else", load_arrays, tmp_path / "a.npy", "an array")
