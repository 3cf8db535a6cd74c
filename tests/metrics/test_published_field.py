"""The field of published models: the table, the robust line against SciPy, and the comparison with a checkpoint."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize

from rococo_jax.cli.main import main
from rococo_jax.errors import InputError
from rococo_jax.metrics.published_field import COLUMNS, above_the_line, huber_line, published_field


def test_the_table_is_whole():
    field = published_field()
    assert len(field.names) == 202 == len(set(field.names)) and "2406.09388" in field.source
    assert set(field.figures) == set(COLUMNS)
    assert all(
        len(values) == 202 and (values >= 0).all() and (values <= 100).all() for values in field.figures.values()
    )
    assert field.of("vit-b-32/openai")["coco_i2t"] == 50.12
    with pytest.raises(InputError, match="did you mean ViT-B-32 openai"):
        field.of("ViT-B-32 openay")


def test_the_line_minimises_hubers_loss():
    rng = np.random.default_rng(0)
    x = rng.uniform(20, 70, 80)
    y = 0.4 * x + 50 + rng.normal(0, 1, 80)
    y[:8] -= 40  # models that are no part of the trend
    slope, intercept = huber_line(x, y)
    assert abs(slope - 0.4) < 0.03
    scale = np.median(np.abs(y - slope * x - intercept)) / 0.6745

    def loss(line):
        z = np.abs(y - line[0] * x - line[1]) / scale
        return np.where(z <= 1.345, z**2 / 2, 1.345 * (z - 1.345 / 2)).sum()

    found = minimize(
        loss, [0.3, 55.0], method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10, "maxiter": 5000}
    ).x
    np.testing.assert_allclose([slope, intercept], found, atol=5e-3)


def test_a_model_above_the_line_is_told_so():
    points, low, high = above_the_line("sugarcrepe", 50.0, 90.0)
    assert low < points < high and points > 10
    assert above_the_line("sugarcrepe", 50.0, 60.0)[2] < 0


def test_verify_compares_with_a_published_checkpoint(tmp_path, capsys):
    results = {
        "format": "rococo_jax.results", "version": 2, "model": "mine", "protocol": "paper", "fingerprint": {},
        "tasks": {"sugarcrepe": {"mean": {"ota": 73.1}}, "image_to_text": {"clean": {"r1": 44.0}}}, "intervals": {},
    }  # fmt: skip
    path = tmp_path / "results.json"
    path.write_text(json.dumps(results))
    command = ["verify", "--published", str(path), "--against"]
    assert main([*command, "ViT-B-32 openai"]) == 1
    said = capsys.readouterr().out
    assert "73.1  published 73.0  matches" in said and "44.0  published 50.1  DIFFERS" in said
    results["data"] = {"rococo": {"coverage": {"complete": False}}}
    path.write_text(json.dumps(results))
    assert main([*command, "ViT-B-32 openai"]) == 0
    assert "not comparable: of a part of the images" in capsys.readouterr().out
    assert main([*command, "no such model"]) == 2
