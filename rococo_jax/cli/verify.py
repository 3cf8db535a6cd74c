"""`rococo verify`: audit a folder of benchmark annotations."""

import dataclasses
from typing import Annotated

from rococo_jax.cli.outputs import output_file
from rococo_jax.options import Option

EXAMPLES = """\
  rococo verify --annotations rococo/annotations
  rococo verify --annotations rococo/annotations --images coco/images --out verified.json
  rococo verify --annotations sugar_crepe --images coco/images"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Count, hash and check benchmark annotations, without correcting anything.

    Attributes:
        annotations: folder of annotation files
        images: folder of images, to count missing ones
        out: write the complete report, with examples, as JSON
    """

    annotations: Annotated[str, Option("DIR")]
    images: Annotated[str | None, Option("DIR")] = None
    out: Annotated[str | None, Option("FILE", check=output_file)] = None


def run(options: Options) -> None:
    """Print the report. Irregularities are reported and are not errors."""
    from pathlib import Path

    from rococo_jax.benchmarks.audit import audit, audit_lines
    from rococo_jax.storage import write_json

    report = audit(Path(options.annotations), None if options.images is None else Path(options.images))
    if options.out:
        write_json(options.out, {"annotations": options.annotations, **report})
    print("\n".join(audit_lines(report)))
