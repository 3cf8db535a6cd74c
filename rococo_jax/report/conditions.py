"""Conditions under which results were measured: what must be equal for two results to share a table."""

import dataclasses
import json
from typing import Any

from rococo_jax.benchmarks.variants import ALL_KINDS
from rococo_jax.errors import object_of
from rococo_jax.evaluation.results import described_variants
from rococo_jax.storage import hash_json

# Field of the fingerprint with a digest of the other conditions; it differs only if one of them does.
_DIGEST = "comparable"


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Conditions that must be equal for results of one table.

    Attributes:
        everywhere: hash of the conditions of all benchmarks: protocol and versions.
        benchmarks: hash of the data of each benchmark.
        variants: conditions of single variants: hashes of named inputs, and the seeds and kinds of a mean.
        flat: all conditions for readers, one line per field.
    """

    everywhere: str
    benchmarks: dict[str, str]
    variants: dict[str, str]
    flat: dict[str, str]

    @classmethod
    def of(cls, content: dict[str, Any]) -> "Conditions":
        """Return the conditions of the contents of a results.json."""
        conditions = {name: value for name, value in content["fingerprint"].items() if name not in ("model", _DIGEST)}
        conditions = {"protocol": content["protocol"]} | conditions
        rest = {name: value for name, value in conditions.items() if name != "data"}
        data = {name: hash_json(value) for name, value in object_of(conditions.get("data")).items()}
        variants = {**_contents(content), **_means_over(content)}
        return cls(hash_json(rest), data, variants, _flat(conditions) | variants)

    def has_the_data_of(self, other: "Conditions") -> bool:
        """Whether protocol, versions and the data of all benchmarks that both have are the same, at least one."""
        shared = self.benchmarks.keys() & other.benchmarks.keys()
        return (
            self.everywhere == other.everywhere
            and (bool(shared) or self.benchmarks == other.benchmarks)
            and all(self.benchmarks[name] == other.benchmarks[name] for name in shared)
        )

    def fits(self, other: "Conditions") -> bool:
        """Whether both may share a table: everything that both have was measured under the same conditions."""
        return self.has_the_data_of(other) and all(
            value == other.variants.get(name, value) for name, value in self.variants.items()
        )


def _contents(content: dict[str, Any]) -> dict[str, str]:
    """Return hashes of template sets and of out-of-distribution images, by benchmark and name."""
    hashes = {}
    for benchmark, about in object_of(content.get("benchmarks")).items():
        for option, names in object_of(object_of(about).get("request")).items():
            for name, each in object_of(names).items():
                hashes[f"{benchmark}: {option} {name}"] = str(object_of(each).get("sha256"))
    return hashes


def _means_over(content: dict[str, Any]) -> dict[str, str]:
    """Return seeds and kinds of corruption of the variants that are means over them."""
    means = {}
    sizes = object_of(content.get("sizes"))
    for task in content["tasks"]:
        for name, about in object_of(sizes.get(task)).items():
            if seeds := object_of(about).get("seeds"):
                means[f"seeds of {task}, {name}"] = json.dumps(seeds)
        described = described_variants(content, task)
        for name, variant in described.items():
            if variant.corruption == ALL_KINDS:
                single = [each for each in described.values() if each.corruption != ALL_KINDS]
                members = [each for each in single if dataclasses.replace(each, corruption=ALL_KINDS) == variant]
                means[f"kinds of {task}, {name}"] = ", ".join(sorted(each.corruption for each in members))
    return means


def flat_fingerprint(content: dict[str, Any]) -> dict[str, str]:
    """Return the whole fingerprint of a result, one entry per field: `{"versions.jax": "0.10.2"}`."""
    return _flat(content["fingerprint"])


def _flat(value: Any, name: str = "") -> dict[str, str]:
    if isinstance(value, dict) and value:
        parts = [_flat(child, f"{name}.{key}" if name else str(key)) for key, child in value.items()]
        return {field: text for part in parts for field, text in part.items()}
    return {name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
