"""Processes of a run, played by threads: for code that asks for its process and gathers, without a cluster."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class Threads:
    """`jax` tells which process it is; `gather` and `run` stand in for those of `rococo_jax.processes`."""

    def __init__(self, count: int):
        self.count, self.barrier, self.slots = count, threading.Barrier(count, timeout=60), [None] * count
        self.own = threading.local()
        self.jax = SimpleNamespace(process_index=lambda: self.own.index, process_count=lambda: count)

    def gather(self, what: str, make: Callable[[], Any]) -> list[Any]:
        """What all made, in the order of processes."""
        self.slots[self.own.index] = make()
        self.barrier.wait()
        made = list(self.slots)
        self.barrier.wait()
        return made

    def run(self, what: str, make: Callable[[], Any]) -> Any:
        """What this one made, once all have."""
        return self.gather(what, make)[self.own.index]

    def start(self, work: Callable[[], Any]) -> list[Any]:
        """What `work` returns in each; an exception of one is raised."""
        results: list[Any] = [None] * self.count

        def be(index: int) -> None:
            self.own.index = index
            try:
                results[index] = work()
            except BaseException as error:
                results[index] = error
                self.barrier.abort()

        threads = [threading.Thread(target=be, args=(index,)) for index in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results
