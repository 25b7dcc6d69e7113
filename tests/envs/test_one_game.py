"""One game by itself is the game it would be among others."""

import numpy as np
import pytest

from llmrl.core.records import on_host
from llmrl.core.seeding import Seeds
from llmrl.envs.babyai.vec_env import BabyAIEnv
from llmrl.envs.commons import Commons
from llmrl.envs.escape_room import EscapeRoom
from llmrl.envs.gym.vec_env import GymnasiumEnv
from llmrl.envs.mechanisms import BracketedTax
from llmrl.envs.particles.simple_reference import SimpleReference
from llmrl.envs.particles.vec_env import ParticlesEnv
from llmrl.envs.pettingzoo.vec_env import PettingZooEnv
from llmrl.envs.rooms.minigrid_tasks import DoorKey
from llmrl.envs.rooms.vec_env import RoomsEnv
from llmrl.envs.substrates import substrate_env
from llmrl.envs.tax_economy import TaxEconomy
from llmrl.loops.independent_games import PerGameSeeding, separable

N, STEPS = 4, 12


def substrate(name, **options):
    return substrate_env(name, N, Seeds(0), "cpu", n_agents=3, horizon=8, **options)


ENVS = {
    "gymnasium": lambda: GymnasiumEnv(Seeds(0), "CartPole-v1", n_envs=N),
    "babyai": lambda: BabyAIEnv(Seeds(0), "BabyAI-GoToRedBall-v0", n_envs=N, horizon=8),
    "cleanup": lambda: substrate("cleanup", observe=["grid", "vector"]),
    "harvest in words": lambda: substrate("harvest", observe=["text"]),
    "taxed harvest": lambda: substrate("harvest", observe=["vector"], mechanism=BracketedTax()),
    "escape room": lambda: EscapeRoom(Seeds(0), n_envs=N),
    "fishery": lambda: Commons(Seeds(0), n_envs=N, most=60),
    "pasture in words": lambda: Commons(Seeds(0), "pasture", n_envs=N, observe=["text"], mechanism=False),
    "rooms": lambda: RoomsEnv(Seeds(0), DoorKey(), n_envs=N, horizon=8),
    "tax economy": lambda: TaxEconomy(Seeds(0), n_envs=N, steps_per_year=2, observe=["vector", "text"]),
    "a world of pettingzoo": lambda: PettingZooEnv(Seeds(0), "mpe2.simple_speaker_listener_v4", n_envs=N, horizon=8),
    "a world that is taxed": lambda: PettingZooEnv(Seeds(0), "pettingzoo.classic.rps_v2", n_envs=N, tax=True),
    "particles": lambda: ParticlesEnv(Seeds(0), SimpleReference(), n_envs=N, horizon=8),
}
every_env = pytest.mark.parametrize("name", ENVS)


def shown(observation, game):
    """What a game shows, as lists; texts are told anew by each."""
    return {
        name: np.asarray(on_host(x) if not hasattr(x, "tolist") else x.tolist())[game].tolist()
        for name, x in observation.items()
    }


def same(env, one, game, seen, own):
    """Whether a game by itself goes as it does among others, under the same actions."""
    rng = np.random.default_rng(game)
    assert shown(seen, game) == shown(own, 0)
    for _ in range(STEPS):
        actions = rng.integers(env.spec.n_actions, size=(N, env.spec.n_agents))
        if "action_mask" in seen:
            actions *= np.take_along_axis(seen["action_mask"], actions[..., None], axis=2)[..., 0]
        step, alone = env.step(actions), one.step(actions[[game]])
        assert shown(step.observation, game) == shown(alone.observation, 0)
        for told in ("reward", "base_reward", "terminated", "truncated"):
            assert np.array_equal(on_host(getattr(step, told))[game], on_host(getattr(alone, told))[0])


@every_env
def test_an_episode_depends_on_its_seed_alone(name):
    env, game = ENVS[name](), 2
    assert separable(env)
    one, seeds = env.one_game(), [11, 7, 5, 3]
    if isinstance(env, PerGameSeeding):
        env.seed_games(np.array(seeds))
        one.seed_games(np.array([seeds[game]]))
        seen = env.reset(seed=0)
    else:
        seen = env.reset(seed=seeds)
    same(env, one, game, seen, one.reset(seed=seeds[game]))
    if not isinstance(env, PerGameSeeding):  # and again, of another seed
        same(env, one, game, env.reset(seed=[8, 8, 9, 8]), one.reset(seed=9))


@every_env
def test_a_game_can_take_the_place_of_any_other(name):
    env = ENVS[name]()
    one = env.one_game()
    for game in (N - 1, 0):
        one.place = (game, N)
        same(env, one, game, env.reset(seed=5), one.reset(seed=5))


def test_a_game_alone_has_its_own_mechanism():
    """Its mechanism remembers what happened in it, and nothing of what happened elsewhere."""
    env = ENVS["taxed harvest"]()
    one = env.one_game()
    env.set_mechanism([0.0, 0.5, 1.0])
    one.set_mechanism([0.2, 0.3, 0.4])
    seen, own = env.reset(seed=1), one.reset(seed=1)
    assert shown(seen, 0)["mechanism"] == [[0.0, 0.5, 1.0]] * 3
    assert np.allclose(shown(own, 0)["mechanism"], [[0.2, 0.3, 0.4]] * 3)
    assert env._mechanism is not one._mechanism


def test_who_is_derived_says_so_for_itself():
    class Derived(EscapeRoom):
        """One of its own."""

    assert separable(EscapeRoom(Seeds(0))) and not separable(Derived(Seeds(0)))
