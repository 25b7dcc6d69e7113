"""Event files of evaluations for TensorBoard: one point of each number, and the episode as a picture."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from llmrl.core.errors import RunFolderError
from llmrl.run.tensorboard_file import EventFile

EPISODE = "evaluation/episode"
FIRST_FRAME = "evaluation/first_frame"
GIF_BYTES = 5_000_000
"""Maximum size of the animation in the event file, bytes; TensorBoard sends all of it to each browser."""
_FEW_FRAMES = 40


def write_evaluation(folder: Path, x: int, scalars: Mapping[str, float], gif: Path | None = None) -> None:
    """Write the event file of an evaluation, replacing an earlier one.

    Args:
        folder: folder of the evaluation, inside the run folder: TensorBoard shows it as another run,
            `<run>/evaluation`.
        x: x coordinate of the run's evaluations and proposals in TensorBoard (`metrics.place_of`).
        scalars: numbers by tag; with a tag of the run's own curves, the point is in their chart.
        gif: animation of an episode; None: there is none.

    Raises:
        RunFolderError: `folder` is a run folder itself, whose curves would be lost.
    """
    if (folder / "config.yaml").exists():
        raise RunFolderError(
            f"{folder} is a run folder; an evaluation needs a folder of its own, such as {folder}/evaluation"
        )
    now = time.time()
    events = EventFile(folder, started=now)
    events.scalars(x, now, scalars)
    if gif is not None:
        animation, first_frame, size = pictures(gif)
        events.image(x, now, EPISODE, animation, size)
        events.image(x, now, FIRST_FRAME, first_frame, size)
    events.publish()
    events.close()


def pictures(gif: Path, max_bytes: int = GIF_BYTES) -> tuple[bytes, bytes, tuple[int, int]]:
    """Return the animation with at most `max_bytes` bytes, its first frame as PNG, and their (height, width)."""
    import imageio.v3 as iio

    animation = gif.read_bytes()
    frames = iio.imread(gif, index=None)  # [frames, height, width, 3]
    duration = float(iio.immeta(gif).get("duration", 50))  # milliseconds of a frame
    while len(animation) > max_bytes and frames.size > frames.shape[-1]:
        if len(frames) > _FEW_FRAMES:
            frames, duration = frames[::2], 2 * duration
        else:
            frames = frames[:, ::2, ::2]
        animation = iio.imwrite("<bytes>", frames, extension=".gif", duration=duration, loop=0)
    first_frame = iio.imwrite("<bytes>", frames[0], extension=".png")
    return animation, first_frame, (frames.shape[1], frames.shape[2])
