"""Descriptions and views, against a slow re-statement of their rules and against MiniGrid."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

import gymnasium
import numpy as np
import pytest
from minigrid.minigrid_env import MiniGridEnv

import llmrl.envs.babyai.registration  # noqa: F401
from llmrl.core.seeding import Seeds
from llmrl.envs.babyai.sentences import sentences, teller
from llmrl.envs.babyai.text_wrapper import BabyAIText
from llmrl.envs.babyai.vec_env import BabyAIEnv

LEVELS = sorted(
    name
    for name in gymnasium.registry
    if name.startswith("BabyAI-") and str(gymnasium.registry[name].entry_point).startswith("minigrid.")
)
NOUNS = {3: "floor", 4: "door", 5: "key", 6: "ball", 7: "box", 8: "goal", 9: "lava"}
COLOURS = {0: "red", 1: "green", 2: "blue", 3: "purple", 4: "yellow", 5: "grey"}


def steps(n: int) -> str:
    return "1 step" if n == 1 else f"{n} steps"


def told(image: np.ndarray) -> list[str]:
    """The rules as they are written, one cell after another."""
    seen = {(x, y): tuple(int(c) for c in image[x, y]) for x in range(7) for y in range(7)}
    lines = []
    kind, colour, _ = seen[3, 6]
    if kind in (5, 6, 7):
        lines.append("You carry a " + COLOURS[colour] + " " + NOUNS[kind])
    for dx, dy, way in ((0, -1, "forward"), (-1, 0, "left"), (1, 0, "right")):
        x, y, n = 3 + dx, 6 + dy, 1
        while (x, y) in seen and seen[x, y][0] in (0, 1):
            x, y, n = x + dx, y + dy, n + 1
        if (x, y) in seen and seen[x, y][0] == 2:
            lines.append("You see a wall " + steps(n) + " " + way)
    for x in range(7):
        for y in range(7):
            kind, colour, state = seen[x, y]
            if kind <= 2 or (x, y) == (3, 6):
                continue
            name = COLOURS[colour] + " " + NOUNS[kind]
            if kind == 4:
                name = ["open", "closed", "locked"][state] + " " + name
            side = "" if x == 3 else steps(abs(x - 3)) + (" left" if x < 3 else " right")
            ahead = "" if y == 6 else steps(6 - y) + " forward"
            lines.append("You see a " + name + " " + side + (" and " if side and ahead else "") + ahead)
    return lines


def test_three_hundred_random_episodes_are_told_by_the_rules() -> None:
    """Lock-step games against MiniGrid's own view of each, and the restated rules."""
    rng = np.random.default_rng(8)
    episodes = 0
    objects, carried, doors = 0, 0, set()
    for level in ("BabyAI-MixedTrainLocal-v0", "BabyAI-MixedTestLocal-v0", "BabyAI-BossLevel-v0"):
        env = BabyAIEnv(Seeds(0), level, n_envs=50, history=1, template="plain")
        env.provide(["prompt", "view"])
        for round_ in range(2):
            observation = env.reset(seed=round_)
            episodes += 50
            for _ in range(11):
                for i, game in enumerate(env._games.envs):
                    image = MiniGridEnv.gen_obs(game)["image"]
                    assert np.array_equal(observation["view"][i, 0], image)
                    expected = told(image)
                    prompt = f"Goal of the agent: {game.mission}\nObservation: {', '.join(expected)}\nAction:"
                    assert observation["prompt"][i, 0] == prompt
                    objects += len(expected)
                    carried += "You carry" in prompt
                    doors |= {state for state in ("open", "closed", "locked") if f"a {state} " in prompt}
                step = env.step(rng.choice(6, p=(0.15, 0.15, 0.3, 0.2, 0.05, 0.15), size=(50, 1)))
                observation = step.observation
    assert episodes == 300
    assert objects > 10_000
    assert carried > 100
    assert doors == {"open", "closed", "locked"}


def test_any_map_of_codes_is_told_by_the_rules() -> None:
    """Views that no level shows, too: lava, goals, floor, walls anywhere."""
    rng = np.random.default_rng(3)
    images = np.stack(
        [
            rng.choice(10, p=[0.1, 0.55, 0.1, *[0.25 / 7] * 7], size=(400, 7, 7)),
            *rng.integers((6, 3), size=(400, 7, 7, 2)).transpose(3, 0, 1, 2),
        ],
        axis=-1,
    ).astype(np.uint8)
    assert teller("en", 7, 7).tell(images) == [told(image) for image in images]


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_of_babyai_can_be_told(level: str) -> None:
    with redirect_stdout(io.StringIO()):
        env = BabyAIText(gymnasium.make(level))
        observation, info = env.reset(seed=1)
        assert info["descriptions"] == told(observation["image"])
        for action in (2, 1, 2, 0, 5, 3, 2, 4):
            observation, _, terminated, truncated, info = env.step(action)
            assert info["descriptions"] == told(observation["image"])
            if terminated or truncated:
                observation, info = env.reset()


def test_there_are_ninety_six_of_them() -> None:
    own = [name for name in LEVELS if name != "BabyAI-GoToFrench-v0"]
    assert len(own) == 96


def test_minigrid_s_other_levels_and_views_are_told_too() -> None:
    for name, arguments in (("MiniGrid-LavaCrossingS9N1-v0", {}), ("MiniGrid-DoorKey-8x8-v0", {"agent_view_size": 5})):
        env = BabyAIText(gymnasium.make(name, **arguments))
        _, info = env.reset(seed=0)
        assert all(said.startswith("You see a ") for said in info["descriptions"])
        assert info["descriptions"]
    with pytest.raises(TypeError, match="CartPole"):
        BabyAIText(gymnasium.make("CartPole-v1"))


def test_french_sentences_have_french_words_and_genders() -> None:
    image = np.zeros((7, 7, 3), dtype=np.uint8)
    image[..., 0] = 1
    image[3, 6] = (6, 5, 0)  # a grey ball in hand
    image[3, 3] = (2, 5, 0)
    image[1, 4] = (4, 1, 0)
    image[5, 6] = (4, 3, 2)
    image[2, 6] = (7, 0, 0)
    image[3, 5] = (8, 1, 0)
    image[4, 5] = (9, 0, 0)
    image[4, 1] = (4, 2, 1)
    assert sentences(image, "fr") == [
        "Tu portes une balle grise",
        "Tu vois une porte verte ouverte 2 pas à gauche et 2 pas devant",
        "Tu vois une boîte rouge 1 pas à gauche",
        "Tu vois un but vert 1 pas devant",
        "Tu vois une porte bleue fermée 1 pas à droite et 5 pas devant",
        "Tu vois une lave rouge 1 pas à droite et 1 pas devant",
        "Tu vois une porte violette fermée à clef 2 pas à droite",
    ]
    image[3, 5] = image[3, 3] = (1, 0, 0)
    image[3, 2] = (2, 5, 0)
    assert sentences(image, "fr")[1] == "Tu vois un mur à 4 pas devant"
