"""Pictures of societies during an episode: world, payoffs of agents, levels over time, and objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.core.frames import LazyFrames, font, scale_to_width, wrap_text

Color = tuple[int, int, int]


@dataclass(frozen=True)
class EpisodeMoment:
    """The state of an episode after a number of steps.

    Attributes:
        step: number of steps so far.
        objective: objective of the principal, as if the episode ended now.
        payoffs: rewards of the game so far, before the mechanism, [n_agents].
        counts: sums of metrics over the steps so far, by name.
        levels: values of metrics in the last step, by name; empty before the first step.
    """

    step: int
    objective: float
    payoffs: np.ndarray
    counts: Mapping[str, float]
    levels: Mapping[str, float]


@dataclass(frozen=True)
class SocietyEpisode:
    """A society in an episode, to be drawn.

    Attributes:
        title: short name.
        sentence: effect of the mechanism.
        worlds: picture for each moment, [height, width, 3] uint8.
        moments: moments from before the first step to after the last.
    """

    title: str
    sentence: str
    worlds: Sequence[np.ndarray]
    moments: Sequence[EpisodeMoment]


@dataclass(frozen=True)
class PictureSettings:
    """Properties that the societies of one picture share.

    Attributes:
        horizon: steps of an episode; None: unknown.
        objective: description of the objective.
        payoff: description of the game's rewards; empty: unknown.
        colors: colors of the agents in the world, [n_agents, 3]; None: pictures do not distinguish agents.
    """

    horizon: int | None
    objective: str
    payoff: str = ""
    colors: np.ndarray | None = None


LEVELS: Mapping[str, tuple[str, Color]] = {
    "apples_live": ("apples", (200, 45, 45)),
    "dirt": ("dirt", (20, 140, 130)),
}
"""Metrics of a step that are drawn over time if the environment has them, with their display names and colors."""

SINGLE_WIDTH, SIDE_BY_SIDE_WIDTH = 640, 400
"""Width of a society that is shown alone, and side by side with others; pixels."""
_MARGIN, _RULE = 10, 4
_TITLE, _TEXT, _SMALL = 18, 14, 13
"""Font sizes."""
_LINE, _ROW = 18, 15
"""Heights of a line of text and of an agent's row, pixels."""
_PLOT = 96
"""Height of the plot of objectives, and minimum height of the plots of agents and levels; pixels."""
_NUMBER, _LABEL = 78, 130
"""Width of the objective's number at the end of its curve, and of the step above it; pixels."""
_INK: Color = (30, 30, 30)
_FAINT: Color = (120, 120, 120)
_GRID: Color = (222, 222, 222)
_LINES: Sequence[Color] = ((100, 100, 100), (31, 119, 180), (214, 110, 20), (44, 140, 60))
_BARS: Color = (31, 119, 180)
_TINY = 1e-9
"""Smallest range of values that is drawn to scale."""
_SMOOTH = 3
"""Factor by which curves are drawn larger and then reduced, which smooths them."""


class SocietyPictures(LazyFrames):
    """Pictures of societies side by side in episodes of one length, with their objectives in one plot below.

    Args:
        societies: societies to draw.
        setting: properties that they share.
    """

    def __init__(self, societies: Sequence[SocietyEpisode], setting: PictureSettings) -> None:
        self.societies, self.setting = societies, setting
        self.width = SINGLE_WIDTH if len(societies) == 1 else SIDE_BY_SIDE_WIDTH
        worlds = [scale_to_width(society.worlds[0], self.width) for society in societies]
        self._world = max(world.shape[0] for world in worlds)
        text_width = self.width - 2 * _MARGIN
        self._sentences = [wrap_text(society.sentence, text_width, font(_TEXT)) for society in societies]
        self._rows = max(map(len, self._sentences))
        agents = len(societies[0].moments[0].payoffs)
        self._plot = max(_PLOT, agents * _ROW)
        self._top = _MARGIN + 26 + self._rows * _LINE + 6
        self._below = self._top + self._world + 8
        self._strip = self._below + _LINE + 4 + self._plot + _LINE + 12
        self.total = _even(len(societies) * self.width + (len(societies) - 1) * _RULE)
        objective_text = f"objective: {setting.objective}" + (f" ({setting.payoff})" if setting.payoff else "")
        self._objective_lines = wrap_text(objective_text, self.total - 2 * _MARGIN - _LABEL, font(_TEXT))
        self._curve = self._strip + len(self._objective_lines) * _LINE + 4
        self.height = _even(self._curve + _PLOT + _MARGIN)
        moments = [moment for society in societies for moment in society.moments]
        payoffs = np.array([moment.payoffs for moment in moments])
        self._payoffs = _range(payoffs)
        self._objectives = _range(np.array([moment.objective for moment in moments]))
        names = list(moments[-1].levels)
        self._levels = {name: max(1.0, *(moment.levels.get(name, 0.0) for moment in moments)) for name in names}
        self._steps = self.setting.horizon or max(moment.step for moment in moments)
        super().__init__(len(societies[0].moments), self.draw)

    def draw(self, i: int) -> np.ndarray:
        """Draw the picture of a moment, [height, width, 3] uint8."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (self.total, self.height), "white")
        pen = ImageDraw.Draw(image)
        for k in range(len(self.societies)):
            x_offset = k * (self.width + _RULE)
            if k:
                pen.rectangle((x_offset - _RULE, 0, x_offset - 1, self._strip - 8), fill=_GRID)
            self._society(image, pen, x_offset, k, i)
        self._objective(image, pen, i)
        return np.asarray(image)

    def _society(self, image: Any, pen: Any, x_offset: int, k: int, i: int) -> None:
        from PIL import Image

        society = self.societies[k]
        x, moment = x_offset + _MARGIN, society.moments[i]
        _bold(pen, (x, _MARGIN - 2), society.title, self._color(k))
        for n, line in enumerate(self._sentences[k]):
            pen.text((x, _MARGIN + 24 + n * _LINE), line, fill=_INK, font=font(_TEXT))
        world = scale_to_width(society.worlds[i], self.width)
        at = self._top + (self._world - world.shape[0]) // 2
        image.paste(Image.fromarray(world), (x_offset + (self.width - world.shape[1]) // 2, at))
        half = (self.width - 3 * _MARGIN) // 2
        self._bars(pen, x, half, moment)
        self._curves(image, pen, x + half + _MARGIN, half, society, i)
        counts = "   ".join(f"{name} {value:,.0f}" for name, value in moment.counts.items())
        pen.text((x, self._below + _LINE + 4 + self._plot + 2), counts, fill=_FAINT, font=font(_SMALL))

    def _bars(self, pen: Any, x: int, width: int, moment: EpisodeMoment) -> None:
        """Draw the payoff of each agent as a bar in its color, to the right of zero or to the left."""
        caption = "payoff of each agent"
        pen.text((x, self._below), caption, fill=_INK, font=font(_SMALL))
        low, high = self._payoffs
        room = width - 44
        scale = room / (high - low)
        zero, top = x + round(-low * scale), self._below + _LINE + 4
        colors = self.setting.colors
        for agent, value in enumerate(moment.payoffs.tolist()):
            y = top + agent * _ROW
            color = _BARS if colors is None else tuple(colors[agent].tolist())
            end = zero + round(value * scale)
            pen.rectangle((min(zero, end), y + 2, max(zero, end), y + _ROW - 3), fill=color)
            pen.text((max(zero, end) + 5, y - 1), f"{value:,.0f}", fill=_INK, font=font(_SMALL))
        pen.line((zero, top, zero, top + len(moment.payoffs) * _ROW - 1), fill=_FAINT)

    def _curves(self, image: Any, pen: Any, x: int, width: int, society: SocietyEpisode, i: int) -> None:
        """Draw the levels of a society over the steps so far."""
        top, moment = self._below + _LINE + 4, society.moments[i]
        box, at = (x, top, x + width, top + self._plot), x
        lines = []
        for name, max_level in self._levels.items():
            label, color = _level(name)
            level_text = f"{label} {moment.levels.get(name, 0.0):,.0f}"
            pen.text((at, self._below), level_text, fill=color, font=font(_SMALL))
            at += int(font(_SMALL).getlength(level_text)) + 12
            points = [(m.step, m.levels[name]) for m in society.moments[: i + 1] if name in m.levels]
            lines.append((points, color, (0.0, max_level * 1.05)))
        _plot(image, box, self._steps, lines)

    def _objective(self, image: Any, pen: Any, i: int) -> None:
        """Draw the objectives of all societies so far in one plot, each with its number at the end."""
        y, moments = self._strip, [society.moments[i] for society in self.societies]
        for n, line in enumerate(self._objective_lines):
            pen.text((_MARGIN, y + n * _LINE), line, fill=_INK, font=font(_TEXT))
        horizon_text = "" if self.setting.horizon is None else f" of {self.setting.horizon:,}"
        step_text = f"step {max(moment.step for moment in moments):,}{horizon_text}"
        pen.text((self.total - _MARGIN - font(_TEXT).getlength(step_text), y), step_text, fill=_INK, font=font(_TEXT))
        box = (_MARGIN, self._curve, self.total - _NUMBER, self._curve + _PLOT)
        curves = [[(m.step, m.objective) for m in society.moments[: i + 1]] for society in self.societies]
        _plot(image, box, self._steps, [(x, self._color(k), self._objectives) for k, x in enumerate(curves)])
        for k, (moment, place) in enumerate(zip(moments, self._labels(moments, box), strict=True)):
            _bold(pen, (box[2] + 8, place), f"{moment.objective:,.1f}", self._color(k))

    def _color(self, k: int) -> Color:
        """Return the color of society k; the first color is for the reference of a comparison."""
        return _LINES[1] if len(self.societies) == 1 else _LINES[k % len(_LINES)]

    def _labels(self, moments: Sequence[EpisodeMoment], box: tuple[int, int, int, int]) -> list[int]:
        """Return the y coordinates of the objectives' numbers: at the ends of the curves, without overlap."""
        low, high = self._objectives
        targets = [box[3] - (m.objective - low) / (high - low) * (box[3] - box[1]) - 12 for m in moments]
        places = dict[int, float]()
        for k in sorted(range(len(targets)), key=lambda k: targets[k]):
            previous_y = max(places.values(), default=-np.inf)
            places[k] = max(targets[k], previous_y + 22, box[1] - 1)
        overflow = max(0.0, max(places.values()) - (box[3] - 14))
        return [round(places[k] - overflow) for k in range(len(targets))]


def _plot(
    image: Any,
    box: tuple[int, int, int, int],
    steps: int,
    lines: Sequence[tuple[Sequence[tuple[int, float]], Color, tuple[float, float]]],
) -> None:
    """Draw curves over the steps of an episode in a box (left, top, right, bottom), each with its color and range."""
    from PIL import Image, ImageDraw

    width, height = (box[2] - box[0]) * _SMOOTH, (box[3] - box[1]) * _SMOOTH
    large = Image.new("RGB", (width, height), (248, 248, 248))
    pen = ImageDraw.Draw(large)
    for points, color, (low, high) in lines:
        if low < 0 < high:
            zero = round(height * (1 - (0 - low) / (high - low)))
            pen.line((0, zero, width, zero), fill=_GRID, width=_SMOOTH)
        stride = max(1, len(points) // 300)
        samples = [*points[:-1:stride], *points[-1:]]
        path = [(step / steps * (width - 1), (height - 1) * (1 - (y - low) / (high - low))) for step, y in samples]
        if len(path) > 1:
            pen.line(path, fill=color, width=2 * _SMOOTH, joint="curve")
    image.paste(large.resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.BOX), box[:2])


def _range(values: np.ndarray) -> tuple[float, float]:
    """Return the range of some values, including zero and a margin; never empty."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    room = 0.04 * (high - low) if high - low > _TINY else 1.0
    return low - room * (low < 0), high + room


def _level(name: str) -> tuple[str, Color]:
    return LEVELS.get(name, (name.replace("_", " "), _BARS))


def _bold(pen: Any, place: tuple[int, int], text: str, color: Color) -> None:
    pen.text(place, text, fill=color, font=font(_TITLE), stroke_width=0.4, stroke_fill=color)


def _even(size: int) -> int:
    """Return the next even number, because video codecs need even sizes."""
    return -(-size // 2) * 2
