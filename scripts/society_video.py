"""Makes the film of the README: a society without and with the mechanism that a principal found, side by side.

    python scripts/society_video.py outputs/cleanup/<run>/s0

The run is one of a principal. A society adapts to no mechanism, and another to the best one that the run found; both
play the same seeded episode (`llmrl-evaluate --mechanism none,best --video`). Writes `docs/figures/society.webp`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import imageio.v3
import numpy as np
from PIL import Image

from llmrl.evaluation.evaluate_run import evaluate_run
from llmrl.evaluation.settings import EvaluationSettings

VIDEO_TAG = Path(__file__).parents[1] / "docs" / "figures" / "society.webp"
MAX_FRAMES = 110
MAX_BYTES = 1_500_000
FPS = 9
LAST_FRAME_MS = 2500


def write_small_video(frames: np.ndarray, file: Path) -> None:
    """Write frames [n, height, width, 3] uint8 as an animated WebP; quality and frames are reduced to `MAX_BYTES`."""
    indices = sorted({round(i) for i in np.linspace(0, len(frames) - 1, min(MAX_FRAMES, len(frames)))})
    pictures = [Image.fromarray(frames[i]) for i in indices]
    for quality, stride in ((80, 1), (65, 1), (50, 1), (35, 1), (35, 2), (35, 4), (35, 8)):
        first, *rest = pictures[:-1:stride] + pictures[-1:]
        times = [round(stride * 1000 / FPS)] * len(rest) + [LAST_FRAME_MS]
        first.save(file, save_all=True, append_images=rest, duration=times, loop=0, quality=quality, method=2)
        if file.stat().st_size <= MAX_BYTES:
            return


def main() -> None:
    """Play, draw, and copy the small film into the documentation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run with a principal")
    parser.add_argument("--seed", type=int, default=1000, help="of the episode (default 1000)")
    parser.add_argument("--steps", type=int, default=None, help="steps of it (default: the whole episode)")
    parser.add_argument("--out", type=Path, default=VIDEO_TAG, help="file to write (default: that of the README)")
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
        write_small_video(imageio.v3.imread(Path(folder) / "videos" / "side_by_side.mp4"), asked.out)
    sys.stdout.write("\n".join([*found["sentences"], f"{asked.out}: {asked.out.stat().st_size / 1e6:.2f} MB"]) + "\n")


if __name__ == "__main__":
    main()
