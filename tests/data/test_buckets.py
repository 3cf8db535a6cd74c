"""Read tars and models from a bucket of a local S3 server: `pip install s3fs 'moto[server]'`."""

import pytest

from rococo_jax.checkpoints import save_model
from rococo_jax.data import remote
from rococo_jax.data.sample_order import SampleOrder
from rococo_jax.data.tar_pairs import expand_tars, open_tars
from rococo_jax.encoders import load_model
from tests.support.refusals import refused
from tests.support.tar_pairs import write_world
from tests.support.tiny import tiny_encoder
from tests.support.training_pairs import assert_same_batches, take, tiny_input

pytestmark = pytest.mark.thorough


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server with an empty bucket `pairs`, and its address."""
    moto, s3fs = pytest.importorskip("moto.server"), pytest.importorskip("s3fs")
    boto3 = pytest.importorskip("boto3")
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*running.get_host_and_port()))
    monkeypatch.setenv("ROCOCO_CACHE", str(tmp_path / "cache"))
    s3fs.S3FileSystem.clear_instance_cache()
    remote.file_system.cache_clear()
    boto3.client("s3").create_bucket(Bucket="pairs")
    yield running
    running.stop()
    remote.file_system.cache_clear()


def forget_rights(server) -> None:
    """Require a key that the server knows for every further request; it knows none."""
    import requests
    import s3fs

    requests.post("http://{}:{}/moto-api/reset-auth".format(*server.get_host_and_port()), data=b"0", timeout=60)
    s3fs.S3FileSystem.clear_instance_cache()
    remote.file_system.cache_clear()


def test_a_bucket_is_read_like_a_folder_until_its_permission_is_revoked(server, tmp_path):
    import boto3

    (tmp_path / "tars").mkdir()
    world, store = write_world(tmp_path / "tars"), boto3.client("s3")
    for tar in world.tars:
        store.upload_file(str(tar), "pairs", f"cc/{tar.name}")
    local, there = (open_tars(name, allow_missing=True) for name in (world.pattern, "s3://pairs/cc/cc-{00..06}.tar"))
    choices = {"on_decode_error": "skip", "batch_size": 64, "order": SampleOrder(len(local), 64, 3, local.shards)}
    wanted = take(tiny_input(local, prefetch=0, **choices), 15)
    assert_same_batches(take(tiny_input(there, prefetch=0, **choices), 15), wanted)
    with tiny_input(there, workers=2, **choices) as made:
        assert_same_batches([next(made) for _ in range(3)], wanted[:3])
    assert expand_tars("s3://pairs/cc/cc-0[0-2]*.tar") == [f"s3://pairs/cc/cc-0{number}.tar" for number in range(3)]
    save_model(tmp_path / "tiny", tiny_encoder(0))
    for path in (path for path in (tmp_path / "tiny").rglob("*") if path.is_file()):
        store.upload_file(str(path), "pairs", f"models/tiny/{path.relative_to(tmp_path / 'tiny')}")
    assert load_model("s3://pairs/models/tiny").name == "tiny"
    for name in ("s3://pairs/cc/none.tar", "s3://nobody/a.tar"):
        refused("found nothing there", open_tars, name)

    forget_rights(server)
    again = open_tars(world.pattern, allow_missing=True)
    again.tars = there.tars  # open, and never read
    for attempt in (
        lambda: open_tars("s3://pairs/cc/cc-00.tar"),
        lambda: open_tars("s3://pairs/cc/cc-0*.tar"),
        lambda: load_model("s3://pairs/models/tiny"),
        lambda: take(tiny_input(again, prefetch=0, **choices), 1),
    ):
        refused(r"s3://pairs/.*: found (Forbidden|The AWS Access Key|Access Denied)", attempt)
