"""Makes the film of the README: a society without and with the mechanism that a principal found, side by side.

    python scripts/society_video.py outputs/cleanup/<run>/s0

The run is one of a principal. A society adapts to no mechanism, and another to the best one that the run found; both
play the same seeded episode (`llmrl-evaluate --mechanism none,best --video`). Writes `docs/figures/society.webp`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from llmrl.evaluation.evaluate_run import evaluate_run
from llmrl.evaluation.settings import EvaluationSettings
from llmrl.evaluation.videos import SIDE_BY_SIDE

FILM = Path(__file__).parents[1] / "docs" / "figures" / "society.webp"


def main() -> None:
    """Play, draw, and copy the small film into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run with a principal")
    parser.add_argument("--seed", type=int, default=1000, help="of the episode (default 1000)")
    parser.add_argument("--steps", type=int, default=None, help="steps of it (default: the whole episode)")
    parser.add_argument("--out", type=Path, default=FILM, help="file to write (default: that of the README)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = EvaluationSettings(
            episodes=1,
            seed=asked.seed,
            mechanisms=("none,best",),
            video=True,
            video_steps=asked.steps,
            out=Path(folder),
        )
        found = evaluate_run(asked.run, settings, lambda text, rows=(): None)
        shutil.copy(Path(folder) / "videos" / f"{SIDE_BY_SIDE}.webp", asked.out)
    sys.stdout.write("\n".join([*found["sentences"], f"{asked.out}: {asked.out.stat().st_size / 1e6:.2f} MB"]) + "\n")


if __name__ == "__main__":
    main()
