"""Startup time of `llmrl-train --cfg job` and `--help`, compared with minimal Hydra apps.

One minimal app has no config. The other has only the option files of this package, because the help of Hydra reads
every option of every group. Measurements alternate. Target: at most 1.5 times the duration of a minimal app.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EMPTY_APP = """
import hydra
@hydra.main(config_path=None, version_base="1.3")
def app(config): pass
app()
"""
LLMRL_OPTION_APP = EMPTY_APP.replace("config_path=None", 'config_path="pkg://llmrl.conf", config_name="train"')
ROUNDS = 7


def measure_seconds(command: list[str]) -> float:
    """Return the duration of a command, seconds."""
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        apps = {}
        for name, source in (("no config", EMPTY_APP), ("same files", LLMRL_OPTION_APP)):
            apps[name] = Path(folder) / f"{name.replace(' ', '_')}.py"
            apps[name].write_text(source)
        commands = {name: [sys.executable, str(path)] for name, path in apps.items()}
        commands["llmrl-train"] = [sys.executable, "-m", "llmrl.cli.train"]
        for option in (["--cfg", "job"], ["--help"]):
            rounds = []
            for i in range(ROUNDS + 1):
                row = [measure_seconds([*command, *option]) for command in commands.values()]
                if i:  # the first round warms the disk cache
                    rounds.append(row)
            times = [statistics.median(column) for column in zip(*rounds, strict=True)]
            ratios = [statistics.median(row[-1] / row[app] for row in rounds) for app in (0, 1)]
            print(
                f"{' '.join(option):10} "
                + "   ".join(f"{name} {t:.2f} s" for name, t in zip(commands, times, strict=True))
                + f"   llmrl-train / no config {ratios[0]:.2f}   / same files {ratios[1]:.2f}   (target <= 1.5)"
            )


if __name__ == "__main__":
    main()
