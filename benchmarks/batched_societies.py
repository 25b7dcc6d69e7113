"""Cost of societies in one batch (`design.replicates`, `design.candidates`), compared with one society.

    python benchmarks/batched_societies.py [--societies 16] [--rounds 5] [--device cpu] [--threads 1]

A training round consists of a rollout of every game and an update. Training rounds of one society and of several
alternate. Prints medians over rounds of the duration of a training round (CPU seconds; on a GPU, wall-clock seconds)
and the ratio. Computed sequentially, n societies would take n times as long as one. Target on a CPU: 16 societies take
at most 4 times as long as one. Batching saves the overhead of small operations; convolutions of large minibatches have
little overhead and are not stacked on a CPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from plain_ppo import PPO_SETTINGS, build_ppo_agent

from llmrl.api.environments import make_env
from llmrl.core.protocols import VecEnv
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.loops.compute_requests import PlayEpisode
from llmrl.loops.executor import Executor
from llmrl.loops.societies import Societies
from llmrl.rollout.collector import Collector


class MapsEnv:
    """Environment in which seven agents observe random maps of 11 x 11 cells with 4 codes each.

    Maps do not depend on actions, so that the environment takes almost no time.
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
        truncated = np.full(self.spec.n_envs, self._time >= (self.spec.horizon or 0))
        return Step(self._observe(), reward, reward, np.zeros_like(truncated), truncated, {})

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


class SocietyTraining:
    """Training of several societies in one batch.

    Args:
        make_env: function of the number of games that creates the environment.
        games: number of games of each society.
        n_societies: number of societies.
        share: whether the agents of a society share parameters.
        minibatch: number of samples of a minibatch.
        device: device of the networks.
    """

    def __init__(
        self, make_env: Callable[[int], VecEnv], games: int, n_societies: int, share: bool, minibatch: int, device: str
    ) -> None:
        env, single_env = make_env(games * n_societies), make_env(games)
        self.horizon, self.device = env.spec.horizon or 1, device
        ppo = replace(PPO_SETTINGS, minibatch_size=minibatch)
        agents = [
            build_ppo_agent(single_env.spec, Seeds(i).child("agent"), ppo, device, share_parameters=share)
            for i in range(n_societies)
        ]
        self.societies = Societies(env, agents, 1, n_societies)
        self.collector = Collector(env, self.societies.policy, device)
        self.executor = Executor(None)

    def measure_round(self) -> tuple[float, float]:
        """Run a training round, and return the seconds of the rollout and of the update."""
        nodes, clock = [Seeds(0).child("round")], time.process_time if self.device == "cpu" else time.perf_counter
        start = clock()
        game_seeds, action_seeds = (self.societies.shared_or_society_seeds(nodes, name) for name in ("env", "actions"))
        seed = game_seeds if len(game_seeds) > 1 else game_seeds[0]
        request = PlayEpisode(collector=self.collector, steps=self.horizon, seed=seed, action_seeds=action_seeds)
        rollout = self.executor.answer(request)
        rollout_end = clock()
        self.executor.answer(self.societies.make_update_request(rollout, nodes))
        return rollout_end - start, clock() - rollout_end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--societies", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    def make_escape_room(n: int) -> VecEnv:
        return make_env("escape_room", n_envs=n)

    settings = {
        "escape room, 1 game": (make_escape_room, 1, True, 256),
        "escape room, 32 games": (make_escape_room, 32, True, 256),
        "escape room, 32 games, a network per agent": (make_escape_room, 32, False, 256),
        "7 agents with maps, 1 game of 50 steps, minibatches of 7": (lambda n: MapsEnv(n, 50), 1, True, 7),
        "7 agents with maps, 1 game of 50 steps, minibatches of 256": (lambda n: MapsEnv(n, 50), 1, True, 256),
    }
    for title, (make, games, share, minibatch) in settings.items():
        single, batched = (SocietyTraining(make, games, n, share, minibatch, args.device) for n in (1, args.societies))
        single.measure_round(), batched.measure_round()  # warm up
        pairs = [(single.measure_round(), batched.measure_round()) for _ in range(args.rounds)]
        single_seconds, batched_seconds = (statistics.median(sum(pair[i]) for pair in pairs) for i in (0, 1))
        rollout_ratio, update_ratio = (statistics.median(pair[1][i] / pair[0][i] for pair in pairs) for i in (0, 1))
        print(
            f"{title}: one society {single_seconds * 1e3:.1f} ms, {args.societies} societies "
            f"{batched_seconds * 1e3:.1f} ms: {batched_seconds / single_seconds:.1f} times "
            f"(rollout {rollout_ratio:.1f}, update {update_ratio:.1f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
