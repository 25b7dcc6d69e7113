"""Views of MiniGrid agents as sentences, by the rules of BabyAI-Text (Carta et al. 2023, arXiv 2302.02662)."""

from __future__ import annotations

import functools

import numpy as np

from llmrl.envs.babyai.language import LANGUAGES, N_COLORS, N_STATES, PORTABLE, TYPES

_EMPTY, _WALL = TYPES.index("empty"), TYPES.index("wall")
_PORTABLE = np.isin(np.arange(len(TYPES)), [TYPES.index(kind) for kind in PORTABLE])


class ViewDescriber:
    """A converter of views of `width` x `height` cells into sentences, many views at once.

    The sentences are about, in this order: the carried object; the nearest walls ahead, left and right, unless an
    object is in front of them; every object in view, from left to right and from far to near.

    Args:
        language: `en` or `fr`.
        width, height: size of a view, cells. The agent is in the middle of the nearest row and looks ahead.
    """

    def __init__(self, language: str, width: int, height: int) -> None:
        self._words = LANGUAGES[language]
        self._ax, self._ay = width // 2, height - 1
        self._cells = width * height
        self._height = height
        self._weights = np.array([N_COLORS * N_STATES, N_STATES, 1]) * self._cells
        self._place = np.arange(self._cells).reshape(width, height)
        self._other_cells = np.ones((width, height), dtype=bool)
        self._other_cells[self._ax, self._ay] = False
        self._object_sentences: dict[int, str] = {}
        steps = [self._words.n_steps(n) for n in range(max(width, height))]
        self._walls = [[self._words.wall.format(steps=n, way=way) for n in steps] for way in self._words.ways]

    def describe(self, views: np.ndarray) -> list[list[str]]:
        """Return the sentences about each of n views [n, width, height, 3], codes of type, color and state.

        The axis x goes from left to right, y from far to near.
        """
        kinds = views[..., 0]
        texts: list[list[str]] = [[] for _ in range(len(views))]
        agent_cells = views[:, self._ax, self._ay]
        for game in np.flatnonzero(_PORTABLE[agent_cells[:, 0]]).tolist():
            thing = self._words.content_text(*agent_cells[game].tolist())
            texts[game].append(self._words.carries.format(thing=thing))
        forward = kinds[:, self._ax, self._ay - 1 :: -1] if self._ay else kinds[:, self._ax, :0]
        leftward = kinds[:, self._ax - 1 :: -1, self._ay] if self._ax else kinds[:, :0, self._ay]
        rightward = kinds[:, self._ax + 1 :, self._ay]
        for line, sentences in zip((forward, leftward, rightward), self._walls, strict=True):
            solid = line > _EMPTY
            distances = solid.argmax(axis=1) if line.shape[1] else np.zeros(len(line), dtype=np.int64)
            games_with_wall = (
                np.flatnonzero((line == _WALL)[np.arange(len(line)), distances]) if line.shape[1] else distances[:0]
            )
            for game, n in zip(games_with_wall.tolist(), (distances[games_with_wall] + 1).tolist(), strict=True):
                texts[game].append(sentences[n])
        visible = (kinds > _WALL) & self._other_cells
        # One number for each object (its three codes) and its position.
        codes = (views[visible].astype(np.int64) @ self._weights) + np.broadcast_to(self._place, kinds.shape)[visible]
        cache = self._object_sentences
        for game, code in zip(np.nonzero(visible)[0].tolist(), codes.tolist(), strict=True):
            texts[game].append(cache.get(code) or self._object_sentence(code))
        return texts

    def _object_sentence(self, code: int) -> str:
        content, place = divmod(code, self._cells)
        kind, rest = divmod(content, N_COLORS * N_STATES)
        x, y = divmod(place, self._height)
        sentence = self._words.sees.format(
            thing=self._words.content_text(kind, *divmod(rest, N_STATES)),
            place=self._words.place(x - self._ax, self._ay - y),
        )
        self._object_sentences[code] = sentence
        return sentence


@functools.cache
def view_describer(language: str, width: int, height: int) -> ViewDescriber:
    """Return the cached converter for views of this size, which caches sentences."""
    return ViewDescriber(language, width, height)


def sentences(image: np.ndarray, language: str = "en") -> list[str]:
    """Return the sentences about one view, [width, height, 3]."""
    return view_describer(language, *image.shape[:2]).describe(image[None])[0]


def carried_object(image: np.ndarray) -> str:
    """Return the object that the agent carries, e.g. `red key`, read from its own cell of a view; "" if none."""
    cell = image[image.shape[0] // 2, image.shape[1] - 1]
    kind, colors = TYPES[int(cell[0])], LANGUAGES["en"].colors[""]
    return f"{colors[int(cell[1])]} {kind}" if kind in PORTABLE else ""
