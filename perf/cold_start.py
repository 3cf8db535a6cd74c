"""Time the first commands of a new user, each in a new process: `rococo --help`, the import, a first embedding.

    python perf/cold_start.py [--rounds 5]

The results are medians of seconds. After the first round, programs come from the compilation cache, as in a user's
second command; `first_embedding_uncached` is the first round, with an empty cache.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

_EMBED = "from rococo_jax.encoders import load_model; load_model('demo:plain').encode_text(['a red ball'])"
COMMANDS = {
    "help": ["-m", "rococo_jax", "--help"],
    "import": ["-c", "import rococo_jax"],
    "first_embedding": ["-c", f"from rococo_jax.runtime import enable_compilation_cache as on; on(); {_EMBED}"],
}


def seconds(words: list[str], cache: str) -> float:
    start = time.perf_counter()
    environment = {**os.environ, "ROCOCO_CACHE": cache, "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    subprocess.run([sys.executable, *words], env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as cache:
        times = {name: [seconds(words, cache) for _ in range(rounds + 1)] for name, words in COMMANDS.items()}
    figures = {name: round(statistics.median(each[1:]), 2) for name, each in times.items()}
    print(json.dumps({**figures, "first_embedding_uncached": round(times["first_embedding"][0], 2)}))


if __name__ == "__main__":
    main()
