"""The mixed image that won a caption, made again from the run's plan: images in order, protocol, method, seed."""

import functools
from typing import NamedTuple

from rococo_jax.benchmarks.rococo.mixed_galleries import mix_one, partner_of, place_of
from rococo_jax.benchmarks.rococo.published_mixing import MixingPlan, make_plan
from rococo_jax.errors import InputError
from rococo_jax.report.archive import Archive, Picture, small_jpeg
from rococo_jax.report.examples import PER_QUERY_FILE, Fooled, read_image_order
from rococo_jax.report.scores import Run
from rococo_jax.report.variant_families import mix_of


class Mixed(NamedTuple):
    """A mixed image, the name of the image mixed in, and the share of its own content in per cent."""

    picture: Picture
    partner: str
    own_share: float


class MixedPictures:
    """Makes the mixed images of one run again, as far as its images are still where they were."""

    def __init__(self, run: Run, archive: Archive):
        self.run, self.archive = run, archive
        self._plan = functools.cache(self._make_plan)

    def find(self, example: Fooled) -> Mixed | None:
        """The mixed image that `example` chose; None where it cannot be made again."""
        mix = mix_of(example.variant)
        if mix is None or example.seed is None:
            return None
        plan = self._plan(*mix, example.seed)
        if plan is None or example.chosen not in plan.images:
            return None
        place = place_of(plan, example.chosen)
        partner = partner_of(plan, place)
        files = {name: self.archive.file(self.run.data, name) for name in (example.chosen, partner)}
        if None in files.values():
            return None
        try:
            pixels = mix_one(plan, place, files)
        except (InputError, OSError, ValueError):
            return None
        return Mixed(small_jpeg(pixels), partner, 100 * float(plan.true_ratio[place]))

    def _make_plan(self, method: str, ratio: float, seed: int) -> MixingPlan | None:
        try:
            return make_plan(self._images, method, ratio, seed, self.run.results["protocol"])
        except InputError:
            return None

    @functools.cached_property
    def _images(self) -> list[str]:
        return read_image_order(self.run.path.parent / PER_QUERY_FILE)
