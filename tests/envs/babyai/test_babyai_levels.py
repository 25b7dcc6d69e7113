"""The levels of BabyAI-Text: published episodes, missions, and sampling of levels."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
import warnings
from collections import Counter

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scipy.stats import chi2_contingency

from babyai_wrapper import BabyAIText
from llmrl.envs.babyai.levels import HELD_OUT_OBJECTS, IDS, MISSION_KINDS, register

TRAIN, TEST = "BabyAI-MixedTrainLocal-v0", "BabyAI-MixedTestLocal-v0"
AFTER = "BabyAI-GoToAfterPickUpLocal-v0"
ACTIONS = [2, 0, 2, 2, 1, 2, 3, 2, 4, 5] * 4
# Level, kind, seed; mission, limit of steps, lists of sentences, and a hash of them under `ACTIONS`.
PUBLISHED_EPISODES = [
    (TRAIN, "goto", 0, "go to a grey ball", 64, 41, "e0c31215ed17"),
    (TRAIN, "goto", 1, "go to the red ball", 64, 13, "5a6e26279d10"),
    (TRAIN, "pickup", 1, "pick up the red ball", 64, 41, "2546c29ece8c"),
    (TRAIN, "open", 0, "open the door", 128, 41, "1efdcc16f8cf"),
    (TRAIN, "open", 1, "open the blue door", 128, 41, "fdb92b949ef7"),
    (TRAIN, "putnext", 0, "put a red box next to the red ball", 128, 41, "a917778c5913"),
    (TRAIN, "putnext", 1, "put a red box next to the grey key", 128, 41, "afea82b2edab"),
    (TRAIN, "seq", 0, "pick up the grey box, then go to the grey key", 128, 41, "299657083e2c"),
    (TRAIN, "seq", 1, "pick up the grey box, then go to a purple box", 128, 41, "7ee8ecba7c2c"),
    (TEST, "goto", 0, "go to the yellow box", 64, 2, "ba55076e934e"),
    (TEST, "pickup", 1, "pick up the red key", 64, 41, "468ffbe8bc1f"),
    (TEST, "open", 0, "open the red door", 128, 41, "808d4f261026"),
    (TEST, "putnext", 0, "put the red key next to a yellow box", 128, 41, "6732452d3d06"),
    (TEST, "seq", 0, "pick up a yellow box, then go to a yellow box", 128, 41, "a3c4e3e31e91"),
    (AFTER, "seq", 0, "go to the red ball after you pick up a red box", 128, 41, "a917778c5913"),
]
OBJECT = r"(red|green|blue|purple|yellow|grey) (key|ball|box|door)"
REWARDS = {(TRAIN, "goto", 1): 0.83125, (TEST, "goto", 0): 0.985938}


@pytest.mark.parametrize(("level", "kind", "seed", "mission", "limit", "length", "digest"), PUBLISHED_EPISODES)
def test_reference_episodes_are_reproduced(
    level: str, kind: str, seed: int, mission: str, limit: int, length: int, digest: str
) -> None:
    env = BabyAIText(gymnasium.make(level, kind=kind, sampling="rejection"))
    observation, info = env.reset(seed=seed)
    assert (observation["mission"], env.unwrapped.max_steps) == (mission, limit)
    descriptions, reward = [info["descriptions"]], 0.0
    for action in ACTIONS:
        _, reward, terminated, truncated, info = env.step(action)
        descriptions.append(info["descriptions"])
        if terminated or truncated:
            break
    assert len(descriptions) == length
    compact = json.dumps(descriptions, separators=(",", ":")).encode()
    assert hashlib.sha1(compact).hexdigest()[:12] == digest
    assert reward == pytest.approx(REWARDS.get((level, kind, seed), 0.0), abs=1e-6)


@pytest.mark.parametrize("name", IDS)
def test_gymnasium_checker_passes(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        env = gymnasium.make(name, render_mode="rgb_array")
        check_env(env.unwrapped, skip_render_check=True)
        env.reset(seed=0)
        assert env.render().ndim == 3
    assert not [str(warning.message) for warning in caught_warnings]


def test_plain_make_imports_module_silently() -> None:
    program = (
        "import gymnasium\n"
        "env = gymnasium.make('llmrl.envs.babyai.levels:BabyAI-MixedTestLocal-v0', sampling='rejection')\n"
        "for seed in range(8): env.reset(seed=seed)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == ""
    registered = {name: gymnasium.registry[name] for name in IDS}
    register()
    assert {name: gymnasium.registry[name] for name in IDS} == registered


@pytest.mark.parametrize("sampling", ["direct", "rejection"])
@pytest.mark.parametrize("level", [TRAIN, TEST])
def test_missions_are_disjoint(level: str, sampling: str) -> None:
    forbidden = {f"{color} {noun}" for color, noun in HELD_OUT_OBJECTS}
    env = gymnasium.make(level, sampling=sampling).unwrapped
    kinds = Counter()
    for seed in range(30 if sampling == "rejection" else 200):
        env.reset(seed=seed)
        kinds[env.kind] += 1
        objects = {f"{color} {noun}" for color, noun in re.findall(OBJECT, env.mission)}
        assert objects <= forbidden if level == TEST else not objects & forbidden
        assert (env.mission == "open the door") <= (level == TRAIN)
        assert env.max_steps == (64 if env.kind in ("goto", "pickup") else 128) <= env.max_episode_steps
    assert set(kinds) == set(MISSION_KINDS)
    assert max(kinds.values()) < 2.5 * min(kinds.values()) or sampling == "rejection"


@pytest.mark.parametrize("kind", ["goto", "putnext", "seq"])
def test_direct_sampling_matches_rejection_sampling(kind: str) -> None:
    """Compare missions, start positions, object positions and duplicates with chi-squared tests."""
    n = {"goto": 1000, "putnext": 500, "seq": 600}[kind]
    positions = {}
    for sampling in ("direct", "rejection"):
        env = gymnasium.make(TRAIN, kind=kind, sampling=sampling).unwrapped
        env.gen_obs = dict
        rows = []
        for seed in range(n):
            env.reset(seed=10_000 + seed)
            cells = [(i % 8, i // 8, c.type, c.color) for i, c in enumerate(env.grid.grid) if c and c.type != "wall"]
            x, y = (int(coordinate) for coordinate in env.agent_pos)
            words = env.mission.split()
            rows.append(
                {
                    "first": " ".join(words[3:5]) if kind == "goto" else words[2] + words[3],
                    "article": words.count("the"),
                    "agent": min(x, 7 - x) * 4 + min(y, 7 - y),
                    "heading": int(env.agent_dir),
                    "beside": sum(
                        abs(coordinate[0] - grid_cell[0]) + abs(coordinate[1] - grid_cell[1]) == 1
                        for coordinate in cells
                        for grid_cell in cells
                    )
                    // 4,
                    "nearest": min(abs(coordinate[0] - x) + abs(coordinate[1] - y) for coordinate in cells),
                    "alike": len({(coordinate[2], coordinate[3]) for coordinate in cells}),
                    "corner": sum(coordinate[0] in (1, 6) and coordinate[1] in (1, 6) for coordinate in cells),
                }
            )
        positions[sampling] = rows
    assert len(rows[0]) == 8
    for name in rows[0]:
        counts = [Counter(row[name] for row in positions[sampling]) for sampling in ("direct", "rejection")]
        frequent = [value for value in set(counts[0]) | set(counts[1]) if counts[0][value] + counts[1][value] >= 20]
        assert len(frequent) > 1, name
        assert chi2_contingency([[count[value] for value in frequent] for count in counts]).pvalue > 1e-3, name


def test_sixteen_object_level_matches_minigrid_distribution() -> None:
    custom_env = gymnasium.make("BabyAI-GoToLocalS8N16-v0", num_dists=8, sampling="rejection")
    stock = gymnasium.make("BabyAI-GoToLocal-v0")
    for seed in range(12):
        ours_obs, stock_obs = custom_env.reset(seed=seed)[0], stock.reset(seed=seed)[0]
        assert ours_obs["mission"] == stock_obs["mission"]
        assert np.array_equal(ours_obs["image"], stock_obs["image"])
    full = gymnasium.make("BabyAI-GoToLocalS8N16-v0").unwrapped
    full.reset(seed=0)
    assert sum(cell is not None and cell.type != "wall" for cell in full.grid.grid) == 16
    assert full.check_objs_reachable(raise_exc=False)


def test_test_levels_are_generated_quickly() -> None:
    env = gymnasium.make(TEST).unwrapped
    env.gen_obs = dict
    durations = []
    for seed in range(60):
        start = time.process_time()
        env.reset(seed=seed)
        durations.append(time.process_time() - start)
    assert np.median(durations) < 0.005
    assert np.mean(durations) < 0.010


def test_sequences_follow_level_order() -> None:
    replies = {}
    for name in ("PickUpSeqGoTo", "PickUpThenGoTo", "GoToAfterPickUp", "PickUpSeqPickUp"):
        env = gymnasium.make(f"BabyAI-{name}Local-v0").unwrapped
        missions = []
        for seed in range(20):
            env.reset(seed=seed)
            missions.append(env.mission)
        replies[name] = {
            ("then" if ", then " in mission else "after", mission.count("pick up"), mission.count("go to"))
            for mission in missions
        }
    assert replies["PickUpSeqGoTo"] == {("then", 1, 1), ("after", 1, 1)}
    assert replies["PickUpThenGoTo"] == {("then", 1, 1)}
    assert replies["GoToAfterPickUp"] == {("after", 1, 1)}
    assert replies["PickUpSeqPickUp"] == {("then", 2, 0), ("after", 2, 0)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "dance"}, "kind='dance'.*per_episode, goto, pickup"),
        ({"sampling": "guess"}, "'direct'.*'rejection'"),
        ({"num_dists": 40}, "num_dists=40 .* 0 and 19"),
        ({"num_dists": -1}, "num_dists=-1 .* 0 and 19"),
    ],
)
def test_rejects_impossible_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gymnasium.make(TRAIN, **arguments)
