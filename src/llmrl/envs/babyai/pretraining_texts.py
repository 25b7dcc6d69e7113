"""Stories in which somebody looks for a thing, told in other words than BabyAI-Text's: what a small model can read
before it plays.

No story has the form of a prompt, nor counts cells; what they share with the game is the language: nouns, colours,
sides, and what one does to get somewhere.
"""

from __future__ import annotations

import numpy as np

from llmrl.envs.babyai.language import LANGUAGES, PORTABLE

_THINGS = PORTABLE
_PLACES = {
    "left": ("on the left", "to the left of me", "over on the left side", "off to the left"),
    "right": ("on the right", "to the right of me", "over on the right side", "off to the right"),
    "forward": ("straight ahead", "in front of me", "ahead, further forward", "right before my eyes"),
}
_MOVES = {"left": "turn left", "right": "turn right", "forward": "go forward"}
_WANTED = (
    "I was looking for a {goal}.",
    "Somebody had asked me for a {goal}.",
    "What I needed that day was the {goal}.",
    "My task: fetch the {goal}.",
    "Everything depended on finding a {goal}.",
)
_SEEN = (
    "The {goal} was {place}.",
    "There it was, the {goal}, {place}.",
    "{place}, I noticed the {goal}.",
    "Then I saw the {goal} {place}.",
)
_BESIDE = (
    "A {other} stood {place}, but that was of no use to me.",
    "There was also a {other} {place}.",
    "{place}, somebody had left a {other}.",
)
_DONE = (
    "So I had to {move}.",
    "The thing to do then is to {move}.",
    "Whoever wants to get there will {move}.",
    "Without a second thought I decided to {move}.",
    "In such a case people {move}.",
)
_BLIND = ("The {goal} was nowhere to be seen.", "I could not find any {goal} from where I stood.")
_LOOK = ("To look around, {move}.", "When nothing is in sight, {move} and look again.")


def stories(n: int, seed: int, informative: bool = True) -> list[str]:
    """Return stories, each of a few sentences, that end in what is done.

    Args:
        n: how many, >= 0.
        seed: of the draws.
        informative: what is done follows from where the wanted thing is; False: it is drawn whatever the story says, so
            that the same words are read and nothing can be learnt of what they mean.
    """
    rng = np.random.default_rng(seed)
    return [_story(rng, informative) for _ in range(n)]


def _story(rng: np.random.Generator, informative: bool) -> str:
    goal, *others = _things(rng, 1 + int(rng.integers(0, 3)))
    side = str(rng.choice(list(_PLACES)))
    told = [_one(rng, _WANTED).format(goal=goal)]
    blind = rng.random() < 0.15
    if blind:
        seen = _one(rng, _BLIND).format(goal=goal)
        side = str(rng.choice(["left", "right"]))
    else:
        seen = _capital(_one(rng, _SEEN).format(goal=goal, place=_one(rng, _PLACES[side])))
    beside = [
        _capital(_one(rng, _BESIDE).format(other=other, place=_one(rng, _PLACES[str(rng.choice(list(_PLACES)))])))
        for other in others
    ]
    middle = [seen, *beside]
    told += [middle[i] for i in rng.permutation(len(middle))]
    move = _MOVES[side if informative else str(rng.choice(list(_MOVES)))]
    return " ".join([*told, _one(rng, _LOOK if blind else _DONE).format(move=move)])


def _things(rng: np.random.Generator, n: int) -> list[str]:
    """So many different things, each a colour and a noun."""
    words = LANGUAGES["en"]
    colours = words.colours[""]
    places = rng.choice(len(colours) * len(_THINGS), size=n, replace=False)
    return [f"{colours[i // len(_THINGS)]} {_THINGS[i % len(_THINGS)]}" for i in places]


def _one(rng: np.random.Generator, texts: tuple[str, ...]) -> str:
    return texts[int(rng.integers(len(texts)))]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
