"""Start-up time of `llmrl-train --cfg job` and `--help` against a bare Hydra app, in turn, in one run.

The bare app composes one empty config; the target is at most 1.5 times its time.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BARE = """
import hydra
@hydra.main(config_path=None, version_base="1.3")
def app(config): pass
app()
"""
ROUNDS = 7


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text(BARE)
        train = [sys.executable, "-m", "llmrl.cli.train"]  # the console script does the same
        for option in (["--cfg", "job"], ["--help"]):
            pairs = []
            for i in range(ROUNDS + 1):
                pair = seconds([sys.executable, str(bare), *option]), seconds([*train, *option])
                if i:  # the first round warms the disk cache
                    pairs.append(pair)
            ratio = statistics.median(b / a for a, b in pairs)
            medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
            print(
                f"{' '.join(option):10}  bare Hydra {medians[0]:.2f} s   llmrl-train {medians[1]:.2f} s   "
                f"median ratio {ratio:.2f} (target <= 1.5)"
            )


if __name__ == "__main__":
    main()
