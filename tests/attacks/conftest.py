import pytest

from rococo_jax.attacks.run import attack_models
from rococo_jax.encoders.cache import EmbeddingCache
from rococo_jax.encoders.loading import load_encoder
from tests.attacks.worlds import data_of, draw


@pytest.fixture(scope="session")
def paths(tmp_path_factory):
    return draw(tmp_path_factory.mktemp("attacked"))


@pytest.fixture
def attack(paths, tmp_path):
    """Attack one model, and return its results."""

    def run(model, *attacks, out="out", **options):
        loaded = load_encoder(model)
        folders = {loaded.name: tmp_path / out}
        models, _ = attack_models(
            lambda name: loaded, folders, data_of(paths), attacks, EmbeddingCache(None), **options
        )
        return models[loaded.name]

    return run
