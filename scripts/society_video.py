"""Create the video of the README: a society without a mechanism and with the best mechanism of a run, side by side.

    python scripts/society_video.py outputs/cleanup/<run>/s0

The run must have a principal. One society adapts without a mechanism, and another with the best mechanism of the run.
Both play the same seeded episode (`llmrl-evaluate --mechanism none,best --video`). Writes `docs/figures/society.webp`.
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

VIDEO_PATH = Path(__file__).parents[1] / "docs" / "figures" / "society.webp"
MAX_FRAMES = 110
MAX_BYTES = 1_500_000
FPS = 9
LAST_FRAME_MS = 2500


def write_small_video(frames: np.ndarray, file: Path) -> None:
    """Write an animated WebP of at most `MAX_BYTES`, with reduced quality or frame rate if necessary.

    Args:
        frames: frames [n, height, width, 3], uint8.
        file: file to write.
    """
    indices = sorted({round(i) for i in np.linspace(0, len(frames) - 1, min(MAX_FRAMES, len(frames)))})
    images = [Image.fromarray(frames[i]) for i in indices]
    for quality, stride in ((80, 1), (65, 1), (50, 1), (35, 1), (35, 2), (35, 4), (35, 8)):
        first, *other_images = images[:-1:stride] + images[-1:]
        durations = [round(stride * 1000 / FPS)] * len(other_images) + [LAST_FRAME_MS]
        first.save(
            file, save_all=True, append_images=other_images, duration=durations, loop=0, quality=quality, method=2
        )
        if file.stat().st_size <= MAX_BYTES:
            return


def main() -> None:
    """Play the episode, and write the video."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run with a principal")
    parser.add_argument("--seed", type=int, default=1000, help="seed of the episode (default 1000)")
    parser.add_argument("--steps", type=int, default=None, help="number of steps (default: the complete episode)")
    parser.add_argument("--out", type=Path, default=VIDEO_PATH, help="file to write (default: the video of the README)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = EvaluationSettings(
            episodes=1,
            seed=args.seed,
            mechanisms=("none,best",),
            video=True,
            video_steps=args.steps,
            out=Path(folder),
        )
        evaluation = evaluate_run(args.run, settings, lambda text, rows=(): None)
        write_small_video(imageio.v3.imread(Path(folder) / "videos" / "side_by_side.mp4"), args.out)
    sys.stdout.write(
        "\n".join([*evaluation["sentences"], f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB"]) + "\n"
    )


if __name__ == "__main__":
    main()
