"""Cost of societies that are computed in one batch (`design.replicates`, `design.candidates`), against one society.

    python benchmarks/batched_societies.py [--societies 16] [--rounds 5] [--device cpu] [--threads 1]

Training rounds (a rollout of every game, one update) of one society and of several take turns within a round; printed
are medians over rounds of the time of a training round (CPU-seconds; on a GPU, wall-clock seconds), and ratios. The
same societies one after the other would cost as many times the one. Target: 16 for at most 4 times the time of one on
a processor, where a society alone leaves it idle between small operations: convolutions of large minibatches do not,
and are not stacked there.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from plain_ppo import PPO_SETTINGS, plain_ppo

from llmrl.api.environments import make_env
from llmrl.core.protocols import VecEnv
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.loops.compute_requests import PlayEpisode
from llmrl.loops.executor import Executor
from llmrl.loops.societies import Societies
from llmrl.rollout.collector import Collector


class Maps:
    """Seven agents that observe random maps of 11 x 11 cells with 4 codes.

    The maps do not depend on the actions, so that only the learning of the agents takes time.
    """

    CODES = (20, 9, 5, 4)

    def __init__(self, n_envs: int, horizon: int) -> None:
        observation = {
            "grid": Channel((11, 11, 4), "uint8", 0, 255, codes=self.CODES),
            "mechanism": Channel((3,), "float32", 0, 1),
        }
        names = tuple(f"action_{i}" for i in range(9))
        self.spec = EnvSpec("maps", n_envs, 7, observation, 9, names, horizon)
        rng = np.random.default_rng(0)
        shape = (n_envs, 7, 11, 11)
        self._grid = np.stack([rng.integers(n, size=shape, dtype=np.uint8) for n in self.CODES], axis=-1)
        self._time = 0

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        self._time = 0
        return self._observe()

    def step(self, action: Array) -> Step:
        self._time += 1
        reward = (np.asarray(action) == 0).astype(np.float32)
        ended = np.full(self.spec.n_envs, self._time >= (self.spec.horizon or 0))
        return Step(self._observe(), reward, reward, np.zeros_like(ended), ended, {})

    def share_random_numbers(self, n_groups: int) -> None: ...

    def set_mechanism(self, values: Array) -> None: ...

    def set_context(self, context: int) -> None: ...

    def render(self, index: int = 0) -> np.ndarray:
        return np.zeros((8, 8, 3), dtype=np.uint8)

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None: ...

    def close(self) -> None: ...

    def _observe(self) -> Observation:
        return {"grid": self._grid, "mechanism": np.zeros((self.spec.n_envs, 7, 3), dtype=np.float32)}


class Setting:
    """`several` societies of `games` games each."""

    def __init__(
        self, make: Callable[[int], VecEnv], games: int, several: int, share: bool, minibatch: int, device: str
    ) -> None:
        env, one = make(games * several), make(games)
        self.horizon, self.device = env.spec.horizon or 1, device
        ppo = replace(PPO_SETTINGS, minibatch_size=minibatch)
        seeds = [Seeds(s).child("agent") for s in range(several)]
        agents = [plain_ppo(one.spec, agent_seeds, ppo, device, share_parameters=share) for agent_seeds in seeds]
        self.societies = Societies(env, agents, 1, several)
        self.collector = Collector(env, self.societies.policy, device)
        self.executor = Executor(None)

    def round(self) -> tuple[float, float]:
        """Return seconds of playing, and of learning."""
        nodes, clock = [Seeds(0).child("round")], time.process_time if self.device == "cpu" else time.perf_counter
        start = clock()
        game_seeds, action_seeds = (self.societies.shared_or_society_seeds(nodes, name) for name in ("env", "actions"))
        seed = game_seeds if len(game_seeds) > 1 else game_seeds[0]
        request = PlayEpisode(collector=self.collector, steps=self.horizon, seed=seed, action_seeds=action_seeds)
        rollout = self.executor.answer(request)
        rollout_end = clock()
        self.executor.answer(self.societies.update_request(rollout, nodes))
        return rollout_end - start, clock() - rollout_end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--societies", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    def room(n: int) -> VecEnv:
        return make_env("escape_room", n_envs=n)

    settings = {
        "escape room, 1 game": (room, 1, True, 256),
        "escape room, 32 games": (room, 32, True, 256),
        "escape room, 32 games, a network per agent": (room, 32, False, 256),
        "7 agents with maps, 1 game of 50 steps, minibatches of 7": (lambda n: Maps(n, 50), 1, True, 7),
        "7 agents with maps, 1 game of 50 steps, minibatches of 256": (lambda n: Maps(n, 50), 1, True, 256),
    }
    for title, (make, games, share, minibatch) in settings.items():
        one, several = (Setting(make, games, n, share, minibatch, args.device) for n in (1, args.societies))
        one.round(), several.round()  # warm up
        pairs = [(one.round(), several.round()) for _ in range(args.rounds)]
        alone = statistics.median(sum(pair[0]) for pair in pairs)
        together = statistics.median(sum(pair[1]) for pair in pairs)
        play, learn = (statistics.median(pair[1][i] / pair[0][i] for pair in pairs) for i in (0, 1))
        print(
            f"{title}: one {alone * 1e3:.1f} ms, {args.societies} together {together * 1e3:.1f} ms: "
            f"{together / alone:.1f} times (playing {play:.1f}, learning {learn:.1f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
