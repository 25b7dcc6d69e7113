"""Views of MiniGrid agents as sentences, by the rules of BabyAI-Text (Carta et al. 2023, arXiv 2302.02662)."""

from __future__ import annotations

import functools

import numpy as np

from llmrl.envs.babyai.language import LANGUAGES, N_COLOURS, N_STATES, PORTABLE, TYPES

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
        self._weights = np.array([N_COLOURS * N_STATES, N_STATES, 1]) * self._cells
        self._place = np.arange(self._cells).reshape(width, height)
        self._others = np.ones((width, height), dtype=bool)
        self._others[self._ax, self._ay] = False
        self._seen: dict[int, str] = {}
        self._carried: dict[tuple[int, ...], str] = {}
        steps = [self._words.n_steps(n) for n in range(max(width, height))]
        self._walls = [[self._words.wall.format(steps=n, way=way) for n in steps] for way in self._words.ways]

    def tell(self, views: np.ndarray) -> list[list[str]]:
        """Return the sentences about each of n views [n, width, height, 3], codes of type, colour and state.

        The axis x goes from left to right, y from far to near."""
        kinds = views[..., 0]
        told: list[list[str]] = [[] for _ in range(len(views))]
        own = views[:, self._ax, self._ay]
        for game in np.flatnonzero(_PORTABLE[own[:, 0]]).tolist():
            told[game].append(self._carry(tuple(own[game].tolist())))
        ahead = kinds[:, self._ax, self._ay - 1 :: -1] if self._ay else kinds[:, self._ax, :0]
        left = kinds[:, self._ax - 1 :: -1, self._ay] if self._ax else kinds[:, :0, self._ay]
        right = kinds[:, self._ax + 1 :, self._ay]
        for line, sentences in zip((ahead, left, right), self._walls, strict=True):
            solid = line > _EMPTY
            first = solid.argmax(axis=1) if line.shape[1] else np.zeros(len(line), dtype=np.int64)
            walled = np.flatnonzero((line == _WALL)[np.arange(len(line)), first]) if line.shape[1] else first[:0]
            for game, n in zip(walled.tolist(), (first[walled] + 1).tolist(), strict=True):
                told[game].append(sentences[n])
        shown = (kinds > _WALL) & self._others
        # One number for each object (its three codes) at its place.
        codes = (views[shown].astype(np.int64) @ self._weights) + np.broadcast_to(self._place, kinds.shape)[shown]
        seen = self._seen
        for game, code in zip(np.nonzero(shown)[0].tolist(), codes.tolist(), strict=True):
            told[game].append(seen.get(code) or self._see(code))
        return told

    def _see(self, code: int) -> str:
        content, place = divmod(code, self._cells)
        kind, rest = divmod(content, N_COLOURS * N_STATES)
        x, y = divmod(place, self._height)
        said = self._words.sees.format(
            thing=self._words.thing(kind, *divmod(rest, N_STATES)),
            place=self._words.place(x - self._ax, self._ay - y),
        )
        self._seen[code] = said
        return said

    def _carry(self, cell: tuple[int, ...]) -> str:
        if cell not in self._carried:
            self._carried[cell] = self._words.carries.format(thing=self._words.thing(*cell))
        return self._carried[cell]


@functools.cache
def view_describer(language: str, width: int, height: int) -> ViewDescriber:
    """Return the cached converter for views of this size, which caches sentences."""
    return ViewDescriber(language, width, height)


def sentences(image: np.ndarray, language: str = "en") -> list[str]:
    """Return the sentences about one view, [width, height, 3]."""
    return view_describer(language, *image.shape[:2]).tell(image[None])[0]


def carried(image: np.ndarray) -> str:
    """Return the object that the agent carries, e.g. `red key`, from the agent's own cell of a view; empty if none."""
    cell = image[image.shape[0] // 2, image.shape[1] - 1]
    kind, colour = TYPES[int(cell[0])], LANGUAGES["en"].colours[""]
    return f"{colour[int(cell[1])]} {kind}" if kind in PORTABLE else ""
