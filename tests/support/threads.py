"""Stand in for the processes of a run with threads: for code that gathers, without a cluster."""

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
        """Return the values of all processes, in their order."""
        self.slots[self.own.index] = make()
        self.barrier.wait()
        made = list(self.slots)
        self.barrier.wait()
        return made

    def run(self, what: str, make: Callable[[], Any]) -> Any:
        """Return the value of this process, once all have one."""
        return self.gather(what, make)[self.own.index]

    def start(self, work: Callable[[], Any]) -> list[Any]:
        """Return the result of `work` in each process; raise the exception of any."""
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
