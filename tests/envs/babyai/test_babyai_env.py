"""BabyAI-Text as a `VecEnv`."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from environments import make_env
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.babyai.language import list_vocabulary
from llmrl.envs.babyai.levels import MISSION_KINDS
from llmrl.envs.babyai.vec_env import BabyAIEnv
from some import mark_long_except

TRAIN, RED_BALL, LOCAL = "BabyAI-MixedTrainLocal-v0", "BabyAI-GoToRedBall-v0", "BabyAI-GoToLocal-v0"
TURN_LEFT, RIGHT, FORWARD = 0, 1, 2


def games(level: str = LOCAL, **options: Any) -> BabyAIEnv:
    return make_env("babyai_text", Seeds(3), level=level, **{"n_envs": 4, **options})


def play(env: BabyAIEnv, actions: np.ndarray) -> list[dict[str, list[Any]]]:
    """Return observations and outcomes of `actions` [T, n]; games that end start again."""
    history = []
    for action in actions:
        step = env.step(action[:, None])
        done = step.terminated | step.truncated
        observation = env.reset(mask=done) if done.any() else step.observation
        history.append({**{k: v.tolist() for k, v in observation.items()}, "reward": step.reward.tolist()})
    return history


def test_channels_match_spec() -> None:
    env = games(TRAIN)
    assert (env.spec.n_actions, env.spec.horizon, env.spec.n_agents) == (6, 128, 1)
    observation = env.reset(seed=0)
    assert set(observation) == set(env.spec.observation)
    for name, channel in env.spec.observation.items():
        assert observation[name].shape == (4, 1, *channel.shape)
        assert observation[name].dtype == np.dtype(channel.dtype)
        if channel.dtype != "object":
            assert channel.low <= observation[name].min() <= observation[name].max() <= channel.high
    words = ("", "?", *list_vocabulary("en"))
    mission = " ".join(words[i] for i in observation["mission"][0, 0])
    assert mission.split() == env.missions[0].replace(",", "").split()
    assert env.spec.observation["mission"].codes == (len(words),)
    assert set(env.kinds) <= set(MISSION_KINDS)
    assert list(env.spec.metrics) == ["success", *(f"success_{kind}" for kind in MISSION_KINDS)]


def test_requested_channels_are_observed() -> None:
    env = games()
    env.provide(["view"])
    assert set(env.reset(seed=0)) == {"view"}
    env.provide(["mission"])
    step = env.step(np.full((4, 1), TURN_LEFT))
    assert set(step.observation) == {"view", "mission"}


def test_late_channel_request_has_equal_effect() -> None:
    early, late = games(TRAIN), games(TRAIN)
    early.provide(["prompt", "expert"])
    late.provide(["view"])
    actions = np.random.default_rng(0).integers(6, size=(9, 4))
    for env in (early, late):
        env.reset(seed=5)
        play(env, actions)
    late.provide(["prompt", "expert"])
    x, y = early.step(actions[0][:, None]).observation, late.step(actions[0][:, None]).observation
    assert x["prompt"].tolist() == y["prompt"].tolist()
    assert np.array_equal(x["expert"], y["expert"])


def test_prompt_shows_three_observations() -> None:
    env = games(actions="restricted", n_envs=1)
    env.provide(["prompt", "text"])
    observation = env.reset(seed=1)
    observations, done = [], []
    head = f"Possible action of the agent: turn left, turn right, go forward \n Goal of the agent: {env.missions[0]}"
    for action, name in (
        (TURN_LEFT, "turn left"),
        (RIGHT, "turn right"),
        (TURN_LEFT, "turn left"),
        (FORWARD, "go forward"),
    ):
        observations.append("".join(f"{line}, " for line in json.loads(observation["text"][0, 0])["view"]))
        last, intermediate = observations[-3:], done[len(observations[:-3]) :]
        expected = head
        for i, line in enumerate(last):
            expected += f" \n Observation {i}: {line}\n Action {i}: " + (
                intermediate[i] if i < len(intermediate) else ""
            )
        assert observation["prompt"][0, 0] == expected
        observation = env.step(np.array([[action]])).observation
        done.append(name)
    # Nothing of one episode is in the prompts of the next.
    fresh = env.reset(seed=2)["prompt"][0, 0]
    assert fresh.count("Observation") == 1
    assert fresh.endswith(", \n Action 0: ".replace(", ", ", ", 1))


def test_plain_prompt_with_single_observation() -> None:
    env = games(template="plain", history=1, n_envs=1)
    env.provide(["prompt", "text"])
    env.reset(seed=1)
    observation = env.step(np.array([[TURN_LEFT]])).observation
    view = ", ".join(json.loads(observation["text"][0, 0])["view"])
    assert observation["prompt"][0, 0] == f"Goal of the agent: {env.missions[0]}\nObservation: {view}\nAction:"
    longer = games(template="plain", history=2, n_envs=1)
    longer.provide(["prompt"])
    longer.reset(seed=1)
    assert "\nAction: turn left\nObservation: " in longer.step(np.array([[TURN_LEFT]])).observation["prompt"][0, 0]


def test_replacements_apply_sequentially() -> None:
    plain, replaced = games(), games(replace={"ball": "key", "key": "dax", "Goal of the agent": "You have to"})
    for env in (plain, replaced):
        env.provide(["prompt", "mission"])
    x, y = plain.reset(seed=0), replaced.reset(seed=0)
    for i in range(4):
        expected = x["prompt"][i, 0].replace("ball", "key").replace("key", "dax")
        assert y["prompt"][i, 0] == expected.replace("Goal of the agent", "You have to")
        assert replaced.missions[i] == plain.missions[i].replace("ball", "key").replace("key", "dax")
    # What is put there may have the text in it that it stands for.
    replaced_env = games(replace={"ball": "big ball"})
    c = replaced_env.reset(seed=0)
    assert c["prompt"].tolist() == [[p.replace("ball", "big ball")] for p in x["prompt"][:, 0]]
    assert replaced_env.missions == [mission.replace("ball", "big ball") for mission in plain.missions]
    assert any("big ball" in mission for mission in replaced_env.missions)
    sentences = [["You see a ball 1 step left"]]
    assert replaced_env.prompt("go to the ball", sentences, []) == plain.prompt(
        "go to the ball", sentences, []
    ).replace("ball", "big ball")
    # Words of the tests of generalization are in the vocabulary; others are unknown.
    assert not (y["mission"] == 1).any()
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
    example = json.loads(env.spec.text.example)
    assert set(example) == {"mission", "view"} == {name for name, _ in env.spec.text.observation}


def test_rewards_equal_scaled_level_rewards() -> None:
    env = games(RED_BALL, n_envs=16)
    env.provide(["expert"])
    observation = env.reset(seed=0)
    returns, base, lengths, successes = np.zeros(16), np.zeros(16), np.zeros(16), np.zeros(16)
    for _ in range(64):
        lengths += ~(env._terminated | env._truncated)
        step = env.step(np.maximum(observation["expert"], 0))
        returns, base, successes = (
            returns + step.reward[:, 0],
            base + step.base_reward[:, 0],
            successes + step.info["success"],
        )
        observation = step.observation
    assert (successes == 1).all()
    assert np.allclose(base, 1 - 0.9 * lengths / 64)
    assert np.allclose(returns, 20 * base)
    assert not step.reward.any()


def test_episodes_are_truncated() -> None:
    env = games(TRAIN, n_envs=12)
    env.provide(["mission"])
    env.reset(seed=0)
    limits = np.array([64 if kind in ("goto", "pickup") else 128 for kind in env.kinds])
    assert set(limits) == {64, 128}
    truncations = np.zeros(12)
    for t in range(1, 129):
        step = env.step(np.full((12, 1), TURN_LEFT))
        truncations[step.truncated & (truncations == 0)] = t
        if t < 64:
            assert not step.truncated.any()
    is_terminated = step.terminated  # somebody may have been asked to go where turning is enough
    assert np.array_equal(truncations[~is_terminated], limits[~is_terminated])
    short = games(TRAIN, horizon=5)
    assert short.spec.horizon == 5
    short.reset(seed=0)
    for t in range(5):
        step = short.step(np.full((4, 1), RIGHT))
        assert (step.truncated | step.terminated).all() == (t == 4)


def test_success_is_reported_by_kind() -> None:
    env = games(TRAIN, n_envs=16)
    env.provide(["expert"])
    observation = env.reset(seed=0)
    for _ in range(64):
        step = env.step(np.maximum(observation["expert"], 0))
        observation = step.observation
    for kind in MISSION_KINDS:
        of_kind = np.array(env.kinds) == kind
        assert of_kind.any()
        assert np.array_equal(np.isnan(step.info[f"success_{kind}"]), ~of_kind)
        assert (step.info[f"success_{kind}"][of_kind] == 1).all()
    assert set(games(TRAIN, kind="open").spec.metrics) == {"success"}
    assert set(games(TRAIN, kind="open").kinds) == {"open"}


def test_kinds_follow_seed_or_lottery() -> None:
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
    kinds_drawn = list(legacy.kinds)
    assert len(set(kinds_drawn)) > 2
    for seed in range(3):
        legacy.reset(seed=seed)
        assert legacy.kinds == kinds_drawn
    assert set(legacy.spec.metrics) == {"success", *(f"success_{kind}" for kind in kinds_drawn)}


@pytest.mark.parametrize("seed", range(4))
def test_horizon_covers_kinds_of_all_games(seed: int) -> None:
    env = make_env("babyai_text", Seeds(seed), level=TRAIN, kind="legacy", n_envs=8)
    assert env.spec.horizon == max(64 if kind in ("goto", "pickup") else 128 for kind in env.kinds)


def test_extra_actions_do_nothing() -> None:
    env = games(actions="augmented", n_envs=3)
    env.provide(["view", "prompt"])
    initial = env.reset(seed=0)
    after = env.step(np.array([[6], [7], [8]])).observation
    assert np.array_equal(initial["view"], after["view"])
    assert [p[0].split("Action 0: ")[1].split(" \n")[0] for p in after["prompt"]] == ["sleep", "do nothing", "think"]
    assert env.spec.text.actions[8][1] == "change nothing"


def test_resume_reproduces_game() -> None:
    rng = np.random.default_rng(1)
    first, rest = rng.integers(6, size=(40, 4)), rng.integers(6, size=(90, 4))
    train_games = games(TRAIN)
    train_games.provide(["prompt", "view", "mission", "expert"])
    train_games.reset(seed=4)
    play(train_games, first)
    state = json.loads(json.dumps(train_games.state_dict(), default=np.ndarray.tolist))
    test_games = games(TRAIN)
    test_games.provide(["prompt", "view", "mission", "expert"])
    test_games.load_state_dict(state)
    assert test_games._observe()["prompt"].tolist() == train_games._observe()["prompt"].tolist()
    x, y = play(train_games, rest), play(test_games, rest)
    assert x == y
    assert len({str(step_record["mission"]) for step_record in x}) > 1  # new episodes, too


def test_paired_games_share_levels() -> None:
    env = games(TRAIN, n_envs=6)
    env.share_random_numbers(2)
    env.reset(seed=0)
    assert env.missions[:3] == env.missions[3:]


def test_minigrid_levels_have_minigrid_observations() -> None:
    env = games("MiniGrid-LavaCrossingS9N1-v0", n_envs=2)
    assert set(env.spec.observation) == {"prompt", "text", "view", "mission"}
    observation = env.reset(seed=0)
    for game, view in zip(env._games.envs, observation["view"], strict=True):
        assert np.array_equal(game.gen_obs()["image"], view[0])
    with pytest.raises(ConfigError, match=r"MiniGrid.*BabyAI"):
        env.provide(["expert"])


@pytest.mark.parametrize("sampling", ["direct", "rejection"])
@pytest.mark.parametrize("n", [4, 8])
def test_custom_level_accepts_object_count_and_sampling(n: int, sampling: str) -> None:
    env = games("BabyAI-GoToLocalS8N16-v0", kwargs={"num_dists": n}, sampling=sampling)
    for game in env._games.envs:
        assert sum(cell is not None and cell.type != "wall" for cell in game.grid.grid) == n
    stock = games(LOCAL if n == 8 else "BabyAI-GoToLocalS8N4-v0", sampling=sampling)
    assert (env.missions == stock.missions) == (sampling == "rejection")  # which MiniGrid's own levels always have


def test_bot_requires_its_actions() -> None:
    with pytest.raises(ConfigError, match="3 actions"):
        games(TRAIN, actions="restricted", kind="pickup").provide(["expert"])
    # Missions of these are to go somewhere, too, and the way leads through closed doors.
    for level in ("BabyAI-GoTo-v0", "BabyAI-GoToObjMaze-v0"):
        with pytest.raises(ConfigError, match="3 actions"):
            games(level, actions="restricted").provide(["expert"])
    for kind in ("per_episode", "seq"):
        for seed in range(3):
            env = make_env("babyai_text", Seeds(seed), level=TRAIN, kind=kind, actions="restricted", n_envs=1)
            with pytest.raises(ConfigError, match=r"env\.actions=canonical"):
                env.provide(["expert"])
    for level, kind in ((RED_BALL, "per_episode"), ("BabyAI-GoToOpen-v0", "per_episode"), (TRAIN, "goto")):
        games(level, kind=kind, actions="restricted").provide(["expert"])


def test_failed_bot_gives_no_advice_until_reset() -> None:
    env = games("BabyAI-KeyInBox-v0", n_envs=2)
    env.provide(["expert"])
    observation, n_failures = env.reset(seed=0), 0
    for _ in range(60):
        n_failures += int((observation["expert"] == -1).sum())
        observation = env.step(np.maximum(observation["expert"], 0)).observation
    assert n_failures > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "BabyAI-GoToMoon-v0"}, "'BabyAI-GoToMoon-v0'.*BabyAI"),
        ({"level": "CartPole-v1"}, "MiniGrid.*BabyAI"),
        ({"level": LOCAL, "kind": "open"}, "env.level=BabyAI-GoToLocal-v0"),
        ({"level": "BabyAI-PickUpThenGoToLocal-v0", "kind": "open"}, "per_episode, seq"),
        ({"level": TRAIN, "kwargs": {"num_dists": 99}}, "num_dists=99"),
        ({"level": TRAIN, "kwargs": {"color": 1}}, "color"),
    ],
)
def test_error_names_invalid_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        games(**options)


@pytest.mark.slow
@pytest.mark.parametrize("level", mark_long_except(["BabyAI-MixedTestLocal-v0"], [TRAIN, "BabyAI-MixedTestLocal-v0"]))
@pytest.mark.parametrize("kind", MISSION_KINDS)
def test_bot_completes_all_missions(level: str, kind: str) -> None:
    env = games(level, kind=kind, n_envs=60)
    env.provide(["expert"])
    observation, successes = env.reset(seed=1), np.zeros(60)
    for _ in range(128):
        step = env.step(np.maximum(observation["expert"], 0))
        successes, observation = successes + step.info["success"], step.observation
        if (step.terminated | step.truncated).all():
            break
    assert (successes == 1).all()
