"""Pictures of societies during an episode: world, payoffs of agents, metrics over time, and objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.core.frames import LazyFrames, load_font, scale_to_width, wrap_text

Color = tuple[int, int, int]


@dataclass(frozen=True)
class EpisodeMoment:
    """The state of an episode after a number of steps.

    Attributes:
        step: number of steps that have been played.
        objective: objective of the principal, computed from the returns up to this step.
        payoffs: return of each agent up to this step, without the mechanism's payments, [n_agents].
        counts: display name of a metric -> its sum over the steps that have been played.
        levels: name of a metric -> its value in the last step; empty before the first step.
    """

    step: int
    objective: float
    payoffs: np.ndarray
    counts: Mapping[str, float]
    levels: Mapping[str, float]


@dataclass(frozen=True)
class SocietyEpisode:
    """The recorded episode of a society.

    Attributes:
        title: short name of the mechanism.
        sentence: description of the mechanism's effect.
        worlds: picture of the world at each moment, [height, width, 3] uint8.
        moments: state before the first step and after each step.
    """

    title: str
    sentence: str
    worlds: Sequence[np.ndarray]
    moments: Sequence[EpisodeMoment]


@dataclass(frozen=True)
class PictureSettings:
    """Properties that are equal for all societies of a picture.

    Attributes:
        horizon: steps of an episode; None: unknown.
        objective: description of the objective.
        payoff: description of the game's rewards; "": unknown.
        colors: RGB color of each agent in the world, [n_agents, 3] in [0, 255]; None: all agents look the same.
    """

    horizon: int | None
    objective: str
    payoff: str = ""
    colors: np.ndarray | None = None


LEVEL_STYLES: Mapping[str, tuple[str, Color]] = {
    "apples_live": ("apples", (200, 45, 45)),
    "dirt": ("dirt", (20, 140, 130)),
}
"""Display names and colors of the metrics that are drawn over time, if the environment has them."""

SINGLE_SOCIETY_WIDTH, SIDE_BY_SIDE_SOCIETY_WIDTH = 640, 400
"""Width of a society that is drawn alone, and of one that is drawn next to others, in pixels."""
_MARGIN, _SEPARATOR_WIDTH = 10, 4
_TITLE_SIZE, _TEXT_SIZE, _SMALL_SIZE = 18, 14, 13
"""Font sizes, in pixels."""
_LINE_HEIGHT, _BAR_HEIGHT = 18, 15
"""Heights of a line of text and of an agent's bar, including the space below it, in pixels."""
_PLOT_HEIGHT = 96
"""Height of the plot of objectives, and minimum height of the plots of payoffs and levels, in pixels."""
_NUMBER_WIDTH, _STEP_WIDTH = 78, 130
"""Widths of the numbers to the right of the objectives' curves, and of the text with the step above them, in pixels."""
_TEXT_COLOR: Color = (30, 30, 30)
_GRAY: Color = (120, 120, 120)
_GRID_COLOR: Color = (222, 222, 222)
_CURVE_COLORS: Sequence[Color] = ((100, 100, 100), (31, 119, 180), (214, 110, 20), (44, 140, 60))
_BAR_COLOR: Color = (31, 119, 180)
_MIN_PROPORTIONAL_RANGE = 1e-9
"""Minimum range of values for which the margins of a plot are proportional to the range; otherwise they are 1."""
_SUPERSAMPLING = 3
"""Factor by which curves are drawn larger than shown; scaling the image down makes them smooth."""


class SocietyPictures(LazyFrames):
    """Pictures of societies side by side at each moment of an episode, above a plot with all their objectives.

    Args:
        societies: societies to draw, with equal numbers of moments.
        setting: properties that are equal for all societies.
    """

    def __init__(self, societies: Sequence[SocietyEpisode], setting: PictureSettings) -> None:
        self.societies, self.setting = societies, setting
        self.width = SINGLE_SOCIETY_WIDTH if len(societies) == 1 else SIDE_BY_SIDE_SOCIETY_WIDTH
        worlds = [scale_to_width(society.worlds[0], self.width) for society in societies]
        self._world_height = max(world.shape[0] for world in worlds)
        text_width = self.width - 2 * _MARGIN
        self._sentences = [wrap_text(society.sentence, text_width, load_font(_TEXT_SIZE)) for society in societies]
        self._n_sentence_lines = max(map(len, self._sentences))
        self._agent_plot_height = max(_PLOT_HEIGHT, len(societies[0].moments[0].payoffs) * _BAR_HEIGHT)
        self._world_y = _MARGIN + 26 + self._n_sentence_lines * _LINE_HEIGHT + 6
        self._plots_y = self._world_y + self._world_height + 8
        self._objective_y = self._plots_y + _LINE_HEIGHT + 4 + self._agent_plot_height + _LINE_HEIGHT + 12
        self.total_width = _round_up_to_even(len(societies) * self.width + (len(societies) - 1) * _SEPARATOR_WIDTH)
        objective_text = f"objective: {setting.objective}" + (f" ({setting.payoff})" if setting.payoff else "")
        self._objective_lines = wrap_text(
            objective_text, self.total_width - 2 * _MARGIN - _STEP_WIDTH, load_font(_TEXT_SIZE)
        )
        self._curves_y = self._objective_y + len(self._objective_lines) * _LINE_HEIGHT + 4
        self.height = _round_up_to_even(self._curves_y + _PLOT_HEIGHT + _MARGIN)
        moments = [moment for society in societies for moment in society.moments]
        self._payoff_range = _compute_plot_range(np.array([moment.payoffs for moment in moments]))
        self._objective_range = _compute_plot_range(np.array([moment.objective for moment in moments]))
        self._max_levels = {x: max(1.0, *(moment.levels.get(x, 0.0) for moment in moments)) for x in moments[-1].levels}
        self._n_steps = self.setting.horizon or max(moment.step for moment in moments)
        super().__init__(len(societies[0].moments), self.draw)

    def draw(self, i: int) -> np.ndarray:
        """Draw the picture of moment `i`, [height, width, 3] uint8."""
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (self.total_width, self.height), "white")
        draw = ImageDraw.Draw(image)
        for k in range(len(self.societies)):
            x_offset = k * (self.width + _SEPARATOR_WIDTH)
            if k > 0:
                draw.rectangle((x_offset - _SEPARATOR_WIDTH, 0, x_offset - 1, self._objective_y - 8), fill=_GRID_COLOR)
            self._draw_society(image, draw, x_offset, k, i)
        self._draw_objectives(image, draw, i)
        return np.asarray(image)

    def _draw_society(self, image: Any, draw: Any, x_offset: int, k: int, i: int) -> None:
        """Draw society `k` at moment `i` at the horizontal position `x_offset` (left edge, pixels)."""
        from PIL import Image

        society = self.societies[k]
        x, moment = x_offset + _MARGIN, society.moments[i]
        _draw_bold_text(draw, (x, _MARGIN - 2), society.title, self._choose_color(k))
        for n, line in enumerate(self._sentences[k]):
            draw.text((x, _MARGIN + 24 + n * _LINE_HEIGHT), line, fill=_TEXT_COLOR, font=load_font(_TEXT_SIZE))
        world = scale_to_width(society.worlds[i], self.width)
        y = self._world_y + (self._world_height - world.shape[0]) // 2
        image.paste(Image.fromarray(world), (x_offset + (self.width - world.shape[1]) // 2, y))
        plot_width = (self.width - 3 * _MARGIN) // 2
        self._draw_payoffs(draw, x, plot_width, moment)
        self._draw_levels(image, draw, x + plot_width + _MARGIN, plot_width, society, i)
        counts = "   ".join(f"{name} {value:,.0f}" for name, value in moment.counts.items())
        counts_y = self._plots_y + _LINE_HEIGHT + 4 + self._agent_plot_height + 2
        draw.text((x, counts_y), counts, fill=_GRAY, font=load_font(_SMALL_SIZE))

    def _draw_payoffs(self, draw: Any, x: int, width: int, moment: EpisodeMoment) -> None:
        """Draw the payoff of each agent as a horizontal bar in the agent's color, starting at zero."""
        draw.text((x, self._plots_y), "payoff of each agent", fill=_TEXT_COLOR, font=load_font(_SMALL_SIZE))
        low, high = self._payoff_range
        scale = (width - 44) / (high - low)
        zero_x, top = x + round(-low * scale), self._plots_y + _LINE_HEIGHT + 4
        colors = self.setting.colors
        for agent, payoff in enumerate(moment.payoffs.tolist()):
            y = top + agent * _BAR_HEIGHT
            color = _BAR_COLOR if colors is None else tuple(colors[agent].tolist())
            end_x = zero_x + round(payoff * scale)
            draw.rectangle((min(zero_x, end_x), y + 2, max(zero_x, end_x), y + _BAR_HEIGHT - 3), fill=color)
            draw.text((max(zero_x, end_x) + 5, y - 1), f"{payoff:,.0f}", fill=_TEXT_COLOR, font=load_font(_SMALL_SIZE))
        draw.line((zero_x, top, zero_x, top + len(moment.payoffs) * _BAR_HEIGHT - 1), fill=_GRAY)

    def _draw_levels(self, image: Any, draw: Any, x: int, width: int, society: SocietyEpisode, i: int) -> None:
        """Draw the levels of a society over the steps up to moment `i`, below their names and current values."""
        top, moment = self._plots_y + _LINE_HEIGHT + 4, society.moments[i]
        box, label_x = (x, top, x + width, top + self._agent_plot_height), x
        curves = []
        for name, max_level in self._max_levels.items():
            label, color = LEVEL_STYLES.get(name, (name.replace("_", " "), _BAR_COLOR))
            level_text = f"{label} {moment.levels.get(name, 0.0):,.0f}"
            draw.text((label_x, self._plots_y), level_text, fill=color, font=load_font(_SMALL_SIZE))
            label_x += int(load_font(_SMALL_SIZE).getlength(level_text)) + 12
            points = [(m.step, m.levels[name]) for m in society.moments[: i + 1] if name in m.levels]
            curves.append((points, color, (0.0, max_level * 1.05)))
        _draw_curves(image, box, self._n_steps, curves)

    def _draw_objectives(self, image: Any, draw: Any, i: int) -> None:
        """Draw the objectives of all societies over the steps up to moment `i` in one plot, with their last values."""
        y, moments = self._objective_y, [society.moments[i] for society in self.societies]
        for n, line in enumerate(self._objective_lines):
            draw.text((_MARGIN, y + n * _LINE_HEIGHT), line, fill=_TEXT_COLOR, font=load_font(_TEXT_SIZE))
        horizon_text = "" if self.setting.horizon is None else f" of {self.setting.horizon:,}"
        step_text = f"step {max(moment.step for moment in moments):,}{horizon_text}"
        x = self.total_width - _MARGIN - load_font(_TEXT_SIZE).getlength(step_text)
        draw.text((x, y), step_text, fill=_TEXT_COLOR, font=load_font(_TEXT_SIZE))
        box = (_MARGIN, self._curves_y, self.total_width - _NUMBER_WIDTH, self._curves_y + _PLOT_HEIGHT)
        point_lists = [[(m.step, m.objective) for m in society.moments[: i + 1]] for society in self.societies]
        curves = [(points, self._choose_color(k), self._objective_range) for k, points in enumerate(point_lists)]
        _draw_curves(image, box, self._n_steps, curves)
        for k, (moment, label_y) in enumerate(zip(moments, self._place_labels(moments, box), strict=True)):
            _draw_bold_text(draw, (box[2] + 8, label_y), f"{moment.objective:,.1f}", self._choose_color(k))

    def _choose_color(self, k: int) -> Color:
        """Return the color of society `k`; society 0, the reference of a comparison, is gray."""
        return _CURVE_COLORS[1] if len(self.societies) == 1 else _CURVE_COLORS[k % len(_CURVE_COLORS)]

    def _place_labels(self, moments: Sequence[EpisodeMoment], box: tuple[int, int, int, int]) -> list[int]:
        """Return the y coordinates of the objectives' numbers: close to the ends of the curves, without overlap."""
        low, high = self._objective_range
        ideal_y = [box[3] - (m.objective - low) / (high - low) * (box[3] - box[1]) - 12 for m in moments]
        label_y = dict[int, float]()
        for k in sorted(range(len(ideal_y)), key=lambda k: ideal_y[k]):
            label_y[k] = max(ideal_y[k], max(label_y.values(), default=-np.inf) + 22, box[1] - 1)
        overflow = max(0.0, max(label_y.values()) - (box[3] - 14))
        return [round(label_y[k] - overflow) for k in range(len(ideal_y))]


def _draw_curves(
    image: Any,
    box: tuple[int, int, int, int],
    n_steps: int,
    curves: Sequence[tuple[Sequence[tuple[int, float]], Color, tuple[float, float]]],
) -> None:
    """Draw curves (points, color, range of values) over `n_steps` steps into `box` (left, top, right, bottom)."""
    from PIL import Image, ImageDraw

    width, height = (box[2] - box[0]) * _SUPERSAMPLING, (box[3] - box[1]) * _SUPERSAMPLING
    enlarged_image = Image.new("RGB", (width, height), (248, 248, 248))
    draw = ImageDraw.Draw(enlarged_image)
    for points, color, (low, high) in curves:
        if low < 0 < high:
            zero_y = round(height * (1 - (0 - low) / (high - low)))
            draw.line((0, zero_y, width, zero_y), fill=_GRID_COLOR, width=_SUPERSAMPLING)
        drawn_points = [*points[: -1 : max(1, len(points) // 300)], *points[-1:]]
        path = [(x / n_steps * (width - 1), (height - 1) * (1 - (y - low) / (high - low))) for x, y in drawn_points]
        if len(path) > 1:
            draw.line(path, fill=color, width=2 * _SUPERSAMPLING, joint="curve")
    image.paste(enlarged_image.resize((box[2] - box[0], box[3] - box[1]), Image.Resampling.BOX), box[:2])


def _compute_plot_range(values: np.ndarray) -> tuple[float, float]:
    """Return a range that contains all values and zero, with a margin; its length is positive."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    margin = 0.04 * (high - low) if high - low > _MIN_PROPORTIONAL_RANGE else 1.0
    return low - margin * (low < 0), high + margin


def _draw_bold_text(draw: Any, xy: tuple[int, int], text: str, color: Color) -> None:
    draw.text(xy, text, fill=color, font=load_font(_TITLE_SIZE), stroke_width=0.4, stroke_fill=color)


def _round_up_to_even(size: int) -> int:
    """Return the smallest even number >= `size`, because video codecs need even sizes."""
    return -(-size // 2) * 2
