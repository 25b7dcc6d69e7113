"""Descriptions of an environment instance: its limit of steps, its arguments and its criterion of success."""

import inspect
import re

import gymnasium
import pytest
import yaml

from environments import make_env
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_options
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.episode_scores import SuccessCriterion
from llmrl.envs.texts import build_describer


class TestCircumstances:
    """Descriptions of an environment instance, not of its class."""

    @pytest.mark.parametrize(
        ("text", "env_factory", "steps"),
        [
            ("taxi", EnvFactory("Taxi-v4"), 200),
            ("taxi", EnvFactory("Taxi-v4", horizon=50), 50),
            ("cartpole", EnvFactory("CartPole-v1", horizon=70), 70),
            ("own", EnvFactory("llmrl/Pong-v0", horizon=300), 300),
            ("auto", EnvFactory("Pendulum-v1"), 200),
            ("minigrid", EnvFactory("MiniGrid-Empty-5x5-v0", {"max_steps": 30}), 30),
            ("minigrid", EnvFactory("MiniGrid-Empty-5x5-v0", {"max_steps": 30}, horizon=20), 20),
            ("cliff_walking", EnvFactory("CliffWalking-v1"), None),
            ("blackjack", EnvFactory("Blackjack-v1"), None),
            ("babyai", EnvFactory("BabyAI-GoToRedBall-v0"), None),
        ],
    )
    def test_step_limit(self, text, env_factory, steps):
        facts = re.findall(r"(?:after|lasts) (\d+) steps(?! or more)", build_describer(text, env_factory).game.goal)
        assert facts == ([] if steps is None else [str(steps)])


GAMES = {
    option["text"]: option["id"]
    for option in load_options("env").values()
    if option.get("text") not in (None, "own") and option["_target_"].endswith(".GymnasiumEnv")
} | {"lunar_lander_vectors": "LunarLander-v3", "taxi_number": "Taxi-v4"}
MUJOCO = ("Swimmer-v5", "Hopper-v5", "Walker2d-v5", "Reacher-v5", "InvertedDoublePendulum-v5", "InvertedPendulum-v5")


def goal(text, name, kwargs=None, criterion=None):
    if name in MUJOCO:
        pytest.importorskip("mujoco")
    if name.startswith("LunarLander"):
        pytest.importorskip("Box2D")
    return build_describer(text, EnvFactory(name, kwargs or {}), criterion).game.goal


CHANGED = [
    # text, id, arguments, what is said then, and what is said as a rule
    ("taxi", "Taxi-v4", {"is_rainy": True, "rainy_probability": 0.7}, "It rains.*with probability 0.7", None),
    ("taxi_number", "Taxi-v4", {"fickle_passenger": True}, "probability 0.3.*changes the destination", None),
    ("blackjack", "Blackjack-v1", {"natural": True, "sab": False}, "gives 1.5", "win against any other cards"),
    ("cartpole", "CartPole-v1", {"sutton_barto_reward": True}, "too far costs 1, every other", "gives a reward of 1"),
    ("mountain_car", "MountainCar-v0", {"goal_velocity": 0.02}, "a speed of 0.02 or more", None),
    ("mountain_car_continuous", "MountainCarContinuous-v0", {"goal_velocity": 0.02}, "a speed of 0.02 or more", None),
    ("frozen_lake", "FrozenLake-v1", {"reward_schedule": [5, -1, 0.5]}, "gives 5 .* gives -1 .* gives 0.5", "gives 1 "),
    ("lunar_lander", "LunarLander-v3", {"gravity": -3.0}, "is -3", None),
    ("lunar_lander_vectors", "LunarLander-v3", {"enable_wind": True, "wind_power": 7.0}, "There is wind.*to 7", None),
    ("swimmer", "Swimmer-v5", {"ctrl_cost_weight": 5}, "less 5 times", "less 0.0001 times"),
    ("hopper", "Hopper-v5", {"healthy_reward": 0.0}, "It gives 0 more", "It gives 1 more"),
    ("hopper", "Hopper-v5", {"healthy_z_range": [0.5, 2]}, "between 0.5 and 2 m", "between 0.7 and infinity m"),
    ("walker2d", "Walker2d-v5", {"terminate_when_unhealthy": False}, "episode goes on when", "episode ends when"),
    ("reacher", "Reacher-v5", {"reward_control_weight": 0.1}, "and 0.1 times", "and 1 times"),
    ("inverted_double_pendulum", "InvertedDoublePendulum-v5", {"healthy_reward": 2}, "gives 2 ", "gives 10 "),
    ("own", "llmrl/Maze-v0", {"parity": True}, "From the 200th step on the goal does not end", None),
    (
        "own",
        "llmrl/Nim-v0",
        {"takes": [0, 1, 2]},
        "you 0, 1 or 2, your opponent 1, 2 or 3",
        "take 1, 2 or 3 of them in",
    ),
]


class TestArguments:
    """Descriptions are true for any arguments of the environment."""

    @pytest.mark.parametrize(("text", "name", "kwargs", "phrase", "usual"), CHANGED)
    def test_describes_changed_arguments(self, text, name, kwargs, phrase, usual):
        changed, plain = goal(text, name, kwargs), goal(text, name)
        if text == "blackjack":
            plain = goal(text, name, {"natural": False, "sab": True})
        assert re.search(phrase, changed) and not re.search(phrase, plain)
        if usual is not None:
            assert usual in plain and usual not in changed
        # What a text knows of is not told a second time.
        assert "Changed settings" not in changed and "Changed settings" not in plain

    @pytest.mark.parametrize(
        ("text", "name", "kwargs", "facts"),
        [
            (
                "hopper",
                "Hopper-v5",
                {"reset_noise_scale": 0.1, "frame_skip": 2},
                "reset_noise_scale = 0.1, frame_skip = 2",
            ),
            (
                "inverted_pendulum",
                "InvertedPendulum-v5",
                {"frame_skip": 2, "reset_noise_scale": 0.3},
                "reset_noise_scale = 0.3",
            ),
            ("minigrid", "MiniGrid-Empty-5x5-v0", {"agent_view_size": 5}, "agent_view_size = 5"),
            ("minigrid", "MiniGrid-Empty-5x5-v0", {"size": 7, "max_steps": 9, "tile_size": 8}, "size = 7"),
            ("babyai", "BabyAI-GoToRedBall-v0", {"max_steps": 9}, "max_steps = 9"),
            ("auto", "Pendulum-v1", {"g": 5}, "g = 5"),
            ("auto", "CartPole-v1", {"sutton_barto_reward": True}, "sutton_barto_reward = true"),
        ],
    )
    def test_lists_undescribed_arguments(self, text, name, kwargs, facts):
        assert f"\nChanged settings of the game: {facts}.\n" in goal(text, name, kwargs) + "\n"
        assert "Changed settings" not in goal(text, name)

    def test_unregistered_environment(self):
        """Inspect the environment itself."""
        from gymnasium.envs.classic_control import CartPoleEnv, MountainCarEnv, PendulumEnv

        assert (
            "every other step gives 0" in build_describer("cartpole", CartPoleEnv(sutton_barto_reward=True)).game.goal
        )
        assert "a speed of 0.03" in build_describer("mountain_car", MountainCarEnv(goal_velocity=0.03)).game.goal
        assert "g = 4." in build_describer("auto", PendulumEnv(g=4)).game.goal
        assert "Changed" not in build_describer("auto", PendulumEnv()).game.goal

    def test_numbers_and_booleans(self):
        assert goal("cartpole", "CartPole-v1", {"sutton_barto_reward": 1}) == goal(
            "cartpole", "CartPole-v1", {"sutton_barto_reward": True}
        )
        assert goal("mountain_car", "MountainCar-v0", {"goal_velocity": 0.0}) == goal("mountain_car", "MountainCar-v0")

    @pytest.mark.parametrize(
        ("change", "facts"),
        [
            ({"goal": "Gravity is {g}."}, "Gravity is 5."),
            ({"arguments": {"g": {10: "As on Earth.", "other": "Gravity is {g}."}}}, "Swing.\nGravity is 5."),
            ({"arguments": {"g": {10: "As on Earth."}}}, "Swing.\nChanged settings of the game: g = 5."),
            ({"goal": 'Say {"a": 1} or {}. {g}'}, 'Say {"a": 1} or {}. 5'),
        ],
    )
    def test_custom_text(self, tmp_path, change, facts):
        assert self.run_with_change(tmp_path, change, {"g": 5}).startswith(facts + "\n")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"goal": "Gravity is {gravity}."}, "{gravity}"),
            ({"goal": "Gravity is {g[0]}."}, "{g[0]}, as g is 10"),
            ({"arguments": {"gravity": {10: "As on Earth."}}}, "arguments.gravity"),
        ],
    )
    def test_missing_facts(self, tmp_path, change, message):
        with pytest.raises(ConfigError) as error:
            self.run_with_change(tmp_path, change, {})
        assert message in str(error.value)

    def run_with_change(self, tmp_path, change, kwargs):
        file = tmp_path / "pendulum.yaml"
        text = {"goal": "Swing.", "observation": {"x": "x", "y": "y", "speed": "s"}, "actions": {"torque": "t"}}
        file.write_text(yaml.safe_dump({**text, **change}))
        return goal(str(file), "Pendulum-v1", kwargs)


ALWAYS = {
    "taxi": {"is_rainy": True, "fickle_passenger": True},
    "lunar_lander": {"enable_wind": True},
    "blackjack": {"sab": False},
}
"""Arguments without which others mean nothing."""


@pytest.mark.parametrize("text", sorted(GAMES))
def test_describes_all_arguments(text):
    """Check that each changed number or boolean changes the description or is rejected."""
    id, base = GAMES[text], ALWAYS.get(text.removesuffix("_vectors").removesuffix("_number"), {})
    plain = goal(text, id, base)
    game = type(gymnasium.make(id, disable_env_checker=True).unwrapped)
    for name, parameter in inspect.signature(game.__init__).parameters.items():
        value = {**gymnasium.spec(id).kwargs, **base}.get(name, parameter.default)
        if name in ("self", "render_mode", "max_steps") or not isinstance(value, bool | int | float | tuple):
            continue
        if isinstance(value, bool):
            changed = not value
        elif name.endswith(("rate", "probability")):
            changed = 0.6
        elif isinstance(value, tuple):
            changed = tuple(x / 2 + 0.25 for x in value)
        else:
            changed = value + 1 if isinstance(value, int) else value / 2 + 1.1
        try:
            facts = goal(text, id, {**base, name: changed})
        except ConfigError as error:
            assert "observation" in str(error) or "actions" in str(error)
        else:
            assert facts != plain, name


class TestSuccess:
    @pytest.mark.parametrize(
        ("text", "name", "criterion", "phrase"),
        [
            ("taxi", "Taxi-v4", SuccessCriterion("terminated"), "the passenger is delivered"),
            ("taxi", "Taxi-v4", SuccessCriterion("return", 5.0), "the sum of its rewards is 5 or more"),
            ("cartpole", "CartPole-v1", SuccessCriterion("return", 50.0), "the sum of its rewards is 50 or more"),
            ("blackjack", "Blackjack-v1", SuccessCriterion("return", 1.0), "you win"),
            ("blackjack", "Blackjack-v1", SuccessCriterion("return", 1.5), "the sum of its rewards is 1.5 or more"),
            ("minigrid", "MiniGrid-Empty-5x5-v0", SuccessCriterion("reward", 0.01), "the mission is fulfilled"),
            (
                "minigrid",
                "MiniGrid-Empty-5x5-v0",
                SuccessCriterion("reward", 0.9),
                "the reward of one of its steps is 0.9 or more",
            ),
            ("own", "llmrl/Pong-v0", SuccessCriterion("return", 3.0), "the sum of its rewards is 3 or more"),
            (
                "auto",
                "Acrobot-v1",
                SuccessCriterion("terminated"),
                "the game ends by itself, not because the steps have run out",
            ),
        ],
    )
    def test_describes_metrics(self, text, name, criterion, phrase):
        assert goal(text, name, None, criterion).endswith(f"\nAn episode is a success if {phrase}.")
        assert "success" not in goal(text, name)

    def test_facts_of_run(self):
        env = make_env("gymnasium", id="CartPole-v1", n_envs=1, text="cartpole", success="return", success_threshold=50)
        assert env.spec.text.goal.endswith("the sum of its rewards is 50 or more.")
