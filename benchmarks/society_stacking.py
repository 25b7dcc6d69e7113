"""Speed of networks of several societies: stacked layers, `torch.func`, and sequential computation.

    python benchmarks/society_stacking.py [--kinds planes grid] [--societies 4 16] [--rounds 9] [--device cpu]
        [--threads 1]

`torch.func` applies `stack_module_state`, `functional_call` and `vmap` to the same `ActorCritic`. Measures a forward
pass, as in a rollout step, and a PPO epoch of four minibatches: forward, backward, clipping and Adam. Stacked layers
and `torch.func` both use `PPO.run_epochs` and `StackedOptimizerStep`. Methods alternate within a round. Prints medians
over rounds of wall-clock milliseconds and of ratios to the stacked layers within a round, and the largest difference
between outputs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from plain_ppo import PPO_SETTINGS
from torch.func import functional_call, stack_module_state, vmap

from llmrl.algorithms.ppo import PPO
from llmrl.algorithms.societies.batched_trainer import StackedOptimizerStep
from llmrl.algorithms.societies.stacked_networks import StackedNetwork
from llmrl.core.spaces import Channel, EnvSpec
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.multi_agent_policy import SocietyPolicy

KINDS = ("vector", "planes", "grid")
CODES, AGENTS, ACTIONS, MINIBATCHES = (20, 9, 5, 4), 7, 9, 4
SETTINGS = replace(PPO_SETTINGS, epochs=1, minibatch_size=None)


class VmappedNetwork:
    """Networks of equal shapes that `torch.func` computes, with the interface of `StackedNetwork.network`."""

    def __init__(self, members: Sequence[ActorCritic]) -> None:
        self.network = members[0]
        self.weights, self.constants = stack_module_state(list(members))

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.weights.items()

    def __call__(self, samples: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        def forward(weights: Any, constants: Any, samples: dict[str, torch.Tensor]) -> Any:
            return functional_call(self.network, (weights, constants), (samples,))

        return vmap(forward)(self.weights, self.constants, samples)


class VmappedStack:
    """Networks that `torch.func` computes, with the interface of `StackedNetwork` for `StackedOptimizerStep`."""

    def __init__(self, members: Sequence[ActorCritic]) -> None:
        self.members, self.network = members, VmappedNetwork(members)
        parameters = [dict(member.named_parameters()) for member in members]
        self.parameters = [(p, [member[name] for member in parameters]) for name, p in self.network.named_parameters()]

    def read(self) -> None:
        for p, members in self.parameters:
            torch.stack([member.data for member in members], out=p.data)


class Societies:
    """Societies whose agents share a network, with random samples.

    Args:
        kind: observation and network, one of `KINDS`.
        k: number of societies.
        n: number of samples of each society.
        device: device of networks and samples.
    """

    def __init__(self, kind: str, k: int, n: int, device: str) -> None:
        observation = {"mechanism": Channel((3,), "float32", 0, 1)}
        if kind == "vector":
            observation["vector"] = Channel((12,), "float32", 0, 1)
        else:
            observation["grid"] = Channel((11, 11, 4), "uint8", 0, 255, codes=CODES)
        self.spec = EnvSpec(kind, 1, AGENTS, observation, ACTIONS, tuple(map(str, range(ACTIONS))), 50)
        core = "planes" if kind == "planes" else "auto"
        if core == "planes":
            planes = {f"fact_{i}": (0, i, i) for i in range(4)}
            observation["grid"] = Channel((11, 11, 4), "uint8", 0, 255, codes=CODES, planes=planes)
        shape = NetworkSettings(None, [64], [], core=core, map_channels=(8, 16))  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(0)
        policies = [
            SocietyPolicy(self.spec, [ActorCritic(self.spec, generator, shape)], False).to(device) for _ in range(k)
        ]
        self.learners = [PPO(policy, SETTINGS) for policy in policies]
        self.networks: list[ActorCritic] = [policy.list_networks()[0][0] for policy in policies]
        self.batches = [self._samples(generator, k, n, device) for _ in range(MINIBATCHES)]

    def _samples(self, generator: torch.Generator, k: int, n: int, device: str) -> dict[str, torch.Tensor]:
        def uniform(*shape: int) -> torch.Tensor:
            return torch.rand((k, n, *shape), generator=generator)

        samples = {name: uniform(*channel.shape) for name, channel in self.spec.observation.items() if name != "grid"}
        if "grid" in self.spec.observation:
            codes = [torch.randint(m, (k, n, 11, 11), generator=generator, dtype=torch.uint8) for m in CODES]
            samples["grid"] = torch.stack(codes, dim=-1)
        samples["player"] = torch.eye(AGENTS)[torch.randint(AGENTS, (k, n), generator=generator)]
        samples["action"] = torch.randint(ACTIONS, (k, n), generator=generator)
        samples |= {"log_prob": -2 - uniform(), "value": uniform(), "advantage": uniform(), "target": uniform()}
        return {name: x.to(device) for name, x in samples.items()}

    def make_forward(self, stack: Any) -> Callable[[], Any]:
        """Return a function that runs a forward pass of stacked networks."""

        def forward() -> Any:
            with torch.no_grad():
                return stack.network(self.batches[0])

        return forward

    def forward_sequentially(self) -> Any:
        """Run the forward pass of each network, and return stacked outputs."""
        with torch.no_grad():
            outputs = [
                network({name: x[i] for name, x in self.batches[0].items()}) for i, network in enumerate(self.networks)
            ]
        return tuple(torch.stack(tensors) for tensors in zip(*outputs, strict=True))

    def make_epoch(self, stack: Any) -> Callable[[], Any]:
        """Return a function that runs a PPO epoch of stacked networks."""
        updater = StackedOptimizerStep(stack)
        updater.read([ppo.updaters[0] for ppo in self.learners])
        return lambda: self.learners[0].run_epochs(updater, [self.batches])

    def run_epochs_sequentially(self) -> Any:
        """Run a PPO epoch of each society."""

        def iterate_batches(i: int) -> Iterator[dict[str, torch.Tensor]]:
            return ({name: x[i] for name, x in batch.items()} for batch in self.batches)

        return [ppo.run_epochs(ppo.updaters[0], [iterate_batches(i)]) for i, ppo in enumerate(self.learners)]


def measure_alternately(methods: Sequence[Callable[[], Any]], rounds: int, device: str) -> list[list[float]]:
    """Return the milliseconds of each method in each round, [rounds][methods]."""

    def measure_milliseconds(method: Callable[[], Any]) -> float:
        start = time.perf_counter()
        method()
        if device != "cpu":
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)

    for method in methods:
        measure_milliseconds(method)
    return [[measure_milliseconds(method) for method in methods] for _ in range(rounds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--societies", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="observations and networks")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for kind, n in itertools.product(args.kinds, (7, 256)):
        for k in args.societies:
            societies = Societies(kind, k, n, args.device)
            stacks = [StackedNetwork(societies.networks), VmappedStack(societies.networks)]
            outputs = [societies.make_forward(stack)() for stack in stacks]
            difference = max(float((a - b).detach().abs().max()) for a, b in zip(*outputs, strict=True))
            forward = [*map(societies.make_forward, stacks), societies.forward_sequentially]
            epoch = [*map(societies.make_epoch, stacks), societies.run_epochs_sequentially]
            print(f"{kind}, {k} societies, {n} samples each (difference {difference:.1g})", flush=True)
            for title, methods in (("forward", forward), (f"epoch of {MINIBATCHES}", epoch)):
                rows = measure_alternately(methods, args.rounds, args.device)
                times = [statistics.median(column) for column in zip(*rows, strict=True)]
                ratios = [statistics.median(row[i] / row[0] for row in rows) for i in (1, 2)]
                print(
                    f"  {title:10s} stacked layers {times[0]:8.2f} ms   torch.func {times[1]:8.2f} ms "
                    f"({ratios[0]:.2f} times)   sequential {times[2]:8.2f} ms ({ratios[1]:.2f} times)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
