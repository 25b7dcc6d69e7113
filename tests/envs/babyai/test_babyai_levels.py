"""The levels of BabyAI-Text: published episodes, what may be asked of an agent, and how levels are drawn."""

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

from llmrl.envs.babyai.levels import HELD_OUT, KINDS
from llmrl.envs.babyai.registration import IDS, register
from llmrl.envs.babyai.text_wrapper import BabyAIText

TRAIN, TEST = "BabyAI-MixedTrainLocal-v0", "BabyAI-MixedTestLocal-v0"
AFTER = "BabyAI-GoToAfterPickUpLocal-v0"
ACTIONS = [2, 0, 2, 2, 1, 2, 3, 2, 4, 5] * 4
# Level, kind, seed; mission, limit of steps, lists of sentences, and a hash of them under `ACTIONS`.
PUBLISHED = [
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


@pytest.mark.parametrize(("level", "kind", "seed", "mission", "limit", "length", "digest"), PUBLISHED)
def test_published_episodes_are_the_same_word_for_word(
    level: str, kind: str, seed: int, mission: str, limit: int, length: int, digest: str
) -> None:
    env = BabyAIText(gymnasium.make(level, kind=kind, sampling="rejection"))
    observation, info = env.reset(seed=seed)
    assert (observation["mission"], env.unwrapped.max_steps) == (mission, limit)
    told, reward = [info["descriptions"]], 0.0
    for action in ACTIONS:
        _, reward, terminated, truncated, info = env.step(action)
        told.append(info["descriptions"])
        if terminated or truncated:
            break
    assert len(told) == length
    compact = json.dumps(told, separators=(",", ":")).encode()
    assert hashlib.sha1(compact).hexdigest()[:12] == digest
    assert reward == pytest.approx(REWARDS.get((level, kind, seed), 0.0), abs=1e-6)


@pytest.mark.parametrize("name", IDS)
def test_gymnasium_s_checker_has_nothing_to_say(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env = gymnasium.make(name, render_mode="rgb_array")
        check_env(env.unwrapped, skip_render_check=True)
        env.reset(seed=0)
        assert env.render().ndim == 3
    assert not [str(warning.message) for warning in caught]


def test_a_plain_make_finds_them_by_module_and_prints_nothing() -> None:
    program = (
        "import gymnasium\n"
        "env = gymnasium.make('llmrl.envs.babyai.registration:BabyAI-MixedTestLocal-v0', sampling='rejection')\n"
        "for seed in range(8): env.reset(seed=seed)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == ""
    before = {name: gymnasium.registry[name] for name in IDS}
    register()
    assert {name: gymnasium.registry[name] for name in IDS} == before


@pytest.mark.parametrize("sampling", ["direct", "rejection"])
@pytest.mark.parametrize("level", [TRAIN, TEST])
def test_missions_of_training_and_test_are_about_different_things(level: str, sampling: str) -> None:
    forbidden = {f"{colour} {noun}" for colour, noun in HELD_OUT}
    env = gymnasium.make(level, sampling=sampling).unwrapped
    kinds = Counter()
    for seed in range(30 if sampling == "rejection" else 200):
        env.reset(seed=seed)
        kinds[env.kind] += 1
        named = {f"{colour} {noun}" for colour, noun in re.findall(OBJECT, env.mission)}
        assert named <= forbidden if level == TEST else not named & forbidden
        assert (env.mission == "open the door") <= (level == TRAIN)
        assert env.max_steps == (64 if env.kind in ("goto", "pickup") else 128) <= env.longest
    assert set(kinds) == set(KINDS)
    assert max(kinds.values()) < 2.5 * min(kinds.values()) or sampling == "rejection"


@pytest.mark.parametrize("kind", ["goto", "putnext", "seq"])
def test_direct_sampling_draws_levels_as_likely_as_rejection_does(kind: str) -> None:
    """Chi-squared tests of what missions say, where the agent stands, how things lie, and how many are alike."""
    n = {"goto": 1000, "putnext": 500, "seq": 600}[kind]
    found = {}
    for sampling in ("direct", "rejection"):
        env = gymnasium.make(TRAIN, kind=kind, sampling=sampling).unwrapped
        env.gen_obs = dict
        rows = []
        for seed in range(n):
            env.reset(seed=10_000 + seed)
            cells = [(i % 8, i // 8, c.type, c.color) for i, c in enumerate(env.grid.grid) if c and c.type != "wall"]
            x, y = (int(a) for a in env.agent_pos)
            words = env.mission.split()
            rows.append(
                {
                    "first": " ".join(words[3:5]) if kind == "goto" else words[2] + words[3],
                    "article": words.count("the"),
                    "agent": min(x, 7 - x) * 4 + min(y, 7 - y),
                    "heading": int(env.agent_dir),
                    "beside": sum(abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for a in cells for b in cells) // 4,
                    "nearest": min(abs(a[0] - x) + abs(a[1] - y) for a in cells),
                    "alike": len({(a[2], a[3]) for a in cells}),
                    "corner": sum(a[0] in (1, 6) and a[1] in (1, 6) for a in cells),
                }
            )
        found[sampling] = rows
    assert len(rows[0]) == 8
    for name in rows[0]:
        counts = [Counter(row[name] for row in found[sampling]) for sampling in ("direct", "rejection")]
        frequent = [value for value in set(counts[0]) | set(counts[1]) if counts[0][value] + counts[1][value] >= 20]
        assert len(frequent) > 1, name
        assert chi2_contingency([[count[value] for value in frequent] for count in counts]).pvalue > 1e-3, name


def test_the_level_with_sixteen_objects_draws_as_minigrid_s_own_with_fewer() -> None:
    ours = gymnasium.make("BabyAI-GoToLocalS8N16-v0", num_dists=8, sampling="rejection")
    stock = gymnasium.make("BabyAI-GoToLocal-v0")
    for seed in range(12):
        a, b = ours.reset(seed=seed)[0], stock.reset(seed=seed)[0]
        assert a["mission"] == b["mission"]
        assert np.array_equal(a["image"], b["image"])
    full = gymnasium.make("BabyAI-GoToLocalS8N16-v0").unwrapped
    full.reset(seed=0)
    assert sum(thing is not None and thing.type != "wall" for thing in full.grid.grid) == 16
    assert full.check_objs_reachable(raise_exc=False)


def test_levels_of_the_test_are_drawn_within_milliseconds() -> None:
    env = gymnasium.make(TEST).unwrapped
    env.gen_obs = dict
    spent = []
    for seed in range(60):
        begun = time.process_time()
        env.reset(seed=seed)
        spent.append(time.process_time() - begun)
    assert np.median(spent) < 0.005
    assert np.mean(spent) < 0.010


def test_sequences_have_the_order_and_the_end_that_their_level_says() -> None:
    said = {}
    for name in ("PickUpSeqGoTo", "PickUpThenGoTo", "GoToAfterPickUp", "PickUpSeqPickUp"):
        env = gymnasium.make(f"BabyAI-{name}Local-v0").unwrapped
        missions = []
        for seed in range(20):
            env.reset(seed=seed)
            missions.append(env.mission)
        said[name] = {
            ("then" if ", then " in mission else "after", mission.count("pick up"), mission.count("go to"))
            for mission in missions
        }
    assert said["PickUpSeqGoTo"] == {("then", 1, 1), ("after", 1, 1)}
    assert said["PickUpThenGoTo"] == {("then", 1, 1)}
    assert said["GoToAfterPickUp"] == {("after", 1, 1)}
    assert said["PickUpSeqPickUp"] == {("then", 2, 0), ("after", 2, 0)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "dance"}, "kind='dance' is none of per_episode, goto, pickup"),
        ({"sampling": "guess"}, "neither 'direct' nor 'rejection'"),
        ({"num_dists": 40}, "not between 0 and 19"),
        ({"num_dists": -1}, "not between 0 and 19"),
    ],
)
def test_arguments_that_no_level_can_have_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gymnasium.make(TRAIN, **arguments)
