"""Descriptions and views, compared with a slow implementation of the rules and with MiniGrid."""

from __future__ import annotations

import io
from collections import Counter
from contextlib import redirect_stdout

import gymnasium
import numpy as np
import pytest
from minigrid.minigrid_env import MiniGridEnv

import llmrl.envs.babyai.levels  # noqa: F401
from babyai_wrapper import BabyAIText
from environments import make_env
from llmrl.envs.babyai.language import describe_view, get_view_describer

LEVELS = sorted(
    name
    for name in gymnasium.registry
    if name.startswith("BabyAI-") and str(gymnasium.registry[name].entry_point).startswith("minigrid.")
)
NOUNS = {3: "floor", 4: "door", 5: "key", 6: "ball", 7: "box", 8: "goal", 9: "lava"}
COLORS = {0: "red", 1: "green", 2: "blue", 3: "purple", 4: "yellow", 5: "grey"}


def steps(n: int) -> str:
    return "1 step" if n == 1 else f"{n} steps"


def expected_sentences(image: np.ndarray) -> list[str]:
    """Apply the rules as written, cell by cell."""
    cells = {(x, y): tuple(int(c) for c in image[x, y]) for x in range(7) for y in range(7)}
    lines = []
    kind, color, _ = cells[3, 6]
    if kind in (5, 6, 7):
        lines.append("You carry a " + COLORS[color] + " " + NOUNS[kind])
    for dx, dy, way in ((0, -1, "forward"), (-1, 0, "left"), (1, 0, "right")):
        x, y, n = 3 + dx, 6 + dy, 1
        while (x, y) in cells and cells[x, y][0] in (0, 1):
            x, y, n = x + dx, y + dy, n + 1
        if (x, y) in cells and cells[x, y][0] == 2:
            lines.append("You see a wall " + steps(n) + " " + way)
    for x in range(7):
        for y in range(7):
            kind, color, state = cells[x, y]
            if kind <= 2 or (x, y) == (3, 6):
                continue
            name = COLORS[color] + " " + NOUNS[kind]
            if kind == 4:
                name = ["open", "closed", "locked"][state] + " " + name
            side = "" if x == 3 else steps(abs(x - 3)) + (" left" if x < 3 else " right")
            forward = "" if y == 6 else steps(6 - y) + " forward"
            lines.append("You see a " + name + " " + side + (" and " if side and forward else "") + forward)
    return lines


FEMININE = {4: "porte", 5: "clef", 6: "balle", 7: "boîte", 9: "lave"}
MASCULINE = {3: "sol", 8: "but"}
FRENCH_COLORS = (
    ("rouge", "rouge"),
    ("verte", "vert"),
    ("bleue", "bleu"),
    ("violette", "violet"),
    ("jaune", "jaune"),
    ("grise", "gris"),
)
PORTABLE, EMPTY, WALL, DOOR = (5, 6, 7), (0, 1), 2, 4


def translate_to_french(kind: int, color: int, state: int) -> str:
    if kind in MASCULINE:
        return f"un {MASCULINE[kind]} {FRENCH_COLORS[color][1]}"
    sentence = f"une {FEMININE[kind]} {FRENCH_COLORS[color][0]}"
    return f"{sentence} {('ouverte', 'fermée', 'fermée à clef')[state]}" if kind == DOOR else sentence


def describe_in_french(image: np.ndarray) -> list[str]:
    """Apply the rules in French: nouns before colors, the state of a door last, and `pas` for any number."""
    lines = []
    if image[3, 6, 0] in PORTABLE:
        lines.append(f"Tu portes {translate_to_french(*image[3, 6].tolist())}")
    forward_cells, left_cells, right = image[3, 5::-1, 0], image[2::-1, 6, 0], image[4:, 6, 0]
    for line, way in ((forward_cells, "devant"), (left_cells, "à gauche"), (right, "à droite")):
        visible = [kind for kind in line if kind not in EMPTY]
        if visible and visible[0] == WALL:
            lines.append(f"Tu vois un mur à {line.tolist().index(WALL) + 1} pas {way}")
    for x, y in np.ndindex(7, 7):
        if image[x, y, 0] > WALL and (x, y) != (3, 6):
            position = [f"{abs(x - 3)} pas à {'gauche' if x < 3 else 'droite'}"] if x != 3 else []
            position += [f"{6 - y} pas devant"] if y < 6 else []
            lines.append(f"Tu vois {translate_to_french(*image[x, y].tolist())} {' et '.join(position)}")
    return lines


def check_episodes(level: str, n: int, episodes: int, max_steps: int, rng: np.random.Generator) -> Counter[str]:
    """Play `n` parallel games with random actions for `episodes` episodes or `max_steps` steps.

    Episodes restart independently. Compare the text of each step with MiniGrid's own view and the slow rules. Return
    the counts of objects in view.
    """
    encountered: Counter[str] = Counter()
    env = make_env("babyai_text", level=level, n_envs=n, history=1, template="plain", horizon=64)
    env.provide(["prompt", "view"])
    observation = env.reset(seed=0)
    for _ in range(max_steps):
        for i, game in enumerate(env._games.envs):
            image = MiniGridEnv.gen_obs(game)["image"]
            assert np.array_equal(observation["view"][i, 0], image)
            expected = expected_sentences(image)
            prompt = f"Goal of the agent: {game.mission}\nObservation: {', '.join(expected)}\nAction:"
            assert observation["prompt"][i, 0] == prompt
            encountered["sentences"] += len(expected)
            encountered.update(word for word in ("You carry", "a open", "a closed", "a locked") if f"{word} " in prompt)
        step = env.step(rng.choice(6, p=(0.15, 0.15, 0.3, 0.2, 0.05, 0.15), size=(n, 1)))
        done = step.terminated | step.truncated
        encountered.update(fulfilled=int(step.terminated.sum()), cut=int(step.truncated.sum()))
        encountered["begun while others went on"] += int(done.any() and not done.all())
        if encountered["fulfilled"] + encountered["cut"] >= episodes:
            break
        observation = env.reset(mask=done) if done.any() else step.observation
    return encountered


LEVEL_NAMES = ("BabyAI-MixedTrainLocal-v0", "BabyAI-MixedTestLocal-v0", "BabyAI-BossLevel-v0")


def test_sentences_follow_rules() -> None:
    rng = np.random.default_rng(8)
    encountered = sum((check_episodes(level, 25, 100, 22, rng) for level in LEVEL_NAMES), Counter())
    assert encountered["sentences"] > 5000
    assert encountered["You carry"] > 100
    assert min(encountered["a closed"], encountered["a locked"]) > 50
    assert encountered["begun while others went on"] > 0


@pytest.mark.long
def test_random_episodes_follow_rules() -> None:
    rng = np.random.default_rng(9)
    encountered = sum((check_episodes(level, 20, 100, 1000, rng) for level in LEVEL_NAMES), Counter())
    assert encountered["fulfilled"] + encountered["cut"] >= 300
    assert encountered["fulfilled"] > 5
    assert encountered["cut"] > 100
    assert encountered["begun while others went on"] > 10
    assert min(encountered["You carry"], encountered["a open"], encountered["a closed"], encountered["a locked"]) > 100


@pytest.mark.parametrize("language", ["en", "fr"])
def test_arbitrary_map_follows_rules(language: str) -> None:
    """Include views that no level shows: lava, goals, floor, and walls anywhere."""
    rng = np.random.default_rng(3)
    images = np.stack(
        [
            rng.choice(10, p=[0.1, 0.55, 0.1, *[0.25 / 7] * 7], size=(400, 7, 7)),
            *rng.integers((6, 3), size=(400, 7, 7, 2)).transpose(3, 0, 1, 2),
        ],
        axis=-1,
    ).astype(np.uint8)
    rules = describe_view if language == "en" else describe_in_french
    assert get_view_describer(language, 7, 7).describe(images) == [rules(image) for image in images]


@pytest.mark.parametrize("level", LEVELS)
def test_all_babyai_levels_are_describable(level: str) -> None:
    with redirect_stdout(io.StringIO()):
        env = BabyAIText(gymnasium.make(level))
        observation, info = env.reset(seed=1)
        assert info["descriptions"] == expected_sentences(observation["image"])
        for action in (2, 1, 2, 0, 5, 3, 2, 4):
            observation, _, terminated, truncated, info = env.step(action)
            assert info["descriptions"] == expected_sentences(observation["image"])
            if terminated or truncated:
                observation, info = env.reset()


def test_ninety_six_levels_exist() -> None:
    english_levels = [name for name in LEVELS if name != "BabyAI-GoToFrench-v0"]
    assert len(english_levels) == 96


def test_minigrid_levels_are_describable() -> None:
    for name, arguments in (("MiniGrid-LavaCrossingS9N1-v0", {}), ("MiniGrid-DoorKey-8x8-v0", {"agent_view_size": 5})):
        env = BabyAIText(gymnasium.make(name, **arguments))
        _, info = env.reset(seed=0)
        assert all(sentence.startswith("You see a ") for sentence in info["descriptions"])
        assert info["descriptions"]


def test_french_sentences_have_french_genders() -> None:
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
    assert describe_view(image, "fr") == [
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
    assert describe_view(image, "fr")[1] == "Tu vois un mur à 4 pas devant"
