"""Simple drawings in NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Colour = tuple[int, int, int]
PAPER: Colour = (250, 250, 247)
INK: Colour = (45, 48, 56)
GREY: Colour = (205, 206, 203)
BLUE: Colour = (66, 112, 190)
GREEN: Colour = (76, 155, 96)
RED: Colour = (200, 78, 66)


class Canvas:
    """A picture [height, width, 3] uint8 that things are drawn on, in pixels from the upper left corner."""

    def __init__(self, width: int, height: int, colour: Colour = PAPER) -> None:
        self.image: NDArray[np.uint8] = np.empty((height, width, 3), dtype=np.uint8)
        self.image[:] = colour
        y, x = np.mgrid[:height, :width]
        self._x, self._y = x + 0.5, y + 0.5

    def box(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        """A rectangle whose upper left corner is at (x, y); what lies outside of the picture is cut off."""
        rows = slice(max(round(y), 0), max(round(y + height), 0))
        columns = slice(max(round(x), 0), max(round(x + width), 0))
        self.image[rows, columns] = colour

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        self.image[np.hypot(self._x - x, self._y - y) <= radius] = colour

    def line(self, start: tuple[float, float], end: tuple[float, float], colour: Colour, width: float = 3.0) -> None:
        """A segment with round ends."""
        (x0, y0), (x1, y1) = start, end
        dx, dy = x1 - x0, y1 - y0
        length = max(dx * dx + dy * dy, 1e-9)
        along = np.clip(((self._x - x0) * dx + (self._y - y0) * dy) / length, 0, 1)
        distance = np.hypot(self._x - x0 - along * dx, self._y - y0 - along * dy)
        self.image[distance <= width / 2] = colour
