"""The step as compiled programs, one for each length that texts are padded to, each compiled once.

On accelerators all are compiled before the first step, so that no bucket stops a pod in the middle of a run: lowered
one after the other, longest first, and compiled side by side in threads, since the compiler does not hold Python's
lock. Large batches never use the shortest; with a shared compilation cache these cost their time once. On CPUs the
compiler runs on the cores that train, a small batch may only ever need one bucket, and there is no pod to stop: each
is compiled when its first batch comes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
from jax.sharding import Mesh

from rococo_jax.cores import usable_cores
from rococo_jax.processes import barrier
from rococo_jax.progress import say
from rococo_jax.training.batch import Batch
from rococo_jax.training.state import TrainState
from rococo_jax.training.step import Step
from rococo_jax.training.text_padding import shape_at, text_tokens
from rococo_jax.training.throughput import Meter, step_bytes

# The program of a lowered step for batches of some shapes, and a line about its memory; raises InputError where a
# device has no room.
CompileStep = Callable[[jax.stages.Lowered, Batch], tuple[jax.stages.Compiled, str]]


class Programs:
    """Compiles the step and keeps its programs.

    Args:
        step: from `training.step.make_step`.
        frozen: the parameters that are not trained.
        mesh: the devices.
        meter: told the time and the memory.
        lengths: that texts of batches may be padded to; () where it is that of the first batch alone.
        compile_step: compiles one of them.
        ahead: whether all lengths are compiled when the first batch comes.
    """

    def __init__(
        self,
        step: Step,
        frozen: Mapping[str, jax.Array],
        mesh: Mesh,
        lengths: Sequence[int],
        compile_step: CompileStep,
        meter: Meter,
        ahead: bool,
    ):
        self.step, self.frozen, self.mesh, self.lengths, self.meter = step, frozen, mesh, lengths, meter
        self.compile_step, self.ahead = compile_step, ahead
        self._compiled: dict[int, jax.stages.Compiled] = {}

    def of(self, state: TrainState, batch: Batch) -> jax.stages.Compiled:
        """The program for a batch that lies on the devices. All processes must call it.

        Raises InputError: it takes more memory than a device has.
        """
        tokens = text_tokens(batch)
        if tokens not in self._compiled:
            first = not self._compiled
            with self.meter.paused("compiling"):
                self._compile({tokens, *(self.lengths if self.ahead else ())}, state, batch)
                # CPU processes must reach a program's first exchange within 30 seconds of each other, and some compile
                # faster than others.
                barrier("the first step")
            for compiled in self._compiled.values():
                self.meter.hold(step_bytes(compiled))
            if first:
                self.meter.restart()
        return self._compiled[tokens]

    def _compile(self, lengths: set[int], state: TrainState, batch: Batch) -> None:
        begun, longest_first = time.perf_counter(), sorted(lengths, reverse=True)

        def compile_lowered(lowered: jax.stages.Lowered, shapes: Batch, start: float):
            return *self.compile_step(lowered, shapes), time.perf_counter() - start

        with ThreadPoolExecutor(min(len(lengths), usable_cores()), thread_name_prefix="compile") as pool:
            waiting = {}
            for tokens in longest_first:
                start, shapes = time.perf_counter(), shape_at(batch, tokens)
                lowered = self.step.lower(state, self.frozen, shapes)
                waiting[tokens] = pool.submit(compile_lowered, lowered, shapes, start)
            try:
                done = {tokens: program.result() for tokens, program in waiting.items()}
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        self._compiled |= {tokens: compiled for tokens, (compiled, _, _) in done.items()}
        if jax.process_index() == 0:
            say(done[longest_first[0]][1])
            times = [f"{tokens} tokens in {done[tokens][2]:.1f} s" for tokens in longest_first if tokens]
            of_texts = f" (texts of {', '.join(times)})" if times else ""
            count = f"{len(done)} program{'s' if len(done) > 1 else ''}"
            say(f"compiled {count} in {time.perf_counter() - begun:.1f} s{of_texts}")
