"""BabyAI-Text as a `VecEnv`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.babyai.language import vocabulary
from llmrl.envs.babyai.levels import KINDS
from llmrl.envs.babyai.vec_env import BabyAIEnv
from some import some

TRAIN, RED_BALL, LOCAL = "BabyAI-MixedTrainLocal-v0", "BabyAI-GoToRedBall-v0", "BabyAI-GoToLocal-v0"
LEFT, RIGHT, FORWARD = 0, 1, 2


def games(level: str = LOCAL, **options: Any) -> BabyAIEnv:
    return BabyAIEnv(Seeds(3), level, **{"n_envs": 4, **options})


def play(env: BabyAIEnv, actions: np.ndarray) -> list[dict[str, list[Any]]]:
    """What is seen, and what comes of it, while `actions` [T, n] are done; games that end start again."""
    seen = []
    for action in actions:
        step = env.step(action[:, None])
        ended = step.terminated | step.truncated
        observation = env.reset(mask=ended) if ended.any() else step.observation
        seen.append({**{k: v.tolist() for k, v in observation.items()}, "reward": step.reward.tolist()})
    return seen


def test_channels_are_what_the_spec_says() -> None:
    env = games(TRAIN)
    assert (env.spec.n_actions, env.spec.horizon, env.spec.n_agents) == (6, 128, 1)
    observation = env.reset(seed=0)
    assert set(observation) == set(env.spec.observation)
    for name, channel in env.spec.observation.items():
        assert observation[name].shape == (4, 1, *channel.shape)
        assert observation[name].dtype == np.dtype(channel.dtype)
        if channel.dtype != "object":
            assert channel.low <= observation[name].min() <= observation[name].max() <= channel.high
    words = ("", "?", *vocabulary("en"))
    mission = " ".join(words[i] for i in observation["mission"][0, 0])
    assert mission.split() == env.missions[0].replace(",", "").split()
    assert env.spec.observation["mission"].codes == (len(words),)
    assert set(env.kinds) <= set(KINDS)
    assert list(env.spec.metrics) == ["success", *(f"success_{kind}" for kind in KINDS)]


def test_only_what_is_asked_for_is_observed_and_it_stays() -> None:
    env = games()
    env.provide(["view"])
    assert set(env.reset(seed=0)) == {"view"}
    env.provide(["mission"])
    step = env.step(np.full((4, 1), LEFT))
    assert set(step.observation) == {"view", "mission"}


def test_what_is_asked_for_later_is_as_if_it_had_been_asked_for_before() -> None:
    early, late = games(TRAIN), games(TRAIN)
    early.provide(["prompt", "expert"])
    late.provide(["view"])
    actions = np.random.default_rng(0).integers(6, size=(9, 4))
    for env in (early, late):
        env.reset(seed=5)
        play(env, actions)
    late.provide(["prompt", "expert"])
    a, b = early.step(actions[0][:, None]).observation, late.step(actions[0][:, None]).observation
    assert a["prompt"].tolist() == b["prompt"].tolist()
    assert np.array_equal(a["expert"], b["expert"])


def test_the_published_prompt_shows_three_observations_and_the_actions_between_them() -> None:
    env = games(actions="restricted", n_envs=1)
    env.provide(["prompt", "text"])
    observation = env.reset(seed=1)
    seen, done = [], []
    head = f"Possible action of the agent: turn left, turn right, go forward \n Goal of the agent: {env.missions[0]}"
    for action, name in ((LEFT, "turn left"), (RIGHT, "turn right"), (LEFT, "turn left"), (FORWARD, "go forward")):
        seen.append("".join(f"{line}, " for line in json.loads(observation["text"][0, 0])["view"]))
        last, between = seen[-3:], done[len(seen[:-3]) :]
        expected = head
        for i, line in enumerate(last):
            expected += f" \n Observation {i}: {line}\n Action {i}: " + (between[i] if i < len(between) else "")
        assert observation["prompt"][0, 0] == expected
        observation = env.step(np.array([[action]])).observation
        done.append(name)
    # Nothing of one episode is in the prompts of the next.
    fresh = env.reset(seed=2)["prompt"][0, 0]
    assert fresh.count("Observation") == 1
    assert fresh.endswith(", \n Action 0: ".replace(", ", ", ", 1))


def test_the_plain_prompt_and_one_observation() -> None:
    env = games(template="plain", history=1, n_envs=1)
    env.provide(["prompt", "text"])
    env.reset(seed=1)
    observation = env.step(np.array([[LEFT]])).observation
    view = ", ".join(json.loads(observation["text"][0, 0])["view"])
    assert observation["prompt"][0, 0] == f"Goal of the agent: {env.missions[0]}\nObservation: {view}\nAction:"
    longer = games(template="plain", history=2, n_envs=1)
    longer.provide(["prompt"])
    longer.reset(seed=1)
    assert "\nAction: turn left\nObservation: " in longer.step(np.array([[LEFT]])).observation["prompt"][0, 0]


def test_replacements_are_made_one_after_another_in_prompts_and_missions() -> None:
    plain, replaced = games(), games(replace={"ball": "key", "key": "dax", "Goal of the agent": "You have to"})
    for env in (plain, replaced):
        env.provide(["prompt", "mission"])
    a, b = plain.reset(seed=0), replaced.reset(seed=0)
    for i in range(4):
        expected = a["prompt"][i, 0].replace("ball", "key").replace("key", "dax")
        assert b["prompt"][i, 0] == expected.replace("Goal of the agent", "You have to")
        assert replaced.missions[i] == plain.missions[i].replace("ball", "key").replace("key", "dax")
    # What is put there may have the text in it that it stands for.
    once = games(replace={"ball": "big ball"})
    c = once.reset(seed=0)
    assert c["prompt"].tolist() == [[p.replace("ball", "big ball")] for p in a["prompt"][:, 0]]
    assert once.missions == [mission.replace("ball", "big ball") for mission in plain.missions]
    assert any("big ball" in mission for mission in once.missions)
    told = [["You see a ball 1 step left"]]
    assert once.prompt("go to the ball", told, []) == plain.prompt("go to the ball", told, []).replace(
        "ball", "big ball"
    )
    # Words of the tests of generalisation are in the vocabulary; others are unknown.
    assert not (b["mission"] == 1).any()
    assert (games(replace={"go to": "zzz"}).reset(seed=0)["mission"][:, 0, 0] == 1).all()


def test_french_prompts() -> None:
    env = games(TRAIN, language="fr", n_envs=8)
    observation = env.reset(seed=0)
    for prompt, mission in zip(observation["prompt"][:, 0], env.missions, strict=True):
        assert prompt.startswith(
            "Actions possibles pour l'agent: tourner à gauche, tourner à droite, aller tout droit,"
        )
        assert f" \n But de l'agent: {mission} \n Observation 0: " in prompt
        assert "You" not in prompt
    assert env.spec.action_names[3:] == ("attraper", "lâcher", "basculer")
    told = json.loads(env.spec.text.example)
    assert set(told) == {"mission", "view"} == {name for name, _ in env.spec.text.observation}


def test_rewards_are_those_of_the_level_and_twenty_times_them() -> None:
    env = games(RED_BALL, n_envs=16)
    env.provide(["expert"])
    observation = env.reset(seed=0)
    returns, base, lengths, won = np.zeros(16), np.zeros(16), np.zeros(16), np.zeros(16)
    for _ in range(64):
        lengths += ~(env._terminated | env._truncated)
        step = env.step(np.maximum(observation["expert"], 0))
        returns, base, won = returns + step.reward[:, 0], base + step.base_reward[:, 0], won + step.info["success"]
        observation = step.observation
    assert (won == 1).all()
    assert np.allclose(base, 1 - 0.9 * lengths / 64)
    assert np.allclose(returns, 20 * base)
    assert not step.reward.any()


def test_episodes_are_cut_at_the_limit_of_their_mission_or_at_the_horizon() -> None:
    env = games(TRAIN, n_envs=12)
    env.provide(["mission"])
    env.reset(seed=0)
    limits = np.array([64 if kind in ("goto", "pickup") else 128 for kind in env.kinds])
    assert set(limits) == {64, 128}
    cut = np.zeros(12)
    for t in range(1, 129):
        step = env.step(np.full((12, 1), LEFT))
        cut[step.truncated & (cut == 0)] = t
        if t < 64:
            assert not step.truncated.any()
    turned_to = step.terminated  # somebody may have been asked to go where turning is enough
    assert np.array_equal(cut[~turned_to], limits[~turned_to])
    short = games(TRAIN, horizon=5)
    assert short.spec.horizon == 5
    short.reset(seed=0)
    for t in range(5):
        step = short.step(np.full((4, 1), RIGHT))
        assert (step.truncated | step.terminated).all() == (t == 4)


def test_success_is_told_by_kind_and_nothing_of_the_other_kinds() -> None:
    env = games(TRAIN, n_envs=16)
    env.provide(["expert"])
    observation = env.reset(seed=0)
    for _ in range(64):
        step = env.step(np.maximum(observation["expert"], 0))
        observation = step.observation
    for kind in KINDS:
        own = np.array(env.kinds) == kind
        assert own.any()
        assert np.array_equal(np.isnan(step.info[f"success_{kind}"]), ~own)
        assert (step.info[f"success_{kind}"][own] == 1).all()
    assert set(games(TRAIN, kind="open").spec.metrics) == {"success"}
    assert set(games(TRAIN, kind="open").kinds) == {"open"}


def test_kinds_come_from_the_seed_of_an_episode_or_as_published_from_a_lottery() -> None:
    kinds = []
    for _ in range(2):
        env = games(TRAIN, n_envs=16)
        env.reset(seed=7)
        kinds.append(list(env.kinds))
        env.reset()
        kinds.append(list(env.kinds))
    assert kinds[:2] == kinds[2:]
    assert kinds[0] != kinds[1]
    legacy = games(TRAIN, n_envs=16, kind="legacy")
    drawn = list(legacy.kinds)
    assert len(set(drawn)) > 2
    for seed in range(3):
        legacy.reset(seed=seed)
        assert legacy.kinds == drawn
    assert set(legacy.spec.metrics) == {"success", *(f"success_{kind}" for kind in drawn)}


def test_actions_beyond_six_do_nothing() -> None:
    env = games(actions="augmented", n_envs=3)
    env.provide(["view", "prompt"])
    before = env.reset(seed=0)
    after = env.step(np.array([[6], [7], [8]])).observation
    assert np.array_equal(before["view"], after["view"])
    assert [p[0].split("Action 0: ")[1].split(" \n")[0] for p in after["prompt"]] == ["sleep", "do nothing", "think"]
    assert env.spec.text.actions[8][1] == "change nothing"


def test_a_game_goes_on_after_a_resume_as_if_there_had_been_none() -> None:
    rng = np.random.default_rng(1)
    first, rest = rng.integers(6, size=(40, 4)), rng.integers(6, size=(90, 4))
    one = games(TRAIN)
    one.provide(["prompt", "view", "mission", "expert"])
    one.reset(seed=4)
    play(one, first)
    state = json.loads(json.dumps(one.state_dict(), default=np.ndarray.tolist))
    other = games(TRAIN)
    other.provide(["prompt", "view", "mission", "expert"])
    other.load_state_dict(state)
    assert other._observe()["prompt"].tolist() == one._observe()["prompt"].tolist()
    a, b = play(one, rest), play(other, rest)
    assert a == b
    assert len({str(seen["mission"]) for seen in a}) > 1  # new episodes, too


def test_paired_games_play_the_same_levels() -> None:
    env = games(TRAIN, n_envs=6)
    env.pair_games(2)
    env.reset(seed=0)
    assert env.missions[:3] == env.missions[3:]


def test_levels_of_minigrid_are_observed_as_minigrid_does() -> None:
    env = games("MiniGrid-LavaCrossingS9N1-v0", n_envs=2)
    assert set(env.spec.observation) == {"prompt", "text", "view", "mission"}
    observation = env.reset(seed=0)
    for game, view in zip(env._games.envs, observation["view"], strict=True):
        assert np.array_equal(game.gen_obs()["image"], view[0])
    with pytest.raises(ConfigError, match="MiniGrid's bot plays the levels of BabyAI"):
        env.provide(["expert"])


@pytest.mark.parametrize("sampling", ["direct", "rejection"])
@pytest.mark.parametrize("n", [4, 8])
def test_our_level_of_many_objects_takes_other_numbers_and_either_sampling(n: int, sampling: str) -> None:
    env = games("BabyAI-GoToLocalS8N16-v0", kwargs={"num_dists": n}, sampling=sampling)
    for game in env._games.envs:
        assert sum(thing is not None and thing.type != "wall" for thing in game.grid.grid) == n
    stock = games(LOCAL if n == 8 else "BabyAI-GoToLocalS8N4-v0", sampling=sampling)
    assert (env.missions == stock.missions) == (sampling == "rejection")  # which MiniGrid's own levels always have


def test_the_bot_needs_the_actions_it_takes() -> None:
    with pytest.raises(ConfigError, match="picks up, drops and toggles, which the 3 actions"):
        games(TRAIN, actions="restricted", kind="pickup").provide(["expert"])
    # Missions of these are to go somewhere, too, and the way leads through closed doors.
    for level in ("BabyAI-GoTo-v0", "BabyAI-GoToObjMaze-v0"):
        with pytest.raises(ConfigError, match="picks up, drops and toggles, which the 3 actions"):
            games(level, actions="restricted").provide(["expert"])
    for kind in ("per_episode", "seq"):
        for seed in range(3):
            with pytest.raises(ConfigError, match=r"use env\.actions=canonical"):
                BabyAIEnv(Seeds(seed), TRAIN, kind=kind, actions="restricted", n_envs=1).provide(["expert"])
    for level, kind in ((RED_BALL, "per_episode"), ("BabyAI-GoToOpen-v0", "per_episode"), (TRAIN, "goto")):
        games(level, kind=kind, actions="restricted").provide(["expert"])


def test_a_bot_that_gives_up_is_no_advice_until_the_next_episode() -> None:
    env = games("BabyAI-KeyInBox-v0", n_envs=2)
    env.provide(["expert"])
    observation, given_up = env.reset(seed=0), 0
    for _ in range(60):
        given_up += int((observation["expert"] == -1).sum())
        observation = env.step(np.maximum(observation["expert"], 0)).observation
    assert given_up > 0
    assert env.bots_that_gave_up > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "BabyAI-GoToMoon-v0"}, "Gymnasium knows no environment 'BabyAI-GoToMoon-v0'.*ids like it: BabyAI-"),
        ({"level": "CartPole-v1"}, "is no level of MiniGrid or BabyAI"),
        ({"level": LOCAL, "kind": "open"}, "the missions of env.level=BabyAI-GoToLocal-v0 are of one kind"),
        ({"level": "BabyAI-PickUpThenGoToLocal-v0", "kind": "open"}, "has seq"),
        ({"level": TRAIN, "kwargs": {"num_dists": 99}}, "num_dists=99"),
        ({"level": TRAIN, "kwargs": {"colour": 1}}, "colour"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        games(**options)


@pytest.mark.slow
@pytest.mark.parametrize("level", some(["BabyAI-MixedTestLocal-v0"], [TRAIN, "BabyAI-MixedTestLocal-v0"]))
@pytest.mark.parametrize("kind", KINDS)
def test_the_bot_fulfils_every_mission(level: str, kind: str) -> None:
    env = games(level, kind=kind, n_envs=200)
    env.provide(["expert"])
    observation, won = env.reset(seed=1), np.zeros(200)
    for _ in range(128):
        step = env.step(np.maximum(observation["expert"], 0))
        won, observation = won + step.info["success"], step.observation
        if (step.terminated | step.truncated).all():
            break
    assert (won == 1).all()
