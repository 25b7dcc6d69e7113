"""Start-up time of `llmrl-train --cfg job` and `--help` against bare Hydra apps, in turn, in one run.

Two bare apps: one without any config, and one that has this package's option files and nothing else, because Hydra's
help reads every option of every group. The target is at most 1.5 times the time of a bare app.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EMPTY = """
import hydra
@hydra.main(config_path=None, version_base="1.3")
def app(config): pass
app()
"""
SAME_FILES = EMPTY.replace("config_path=None", 'config_path="pkg://llmrl.conf", config_name="train"')
ROUNDS = 7


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        apps = {}
        for name, source in (("no config", EMPTY), ("same files", SAME_FILES)):
            apps[name] = Path(folder) / f"{name.replace(' ', '_')}.py"
            apps[name].write_text(source)
        commands = {name: [sys.executable, str(path)] for name, path in apps.items()}
        commands["llmrl-train"] = [sys.executable, "-m", "llmrl.cli.train"]
        for option in (["--cfg", "job"], ["--help"]):
            rounds = []
            for i in range(ROUNDS + 1):
                row = [seconds([*command, *option]) for command in commands.values()]
                if i:  # the first round warms the disk cache
                    rounds.append(row)
            times = [statistics.median(column) for column in zip(*rounds, strict=True)]
            ratios = [statistics.median(row[-1] / row[k] for row in rounds) for k in (0, 1)]
            print(
                f"{' '.join(option):10} "
                + "   ".join(f"{name} {t:.2f} s" for name, t in zip(commands, times, strict=True))
                + f"   llmrl-train / no config {ratios[0]:.2f}   / same files {ratios[1]:.2f}   (target <= 1.5)"
            )


if __name__ == "__main__":
    main()
