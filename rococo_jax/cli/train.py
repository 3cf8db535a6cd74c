"""`rococo train`: contrastive training with the SC and VC losses."""

import contextlib
import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from rococo_jax.cli.outputs import output_folder
from rococo_jax.errors import InputError
from rococo_jax.options import Option

EXAMPLES = """\
  rococo train --config scenes_tiny --workdir runs/tiny
  rococo train --config scenes_tiny --workdir runs/tiny --dry-run
  rococo train --config coco_finetune --workdir runs/sc-vc --plan --topology v5e:4x4
  rococo train --config coco_lit --workdir runs/lit-sc-vc --config.init.model=models/joined \\
      --config.data.images=coco/images --config.data.captions=captions.json \\
      --config.losses.vc.weight=7 --config.data.resize_prob=0.5
A run that was stopped resumes when the same command is run again.
"""
# Exit code of a run that diverged: the same command would diverge again, so launchers do not restart it.
DIVERGED = 3
# Let libtpu compile without a chip: do not look for one, take no lock (several plans may run at once), log nothing.
_LIBTPU_WITHOUT_CHIPS = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Train a dual encoder: contrastive, with altered captions (SC) and mixed images (VC) as further negatives.

    Attributes:
        config: Python file with get_config(), or the name of a config that comes with the project, as scenes_tiny
        workdir: checkpoints, logs, and at the end the model
        config_key: override a key of the config, as --config.batch_size=512
        dry_run: print every key with its value, and train nothing
        plan: compile a step, print whether it fits and what limits it, its memory, FLOPs and collectives; train nothing
        topology: plan for devices that are not here: v5e:4x4 and the like (needs libtpu), or h100:8 (jax[cuda12])
        json: print the plan as JSON
        device: cpu, gpu (cuda, rocm) or tpu (default: the fastest there is)
        quiet: no progress; errors and warnings are still printed
    """

    config: Annotated[str, Option("FILE")]
    workdir: Annotated[str, Option("DIR", check=output_folder)]
    config_key: Annotated[str | None, Option("VALUE", flag="config.KEY")] = None
    dry_run: bool = False
    plan: bool = False
    topology: Annotated[str | None, Option("NAME", needs=("plan",))] = None
    json: Annotated[bool, Option(needs=("plan",))] = False
    device: Annotated[str | None, Option("KIND")] = None
    quiet: bool = False


def run(options: Options, overrides: Sequence[str]) -> int:
    """Start the run, or resume it if the working directory has one."""
    if options.plan and not options.dry_run:
        return _plan(options, overrides)
    from rococo_jax.processes import distributed_run
    from rococo_jax.runtime import enable_compilation_cache, set_gpu_options
    from rococo_jax.training.config import flat, read_config

    config = read_config(options.config, overrides)
    if options.dry_run:
        for key, value in sorted(flat(config).items()):
            print(f"{key} = {value!r}")
        return 0
    _note_settings_without_effect(config, overrides)
    set_gpu_options()
    with distributed_run():
        enable_compilation_cache()
        return _run(config, Path(options.workdir))


def _note_settings_without_effect(config, overrides: Sequence[str]) -> None:
    """Print which settings of the command line have no effect: those of losses that are off."""
    from rococo_jax.progress import say
    from rococo_jax.training.config import settings_without_effect

    for name, need in settings_without_effect(config):
        if any(word.lstrip("-").removeprefix("config.").partition("=")[0] == name for word in overrides):
            say(f"config.{name} has no effect {need.otherwise}")


def _plan(options: Options, overrides: Sequence[str]) -> int:
    import json

    with _silenced_libraries():
        import jax

        if options.topology:  # only compilers are needed, so no device is started
            jax.config.update("jax_platforms", "cpu")
            for name, value in _LIBTPU_WITHOUT_CHIPS.items():
                os.environ.setdefault(name, value)
        from rococo_jax.runtime import set_gpu_options
        from rococo_jax.training.config import read_config
        from rococo_jax.training.plan import describe, plan

        set_gpu_options()
        numbers = plan(read_config(options.config, overrides), options.topology)
    print(json.dumps(numbers) if options.json else "\n".join(describe(numbers)))
    return 0


@contextlib.contextmanager
def _silenced_libraries() -> Iterator[None]:
    """Hide what compilers print to standard error about chips that are not here; messages of Python still appear.

    If the block raises an unexpected error, the hidden text is printed after all.
    """
    if sys.stderr is not sys.__stderr__:  # captured by a test or a notebook, which does not see what libraries print
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as hidden, os.fdopen(os.dup(terminal), "w", buffering=1) as messages:
        os.dup2(hidden.fileno(), 2)
        try:
            with contextlib.redirect_stderr(messages):
                yield
        except Exception as error:
            if not isinstance(error, InputError):
                hidden.seek(0)
                os.write(terminal, hidden.read())
            raise
        finally:
            os.dup2(terminal, 2)
            os.close(terminal)


def _run(config, workdir: Path) -> int:
    import jax

    from rococo_jax.progress import say
    from rococo_jax.sweep.train import train
    from rococo_jax.training.hooks import Diverged

    devices = f"{jax.device_count()} {jax.devices()[0].platform} device(s)"
    if jax.process_count() > 1:
        devices += f", process {jax.process_index()} of {jax.process_count()}"
    say(f"training in {workdir}: {config.steps} steps of {config.batch_size} images on {devices}")
    try:
        run = train(config, workdir, raise_signal=False)
    except Diverged as error:
        print(f"rococo: {error}", file=sys.stderr)
        return DIVERGED
    if run.model is None:
        print(f"stopped after step {run.step}, which is saved; run the same command again to resume", file=sys.stderr)
        return 130 if run.stopped == "SIGINT" else 0
    print(f"model: {run.model}")
    return 0
