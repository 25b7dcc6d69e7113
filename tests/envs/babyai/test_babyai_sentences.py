"""Descriptions and views, against a slow re-statement of their rules and against MiniGrid."""

from __future__ import annotations

import io
from collections import Counter
from contextlib import redirect_stdout

import gymnasium
import numpy as np
import pytest
from minigrid.minigrid_env import MiniGridEnv

import llmrl.envs.babyai.registration  # noqa: F401
from llmrl.core.seeding import Seeds
from llmrl.envs.babyai.sentences import sentences, view_describer
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


FEMININE = {4: "porte", 5: "clef", 6: "balle", 7: "boîte", 9: "lave"}
MASCULINE = {3: "sol", 8: "but"}
FRENCH_COLOURS = (
    ("rouge", "rouge"),
    ("verte", "vert"),
    ("bleue", "bleu"),
    ("violette", "violet"),
    ("jaune", "jaune"),
    ("grise", "gris"),
)
CAN_BE_CARRIED, EMPTY, WALL, DOOR = (5, 6, 7), (0, 1), 2, 4


def in_french(kind: int, colour: int, state: int) -> str:
    if kind in MASCULINE:
        return f"un {MASCULINE[kind]} {FRENCH_COLOURS[colour][1]}"
    said = f"une {FEMININE[kind]} {FRENCH_COLOURS[colour][0]}"
    return f"{said} {('ouverte', 'fermée', 'fermée à clef')[state]}" if kind == DOOR else said


def told_in_french(image: np.ndarray) -> list[str]:
    """The same rules, in French words: nouns before colours, a door's state last, `pas` however many."""
    lines = []
    if image[3, 6, 0] in CAN_BE_CARRIED:
        lines.append(f"Tu portes {in_french(*image[3, 6].tolist())}")
    ahead, left, right = image[3, 5::-1, 0], image[2::-1, 6, 0], image[4:, 6, 0]
    for line, way in ((ahead, "devant"), (left, "à gauche"), (right, "à droite")):
        before = [kind for kind in line if kind not in EMPTY]
        if before and before[0] == WALL:
            lines.append(f"Tu vois un mur à {line.tolist().index(WALL) + 1} pas {way}")
    for x, y in np.ndindex(7, 7):
        if image[x, y, 0] > WALL and (x, y) != (3, 6):
            where = [f"{abs(x - 3)} pas à {'gauche' if x < 3 else 'droite'}"] if x != 3 else []
            where += [f"{6 - y} pas devant"] if y < 6 else []
            lines.append(f"Tu vois {in_french(*image[x, y].tolist())} {' et '.join(where)}")
    return lines


def check_played(level: str, n: int, episodes: int, most: int, rng: np.random.Generator) -> Counter[str]:
    """Play `n` lock-step games with random actions until so many `episodes` are over (or `most` steps), each of which
    begins anew while the others go on; what is told in every step against MiniGrid's own view of each game and the
    restated rules. Returns what was met."""
    met: Counter[str] = Counter()
    env = BabyAIEnv(Seeds(0), level, n_envs=n, history=1, template="plain", horizon=64)
    env.provide(["prompt", "view"])
    observation = env.reset(seed=0)
    for _ in range(most):
        for i, game in enumerate(env._games.envs):
            image = MiniGridEnv.gen_obs(game)["image"]
            assert np.array_equal(observation["view"][i, 0], image)
            expected = told(image)
            prompt = f"Goal of the agent: {game.mission}\nObservation: {', '.join(expected)}\nAction:"
            assert observation["prompt"][i, 0] == prompt
            met["sentences"] += len(expected)
            met.update(word for word in ("You carry", "a open", "a closed", "a locked") if f"{word} " in prompt)
        step = env.step(rng.choice(6, p=(0.15, 0.15, 0.3, 0.2, 0.05, 0.15), size=(n, 1)))
        over = step.terminated | step.truncated
        met.update(fulfilled=int(step.terminated.sum()), cut=int(step.truncated.sum()))
        met["begun while others went on"] += int(over.any() and not over.all())
        if met["fulfilled"] + met["cut"] >= episodes:
            break
        observation = env.reset(mask=over) if over.any() else step.observation
    return met


DRAWN = ("BabyAI-MixedTrainLocal-v0", "BabyAI-MixedTestLocal-v0", "BabyAI-BossLevel-v0")


def test_what_is_told_is_told_by_the_rules() -> None:
    rng = np.random.default_rng(8)
    met = sum((check_played(level, 25, 100, 22, rng) for level in DRAWN), Counter())
    assert met["sentences"] > 5000
    assert met["You carry"] > 100
    assert min(met["a closed"], met["a locked"]) > 50
    assert met["begun while others went on"] > 0


@pytest.mark.long
def test_three_hundred_random_episodes_are_told_by_the_rules_to_their_end() -> None:
    rng = np.random.default_rng(9)
    met = sum((check_played(level, 20, 100, 1000, rng) for level in DRAWN), Counter())
    assert met["fulfilled"] + met["cut"] >= 300
    assert met["fulfilled"] > 5
    assert met["cut"] > 100
    assert met["begun while others went on"] > 10
    assert min(met["You carry"], met["a open"], met["a closed"], met["a locked"]) > 100


@pytest.mark.parametrize("language", ["en", "fr"])
def test_any_map_of_codes_is_told_by_the_rules(language: str) -> None:
    """Views that no level shows, too: lava, goals, floor, walls anywhere."""
    rng = np.random.default_rng(3)
    images = np.stack(
        [
            rng.choice(10, p=[0.1, 0.55, 0.1, *[0.25 / 7] * 7], size=(400, 7, 7)),
            *rng.integers((6, 3), size=(400, 7, 7, 2)).transpose(3, 0, 1, 2),
        ],
        axis=-1,
    ).astype(np.uint8)
    rules = told if language == "en" else told_in_french
    assert view_describer(language, 7, 7).tell(images) == [rules(image) for image in images]


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
