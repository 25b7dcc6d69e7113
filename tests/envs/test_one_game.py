"""A single game equals the same game in a batch."""

import numpy as np
import pytest

from environments import make_env
from llmrl.core.records import to_numpy
from llmrl.core.seeding import Seeds
from llmrl.envs.escape_room import EscapeRoom
from llmrl.envs.mechanisms import BracketedTax
from llmrl.envs.particles.mpe_scenarios import SimpleReference
from llmrl.envs.particles.vec_env import ParticlesEnv
from llmrl.envs.rooms.tasks import DoorKey
from llmrl.envs.rooms.vec_env import RoomsEnv
from llmrl.loops.independent_games import PerGameSeeding, has_separable_games

N, STEPS = 4, 12


def substrate(name, **options):
    changed = {"n_agents": 3, "horizon": 8, "rules": "upstream", "mechanism": None, **options}
    return make_env(name, n_envs=N, **changed)


ENVS = {
    "gymnasium": lambda: make_env("gymnasium", id="CartPole-v1", n_envs=N),
    "babyai": lambda: make_env("babyai_text", level="BabyAI-GoToRedBall-v0", n_envs=N, horizon=8),
    "cleanup": lambda: substrate("cleanup", observe=["grid", "vector"]),
    "harvest in words": lambda: substrate("harvest", observe=["text"]),
    "taxed harvest": lambda: substrate("harvest", observe=["vector"], mechanism=BracketedTax()),
    "escape room": lambda: make_env("escape_room", n_envs=N),
    "fishery": lambda: make_env("fishery", n_envs=N, max_catch=60),
    "pasture in words": lambda: make_env("pasture", n_envs=N, observe=["text"], mechanism=False),
    "rooms": lambda: RoomsEnv(Seeds(0), DoorKey(), n_envs=N, horizon=8),
    "tax economy": lambda: make_env("tax_economy", n_envs=N, steps_per_year=2, observe=["vector", "text"]),
    "a world of pettingzoo": lambda: make_env("pettingzoo", id="mpe2.simple_speaker_listener_v4", n_envs=N, horizon=8),
    "a world that is taxed": lambda: make_env("pettingzoo", id="pettingzoo.classic.rps_v2", n_envs=N, tax=True),
    "particles": lambda: ParticlesEnv(Seeds(0), SimpleReference(), n_envs=N, horizon=8),
}
for_all_envs = pytest.mark.parametrize("name", ENVS)


def select_game(observation, game):
    """Return the observation of a game as lists; texts are rendered again by each game."""
    return {
        name: np.asarray(to_numpy(x) if not hasattr(x, "tolist") else x.tolist())[game].tolist()
        for name, x in observation.items()
    }


def assert_equal_game(env, single, game, observation, single_observation):
    """Check that a single game equals the game in a batch under the same actions."""
    rng = np.random.default_rng(game)
    assert select_game(observation, game) == select_game(single_observation, 0)
    for _ in range(STEPS):
        actions = rng.integers(env.spec.n_actions, size=(N, env.spec.n_agents))
        if "action_mask" in observation:
            actions *= np.take_along_axis(observation["action_mask"], actions[..., None], axis=2)[..., 0]
        step, single_step = env.step(actions), single.step(actions[[game]])
        assert select_game(step.observation, game) == select_game(single_step.observation, 0)
        for attribute in ("reward", "base_reward", "terminated", "truncated"):
            assert np.array_equal(
                to_numpy(getattr(step, attribute))[game], to_numpy(getattr(single_step, attribute))[0]
            )


@for_all_envs
def test_episode_follows_its_seed(name):
    env, game = ENVS[name](), 2
    assert has_separable_games(env)
    single, seeds = env.make_single_game(), [11, 7, 5, 3]
    if isinstance(env, PerGameSeeding):
        env.seed_games(np.array(seeds))
        single.seed_games(np.array([seeds[game]]))
        observation = env.reset(seed=0)
    else:
        observation = env.reset(seed=seeds)
    assert_equal_game(env, single, game, observation, single.reset(seed=seeds[game]))
    if not isinstance(env, PerGameSeeding):  # and again, of another seed
        assert_equal_game(env, single, game, env.reset(seed=[8, 8, 9, 8]), single.reset(seed=9))


def test_single_game_has_private_mechanism():
    """Check that its mechanism has only the state of this game."""
    env = ENVS["taxed harvest"]()
    single = env.make_single_game()
    env.set_mechanism([0.0, 0.5, 1.0])
    single.set_mechanism([0.2, 0.3, 0.4])
    observation, single_observation = env.reset(seed=1), single.reset(seed=1)
    assert select_game(observation, 0)["mechanism"] == [[0.0, 0.5, 1.0]] * 3
    assert np.allclose(select_game(single_observation, 0)["mechanism"], [[0.2, 0.3, 0.4]] * 3)
    assert env._mechanism is not single._mechanism


class DerivedEnv(EscapeRoom):
    """A subclass without its own declaration."""


def test_subclasses_declare_support():
    assert has_separable_games(make_env("escape_room")) and not has_separable_games(
        DerivedEnv(make_env("escape_room").settings, Seeds(0))
    )


def test_resized_subclass_keeps_its_class():
    resized_env = DerivedEnv(make_env("escape_room").settings, Seeds(0)).resized(2)
    assert type(resized_env) is DerivedEnv and resized_env.spec.n_envs == 2
