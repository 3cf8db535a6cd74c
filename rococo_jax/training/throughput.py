"""How fast a run is: images a second, and the share of the chips' peak.

    share = FLOPs of the compiled step / (seconds a step * devices * peak)
    bytes = arguments + temporaries + results that lie nowhere else, of the compiled step on one device

FLOPs are XLA's count for one device's program; peaks are the vendors' dense bfloat16 figures.
"""

import time

import jax

# TFLOP/s a device, dense bfloat16: Google Cloud's TPU pages and NVIDIA's data sheets (SXM forms).
PEAK_TFLOPS = {
    "TPU v4": 275.0,
    "TPU v5 lite": 197.0,
    "TPU v5e": 197.0,
    "TPU v5p": 459.0,
    "TPU v5": 459.0,
    "TPU v6 lite": 918.0,
    "TPU v6e": 918.0,
    "NVIDIA A100": 312.0,
    "NVIDIA H100": 989.0,
    "NVIDIA H200": 989.0,
}


def peak_flops(device: jax.Device) -> float | None:
    """FLOP/s of a device, None where it is not in the table (a CPU's peak is anybody's guess)."""
    kinds = [kind for kind in PEAK_TFLOPS if device.device_kind.startswith(kind)]
    return PEAK_TFLOPS[max(kinds, key=len)] * 1e12 if kinds else None


def step_bytes(compiled: jax.stages.Compiled) -> int | None:
    """Bytes of a device's memory that a compiled step takes, None where the compiler does not say.

    Frozen parameters that the step does not read (towers, where it trains on their features) are no part of it.
    """
    found = compiled.memory_analysis()
    if found is None:
        return None
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + found.temp_size_in_bytes + results


class Meter:
    """Counts steps between two readings.

    Args:
        images: images of a global batch.
        flops: of a step on one device, None where nobody counted.
        memory: bytes that a step takes on one device, None where nobody knows.
    """

    def __init__(self, images: int, flops: float | None, memory: int | None = None):
        self.images, self.flops, self.memory = images, flops, memory
        self.peak = peak_flops(jax.devices()[0])
        self.start, self.steps = time.perf_counter(), 0

    def count(self) -> None:
        """One step more."""
        self.steps += 1

    def pause(self, seconds: float) -> None:
        """Leaves out time that was spent on something else."""
        self.start += seconds

    def read(self) -> dict[str, float]:
        """Figures since the last reading."""
        now = time.perf_counter()
        seconds = max(now - self.start, 1e-9) / max(self.steps, 1)
        self.start, self.steps = now, 0
        rate = self.images / seconds
        figures = {
            "images_per_second": rate,
            "images_per_second_per_device": rate / jax.device_count(),
            "seconds_per_step": seconds,
        }
        if self.flops and self.peak:
            figures["share_of_peak"] = self.flops / seconds / self.peak
        if self.memory is not None:
            figures["memory_bytes_per_device"] = self.memory
        return figures
