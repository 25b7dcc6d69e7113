"""Pictures of a society that plays: its world, each agent's payoff, what grows and what decays, and the objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.core.frames import LazyFrames, fitted, font, wrapped

Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Moment:
    """What an episode has come to after a number of steps.

    Attributes:
        step: so many were played.
        objective: what a principal is judged on, as if the episode ended now.
        payoffs: what the game paid each agent so far, before the mechanism, [n_agents].
        counts: what happened so far, sums over the steps, by name.
        levels: how much there is of what comes and goes, by name; empty before the first step.
    """

    step: int
    objective: float
    payoffs: np.ndarray
    counts: Mapping[str, float]
    levels: Mapping[str, float]


@dataclass(frozen=True)
class Watched:
    """A society in an episode.

    Attributes:
        title: who it is, in a few words.
        sentence: what the mechanism does to it.
        worlds: a picture for each moment, [height, width, 3] uint8.
        moments: from before the first step to after the last.
    """

    title: str
    sentence: str
    worlds: Sequence[np.ndarray]
    moments: Sequence[Moment]


@dataclass(frozen=True)
class Setting:
    """What the societies that are shown together have in common.

    Attributes:
        horizon: steps of an episode; None: not known.
        objective: what it is, in words.
        payoff: what the game pays agents for, in words; empty: not told.
        colours: of each agent in the world, [n_agents, 3]; None: pictures tell none apart.
    """

    horizon: int | None
    objective: str
    payoff: str = ""
    colours: np.ndarray | None = None


LEVELS: Mapping[str, tuple[str, Colour]] = {
    "apples_live": ("apples", (200, 45, 45)),
    "dirt": ("dirt", (20, 140, 130)),
}
"""Metrics of a step that are drawn over time, with their words and colours: those that an environment has."""

ALONE, BESIDE = 640, 400
"""Width of a society that is shown alone, and beside others; pixels."""
_MARGIN, _RULE = 10, 4
_TITLE, _TEXT, _SMALL = 18, 14, 13
"""Sizes of letters."""
_LINE, _ROW = 18, 15
"""Heights of a line of text and of an agent's row, pixels."""
_PLOT = 96
"""Height of the objective's curve, and the least height of what is drawn of agents and over time, pixels."""
_NUMBER, _LABEL = 78, 130
"""Room for the objective at the end of its curve, and for the step above it, pixels."""
_INK: Colour = (30, 30, 30)
_FAINT: Colour = (120, 120, 120)
_GRID: Colour = (222, 222, 222)
_LINES: Sequence[Colour] = ((100, 100, 100), (31, 119, 180), (214, 110, 20), (44, 140, 60))
_BARS: Colour = (31, 119, 180)
_TINY = 1e-9
"""A range that nobody could see, and no number of pixels could be divided by."""
_SMOOTH = 3
"""Curves are drawn so many times as large, and reduced."""


class SocietyPictures(LazyFrames):
    """Pictures of societies in episodes of one length, beside one another, with one curve of their objectives below.

    Args:
        societies: that are watched.
        setting: what they have in common.
    """

    def __init__(self, societies: Sequence[Watched], setting: Setting) -> None:
        self.societies, self.setting = societies, setting
        self.width = ALONE if len(societies) == 1 else BESIDE
        worlds = [fitted(each.worlds[0], self.width) for each in societies]
        self._world = max(world.shape[0] for world in worlds)
        inside = self.width - 2 * _MARGIN
        self._sentences = [wrapped(each.sentence, inside, font(_TEXT)) for each in societies]
        self._rows = max(map(len, self._sentences))
        agents = len(societies[0].moments[0].payoffs)
        self._plot = max(_PLOT, agents * _ROW)
        self._top = _MARGIN + 26 + self._rows * _LINE + 6
        self._below = self._top + self._world + 8
        self._strip = self._below + _LINE + 4 + self._plot + _LINE + 12
        self.total = _even(len(societies) * self.width + (len(societies) - 1) * _RULE)
        said = f"objective: {setting.objective}" + (f" ({setting.payoff})" if setting.payoff else "")
        self._said = wrapped(said, self.total - 2 * _MARGIN - _LABEL, font(_TEXT))
        self._curve = self._strip + len(self._said) * _LINE + 4
        self.height = _even(self._curve + _PLOT + _MARGIN)
        every = [moment for each in societies for moment in each.moments]
        payoffs = np.array([moment.payoffs for moment in every])
        self._payoffs = _range(payoffs)
        self._objectives = _range(np.array([moment.objective for moment in every]))
        names = list(every[-1].levels)
        self._levels = {name: max(1.0, *(moment.levels.get(name, 0.0) for moment in every)) for name in names}
        self._steps = self.setting.horizon or max(moment.step for moment in every)
        super().__init__(len(societies[0].moments), self.draw)

    def draw(self, i: int) -> np.ndarray:
        """Draw the picture of a moment, [height, width, 3] uint8."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (self.total, self.height), "white")
        pen = ImageDraw.Draw(image)
        for k in range(len(self.societies)):
            left = k * (self.width + _RULE)
            if k:
                pen.rectangle((left - _RULE, 0, left - 1, self._strip - 8), fill=_GRID)
            self._society(image, pen, left, k, i)
        self._objective(image, pen, i)
        return np.asarray(image)

    def _society(self, image: Any, pen: Any, left: int, k: int, i: int) -> None:
        from PIL import Image

        society = self.societies[k]
        x, moment = left + _MARGIN, society.moments[i]
        _bold(pen, (x, _MARGIN - 2), society.title, self._colour(k))
        for n, line in enumerate(self._sentences[k]):
            pen.text((x, _MARGIN + 24 + n * _LINE), line, fill=_INK, font=font(_TEXT))
        world = fitted(society.worlds[i], self.width)
        at = self._top + (self._world - world.shape[0]) // 2
        image.paste(Image.fromarray(world), (left + (self.width - world.shape[1]) // 2, at))
        half = (self.width - 3 * _MARGIN) // 2
        self._bars(pen, x, half, moment)
        self._curves(image, pen, x + half + _MARGIN, half, society, i)
        counts = "   ".join(f"{name} {value:,.0f}" for name, value in moment.counts.items())
        pen.text((x, self._below + _LINE + 4 + self._plot + 2), counts, fill=_FAINT, font=font(_SMALL))

    def _bars(self, pen: Any, x: int, width: int, moment: Moment) -> None:
        """What each agent was paid: a bar in its colour, to the right of zero or to the left."""
        said = "payoff of each agent"
        pen.text((x, self._below), said, fill=_INK, font=font(_SMALL))
        low, high = self._payoffs
        room = width - 44
        scale = room / (high - low)
        zero, top = x + round(-low * scale), self._below + _LINE + 4
        colours = self.setting.colours
        for agent, value in enumerate(moment.payoffs.tolist()):
            y = top + agent * _ROW
            colour = _BARS if colours is None else tuple(colours[agent].tolist())
            end = zero + round(value * scale)
            pen.rectangle((min(zero, end), y + 2, max(zero, end), y + _ROW - 3), fill=colour)
            pen.text((max(zero, end) + 5, y - 1), f"{value:,.0f}", fill=_INK, font=font(_SMALL))
        pen.line((zero, top, zero, top + len(moment.payoffs) * _ROW - 1), fill=_FAINT)

    def _curves(self, image: Any, pen: Any, x: int, width: int, society: Watched, i: int) -> None:
        """What comes and goes, over the steps so far."""
        top, now = self._below + _LINE + 4, society.moments[i]
        box, at = (x, top, x + width, top + self._plot), x
        lines = []
        for name, most in self._levels.items():
            words, colour = _level(name)
            said = f"{words} {now.levels.get(name, 0.0):,.0f}"
            pen.text((at, self._below), said, fill=colour, font=font(_SMALL))
            at += int(font(_SMALL).getlength(said)) + 12
            points = [(m.step, m.levels[name]) for m in society.moments[: i + 1] if name in m.levels]
            lines.append((points, colour, (0.0, most * 1.05)))
        _plot(image, box, self._steps, lines)

    def _objective(self, image: Any, pen: Any, i: int) -> None:
        """The objective of all societies so far, in one plot, each with its number at its end."""
        y, moments = self._strip, [each.moments[i] for each in self.societies]
        for n, line in enumerate(self._said):
            pen.text((_MARGIN, y + n * _LINE), line, fill=_INK, font=font(_TEXT))
        of = "" if self.setting.horizon is None else f" of {self.setting.horizon:,}"
        said = f"step {max(moment.step for moment in moments):,}{of}"
        pen.text((self.total - _MARGIN - font(_TEXT).getlength(said), y), said, fill=_INK, font=font(_TEXT))
        box = (_MARGIN, self._curve, self.total - _NUMBER, self._curve + _PLOT)
        shown = [[(m.step, m.objective) for m in each.moments[: i + 1]] for each in self.societies]
        _plot(image, box, self._steps, [(x, self._colour(k), self._objectives) for k, x in enumerate(shown)])
        for k, (moment, place) in enumerate(zip(moments, self._labels(moments, box), strict=True)):
            _bold(pen, (box[2] + 8, place), f"{moment.objective:,.1f}", self._colour(k))

    def _colour(self, k: int) -> Colour:
        """Of a society: one that is alone is no reference for others."""
        return _LINES[1] if len(self.societies) == 1 else _LINES[k % len(_LINES)]

    def _labels(self, moments: Sequence[Moment], box: tuple[int, int, int, int]) -> list[int]:
        """Where the numbers of the objectives stand: at the height of their curves, and not over one another."""
        low, high = self._objectives
        wanted = [box[3] - (m.objective - low) / (high - low) * (box[3] - box[1]) - 12 for m in moments]
        places = dict[int, float]()
        for k in sorted(range(len(wanted)), key=lambda k: wanted[k]):
            above = max(places.values(), default=-np.inf)
            places[k] = max(wanted[k], above + 22, box[1] - 1)
        over = max(0.0, max(places.values()) - (box[3] - 14))
        return [round(places[k] - over) for k in range(len(wanted))]


def _plot(
    image: Any,
    box: tuple[int, int, int, int],
    steps: int,
    lines: Sequence[tuple[Sequence[tuple[int, float]], Colour, tuple[float, float]]],
) -> None:
    """Curves over the steps of an episode in a box (left, top, right, bottom), each in its colour and range."""
    from PIL import Image, ImageDraw

    width, height = (box[2] - box[0]) * _SMOOTH, (box[3] - box[1]) * _SMOOTH
    large = Image.new("RGB", (width, height), (248, 248, 248))
    pen = ImageDraw.Draw(large)
    for points, colour, (low, high) in lines:
        if low < 0 < high:
            zero = round(height * (1 - (0 - low) / (high - low)))
            pen.line((0, zero, width, zero), fill=_GRID, width=_SMOOTH)
        every = max(1, len(points) // 300)
        shown = [*points[:-1:every], *points[-1:]]
        path = [(step / steps * (width - 1), (height - 1) * (1 - (y - low) / (high - low))) for step, y in shown]
        if len(path) > 1:
            pen.line(path, fill=colour, width=2 * _SMOOTH, joint="curve")
    image.paste(large.resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.BOX), box[:2])


def _range(values: np.ndarray) -> tuple[float, float]:
    """From the lowest to the highest of some values, zero included; never empty."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    room = 0.04 * (high - low) if high - low > _TINY else 1.0
    return low - room * (low < 0), high + room


def _level(name: str) -> tuple[str, Colour]:
    return LEVELS.get(name, (name.replace("_", " "), _BARS))


def _bold(pen: Any, place: tuple[int, int], text: str, colour: Colour) -> None:
    pen.text(place, text, fill=colour, font=font(_TITLE), stroke_width=0.4, stroke_fill=colour)


def _even(size: int) -> int:
    """Video codecs need even sizes."""
    return -(-size // 2) * 2
