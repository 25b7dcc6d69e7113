"""Short stories about somebody who looks for an object, as pretraining texts for small models.

The stories share only nouns, colors, directions and actions with BabyAI-Text. They have other sentences, no form of a
prompt, and no numbers of cells.
"""

from __future__ import annotations

import numpy as np

from llmrl.envs.babyai.language import ENGLISH, PORTABLE_TYPES

_PLACE_PHRASES = {
    "left": ("on the left", "to the left of me", "over on the left side", "off to the left"),
    "right": ("on the right", "to the right of me", "over on the right side", "off to the right"),
    "forward": ("straight ahead", "in front of me", "ahead, further forward", "right before my eyes"),
}
_ACTION_PHRASES = {"left": "turn left", "right": "turn right", "forward": "go forward"}
_GOAL_TEXTS = (
    "I was looking for a {goal}.",
    "Somebody had asked me for a {goal}.",
    "What I needed that day was the {goal}.",
    "My task: fetch the {goal}.",
    "Everything depended on finding a {goal}.",
)
_VIEW_TEXTS = (
    "The {goal} was {place}.",
    "There it was, the {goal}, {place}.",
    "{place}, I noticed the {goal}.",
    "Then I saw the {goal} {place}.",
)
_DISTRACTOR_TEXTS = (
    "A {other} stood {place}, but that was of no use to me.",
    "There was also a {other} {place}.",
    "{place}, somebody had left a {other}.",
)
_ACTION_TEXTS = (
    "So I had to {move}.",
    "The thing to do then is to {move}.",
    "Whoever wants to get there will {move}.",
    "Without a second thought I decided to {move}.",
    "In such a case people {move}.",
)
_UNSEEN_TEXTS = ("The {goal} was nowhere to be seen.", "I could not find any {goal} from where I stood.")
_SEARCH_TEXTS = ("To look around, {move}.", "When nothing is in sight, {move} and look again.")


def sample_stories(n: int, seed: int, informative: bool = True) -> list[str]:
    """Return stories of a few sentences each; the last sentence names the action.

    Args:
        n: number of stories, >= 0.
        seed: seed of the random generator.
        informative: whether the action follows from the position of the object. If False, the action is random, so that
            a model reads the same words but cannot learn their meaning.
    """
    rng = np.random.default_rng(seed)
    return [_write_story(rng, informative) for _ in range(n)]


def _write_story(rng: np.random.Generator, informative: bool) -> str:
    goal, *distractors = _sample_objects(rng, 1 + int(rng.integers(0, 3)))
    direction = str(rng.choice(list(_PLACE_PHRASES)))
    goal_text = _sample_text(rng, _GOAL_TEXTS).format(goal=goal)
    is_unseen = rng.random() < 0.15
    if is_unseen:
        view_texts = [_sample_text(rng, _UNSEEN_TEXTS).format(goal=goal)]
        direction = str(rng.choice(["left", "right"]))
    else:
        view_text = _sample_text(rng, _VIEW_TEXTS)
        view_texts = [view_text.format(goal=goal, place=_sample_text(rng, _PLACE_PHRASES[direction]))]
    for distractor in distractors:
        text = _sample_text(rng, _DISTRACTOR_TEXTS)
        place = _sample_text(rng, _PLACE_PHRASES[str(rng.choice(list(_PLACE_PHRASES)))])
        view_texts.append(text.format(other=distractor, place=place))
    view_texts = [view_texts[i] for i in rng.permutation(len(view_texts))]
    move = _ACTION_PHRASES[direction if informative else str(rng.choice(list(_ACTION_PHRASES)))]
    action_text = _sample_text(rng, _SEARCH_TEXTS if is_unseen else _ACTION_TEXTS).format(move=move)
    return " ".join([goal_text, *(text[:1].upper() + text[1:] for text in view_texts), action_text])


def _sample_objects(rng: np.random.Generator, n: int) -> list[str]:
    """Return `n` different objects, each a color and a noun."""
    colors = ENGLISH.colors[""]
    indices = rng.choice(len(colors) * len(PORTABLE_TYPES), size=n, replace=False)
    return [f"{colors[i // len(PORTABLE_TYPES)]} {PORTABLE_TYPES[i % len(PORTABLE_TYPES)]}" for i in indices]


def _sample_text(rng: np.random.Generator, texts: tuple[str, ...]) -> str:
    return texts[int(rng.integers(len(texts)))]
