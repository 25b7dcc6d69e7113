"""Pictures of particle worlds, drawn in NumPy."""

from __future__ import annotations

import numpy as np

from llmrl.envs.particles.scenario import DARK

SIDE = 320  # pixels
VIEW = 1.25  # half-width of what is shown, units, unless somebody is further out
_PAPER, _FRAME = 244, 205
_SMALLEST = 7.0  # radius that can still be told apart, pixels
_OUTLINE = 3.0  # pixels


def draw(position: np.ndarray, size: np.ndarray, fill: np.ndarray, outline: np.ndarray) -> np.ndarray:
    """Discs at `position` [E, 2] with radius `size` [E] and colours [E, 3], as [320, 320, 3] uint8; y points up.

    The view is the square of half-width 1.25 around the origin, wider if a disc would not fit. The frame in it is the
    square of half-width 1 in which games start. Large discs are drawn first, so that none hides a smaller one.
    """
    half = max(VIEW, float(np.max(np.abs(position) + size[:, None], initial=0.0)))
    scale = SIDE / 2 / half
    image = np.full((SIDE, SIDE, 3), _PAPER, dtype=np.uint8)
    low, high = round(SIDE / 2 - scale), round(SIDE / 2 + scale) - 1
    image[[low, high], low : high + 1] = _FRAME
    image[low : high + 1, [low, high]] = _FRAME
    y, x = np.mgrid[:SIDE, :SIDE] + 0.5
    for i in np.argsort(-size, kind="stable"):
        radius = max(float(size[i]) * scale, _SMALLEST)
        distance = np.hypot(x - (SIDE / 2 + position[i, 0] * scale), y - (SIDE / 2 - position[i, 1] * scale))
        image[distance <= radius] = DARK
        image[distance <= radius - 1] = outline[i]
        image[distance <= radius - _OUTLINE] = fill[i]
    return image
