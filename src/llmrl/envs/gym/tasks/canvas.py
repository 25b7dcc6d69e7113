"""Rendering of rectangles, discs and lines with NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Color = tuple[int, int, int]
PAPER: Color = (250, 250, 247)
INK: Color = (45, 48, 56)
GRAY: Color = (205, 206, 203)
BLUE: Color = (66, 112, 190)
GREEN: Color = (76, 155, 96)
RED: Color = (200, 78, 66)


class Canvas:
    """An `image` [height, width, 3] uint8 and methods that draw on it; (x, y) are pixels from the upper left corner."""

    def __init__(self, width: int, height: int, color: Color = PAPER) -> None:
        self.image: NDArray[np.uint8] = np.empty((height, width, 3), dtype=np.uint8)
        self.image[:] = color
        y, x = np.mgrid[:height, :width]
        self._x, self._y = x + 0.5, y + 0.5

    def draw_rectangle(self, x: float, y: float, width: float, height: float, color: Color) -> None:
        """Draw a filled rectangle whose upper left corner is (x, y); parts outside the image are omitted."""
        rows = slice(max(round(y), 0), max(round(y + height), 0))
        self.image[rows, max(round(x), 0) : max(round(x + width), 0)] = color

    def draw_disc(self, x: float, y: float, radius: float, color: Color) -> None:
        """Draw a filled disc with the center (x, y)."""
        self.image[np.hypot(self._x - x, self._y - y) <= radius] = color

    def draw_line(self, start: tuple[float, float], end: tuple[float, float], color: Color, width: float = 3.0) -> None:
        """Draw a line segment with round ends between the points `start` and `end`, each (x, y)."""
        (x0, y0), (x1, y1) = start, end
        dx, dy = x1 - x0, y1 - y0
        squared_length = max(dx * dx + dy * dy, 1e-9)
        fraction = np.clip(((self._x - x0) * dx + (self._y - y0) * dy) / squared_length, 0, 1)
        distance = np.hypot(self._x - x0 - fraction * dx, self._y - y0 - fraction * dy)
        self.image[distance <= width / 2] = color
