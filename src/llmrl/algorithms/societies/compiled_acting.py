"""Compiled forward pass and sampling of societies whose networks are MLPs or read binary facts of a map (`PlanesCore`).

Eager torch spends most of the time of a step with few games on calls, and multiplies all facts although few are true.
One compiled loop over samples adds the weights of the nonzero inputs. Each sample is computed alone and sums run
in a fixed order, so results do not depend on the number of games or societies. They equal those of torch up to
rounding. Torch computes all other networks, gradients, and everything on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from llmrl.core.numba_cache import JIT_OPTIONS, compile_for_types, get_cache_folder, use_numba_cache
from llmrl.core.records import PolicyOutput
from llmrl.networks.action_distributions import CategoricalDistribution
from llmrl.networks.actor_critic import PLAYER_CHANNEL, ActorCritic
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.networks.spatial_cores import PlanesCore

MAX_SAMPLES = 64
"""Maximum number of samples of a network in one call. For more, torch is faster (`benchmarks/acting.py --games 16`).
The number of networks must not matter, so that results do not depend on it."""
_PART_NAMES = ("core", "actor", "critic")
"""Names of the modules of an `ActorCritic` whose layers are computed."""
ACTIVATION_CODES = {nn.ReLU: 0, nn.Tanh: 1}
"""Codes of the activations of hidden layers in the compiled functions."""

MIN_UNIFORM, MAX_UNIFORM = np.finfo(np.float32).tiny, 1 - np.finfo(np.float32).eps
"""Bounds of the random numbers whose logarithm is taken, as in `CategoricalDistribution.sample_from_uniform`."""


class Samples(NamedTuple):
    """Inputs of n samples.

    Attributes:
        codes: maps [n, n_cells, n_codes] uint8; [n, 0, 0] without a map.
        numbers: all other inputs, [n, m] float32.
        network_indices: network of each sample, [n] int64.
        uniform: numbers in [0, 1) for the Gumbel-max trick, [n, n_actions] float32; [n, 0]: the most probable actions.
    """

    codes: np.ndarray
    numbers: np.ndarray
    network_indices: np.ndarray
    uniform: np.ndarray


class NetworkWeights(NamedTuple):
    """Weights of k networks, and their common architecture.

    Attributes:
        planes: number of the code, lowest and highest value of each fact, [n_planes, 3] int64; [0, 3]: the core reads
            the numbers instead.
        core, actor, critic: layers, each [k, n_in + 1, n_out] float32; the last row of a network is its bias.
        activation: code of the activation (`ACTIVATION_CODES`).
    """

    planes: np.ndarray
    core: tuple[np.ndarray, ...]
    actor: tuple[np.ndarray, ...]
    critic: tuple[np.ndarray, ...]
    activation: int


class NonzeroInputs(NamedTuple):
    """Scratch memory for the nonzero inputs of a layer.

    Attributes:
        indices: their indices, int64.
        values: the inputs, float32.
    """

    indices: np.ndarray
    values: np.ndarray


class Scratch(NamedTuple):
    """Scratch memory for a sample.

    Attributes:
        inputs: inputs of the first layer of a part.
        hidden_inputs: inputs of its other layers.
        hidden: outputs of a hidden layer, float32.
    """

    inputs: NonzeroInputs
    hidden_inputs: NonzeroInputs
    hidden: np.ndarray


class Outputs(NamedTuple):
    """Outputs of n samples, which `act` writes.

    Attributes:
        features: inputs of the heads, [n, n_features] float32.
        logits: [n, n_actions] float32.
        values: [n, 1] float32.
        log_probs: log-probabilities of the actions, [n] float32.
        actions: [n] int64.
    """

    features: np.ndarray
    logits: np.ndarray
    values: np.ndarray
    log_probs: np.ndarray
    actions: np.ndarray


def write_true_facts(codes: np.ndarray, planes: np.ndarray, terms: NonzeroInputs) -> Any:
    """Write the true facts about a map [n_cells, n_codes] to `terms` as inputs of value 1; return their number.

    Indices are unsigned, because Numba then omits the check for negative indices.
    """
    n: Any = np.uint32(0)
    n_cells = len(codes)
    for p in range(len(planes)):
        number, low = np.uint32(planes[p, 0]), np.uint8(planes[p, 1])
        span = np.uint8(planes[p, 2] - planes[p, 1])
        for c in range(n_cells):
            terms.indices[n] = p * n_cells + c
            n = np.uint32(n + (np.uint8(codes[np.uint32(c), number] - low) <= span))
    for i in range(n):
        terms.values[np.uint32(i)] = 1.0
    return n


def write_nonzero_inputs(inputs: np.ndarray, terms: NonzeroInputs) -> Any:
    """Write the nonzero inputs, about half of the outputs of a ReLU, to `terms`; return their number."""
    n: Any = np.uint32(0)
    for i in range(len(inputs)):
        x = inputs[np.uint32(i)]
        terms.indices[n] = i
        terms.values[n] = x
        n = np.uint32(n + (x != 0.0))
    return n


def apply_layers(
    layers: tuple[np.ndarray, ...], k: int, n: int, scratch: Scratch, activation: int, outputs: np.ndarray
) -> None:
    """Write the output of the last layer of network `k` to `outputs`; `n` inputs of the first are in `scratch.inputs`.

    `activation` follows each layer but the last.
    """
    for depth in range(len(layers)):
        weights, is_last = layers[depth][k], depth == len(layers) - 1
        target = outputs if is_last else scratch.hidden
        if depth == 0:
            apply_linear_layer(weights, n, scratch.inputs, target)
        else:
            n_hidden = write_nonzero_inputs(scratch.hidden[: weights.shape[0] - 1], scratch.hidden_inputs)
            apply_linear_layer(weights, n_hidden, scratch.hidden_inputs, target)
        if not is_last:
            apply_activation(target[: weights.shape[1]], activation)


def apply_linear_layer(weights: np.ndarray, n: int, terms: NonzeroInputs, target: np.ndarray) -> None:
    """Write the output of a layer with `n` inputs in `terms` to `target`; the last row of `weights` is the bias."""
    n_out, bias = weights.shape[1], np.uint32(weights.shape[0] - 1)
    for j in range(n_out):
        target[np.uint32(j)] = weights[bias, np.uint32(j)]
    i: Any = np.uint32(0)
    while i + 4 <= n:  # four terms per pass over the outputs
        a, b, c, d = (
            weights[np.uint32(terms.indices[i])],
            weights[np.uint32(terms.indices[np.uint32(i + 1)])],
            weights[np.uint32(terms.indices[np.uint32(i + 2)])],
            weights[np.uint32(terms.indices[np.uint32(i + 3)])],
        )
        u, v = terms.values[i], terms.values[np.uint32(i + 1)]
        w, x = terms.values[np.uint32(i + 2)], terms.values[np.uint32(i + 3)]
        for output in range(n_out):
            k = np.uint32(output)
            target[k] = target[k] + u * a[k] + v * b[k] + w * c[k] + x * d[k]
        i = np.uint32(i + 4)
    while i < n:
        row, y = weights[np.uint32(terms.indices[i])], terms.values[i]
        for j in range(n_out):
            target[np.uint32(j)] += y * row[np.uint32(j)]
        i = np.uint32(i + 1)


def apply_activation(x: np.ndarray, activation: int) -> None:
    """Apply an activation in place."""
    for j in range(len(x)):
        x[j] = np.tanh(x[j]) if activation == 1 else max(x[j], np.float32(0.0))


def choose_action(logits: np.ndarray, uniform: np.ndarray) -> tuple[int, float]:
    """Return an action and its log-probability; `uniform` as in `Samples`, [n_actions] or [0]."""
    best, best_score, max_logit = 0, np.float32(-np.inf), logits[0]
    for a in range(len(logits)):
        max_logit = max(max_logit, logits[a])
        score = logits[a]
        if len(uniform) > 0:
            score -= np.log(-np.log(min(max(uniform[a], MIN_UNIFORM), MAX_UNIFORM)))
        if score > best_score:
            best, best_score = a, score
    total = np.float32(0.0)
    for a in range(len(logits)):
        total += np.exp(logits[a] - max_logit)
    return best, logits[best] - max_logit - np.log(total)


def act(samples: Samples, networks: NetworkWeights, scratch: Scratch, outputs: Outputs) -> None:
    """Compute the outputs of all samples, and write them to `outputs`."""
    core, activation, n_core = networks.core, networks.activation, networks.core[-1].shape[2]
    has_map, inputs = len(networks.planes) > 0, scratch.inputs
    for s in range(len(samples.network_indices)):
        k, features = samples.network_indices[s], outputs.features[s]
        n = (
            write_true_facts(samples.codes[s], networks.planes, inputs)
            if has_map
            else write_nonzero_inputs(samples.numbers[s], inputs)
        )
        apply_layers(core, k, n, scratch, activation, features)
        apply_activation(features[:n_core], 0 if has_map else activation)
        for j in range(n_core, len(features)):
            features[j] = samples.numbers[s, j - n_core]
        n = write_nonzero_inputs(features, inputs)
        apply_layers(networks.actor, k, n, scratch, activation, outputs.logits[s])
        apply_layers(networks.critic, k, n, scratch, activation, outputs.values[s])
        outputs.actions[s], outputs.log_probs[s] = choose_action(outputs.logits[s], samples.uniform[s])


@functools.cache
def get_compiled_act() -> Any:
    """Return `act` compiled for a CPU. Numba is imported here; it compiles `act` when that is first called."""
    import numba

    with use_numba_cache(get_cache_folder("acting", (Path(__file__),))) as cache:
        names = dict(globals())
        inner_functions = (write_true_facts, write_nonzero_inputs, apply_activation, choose_action, apply_linear_layer)
        for function in (*inner_functions, apply_layers):
            names[function.__name__] = numba.njit(
                FunctionType(function.__code__, names, function.__name__), **JIT_OPTIONS
            )
        return numba.njit(FunctionType(act.__code__, names, "act"), cache=cache, **JIT_OPTIONS)


class CompiledSocieties:
    """Societies whose networks of one shape act by `act`, each in its own, equally large group of games.

    The weights are a copy; `read` renews it.

    Args:
        policies: K policies for which `is_compilable` is true, each with one network or one for each agent.
        games: number of games of each policy.
        observation: example observation of all games.
    """

    def __init__(self, policies: Sequence[SocietyPolicy], games: int, observation: dict[str, torch.Tensor]) -> None:
        self.policy, self.n_games = policies[0], games * len(policies)
        self._members: list[ActorCritic] = [network for policy in policies for network, _ in policy.list_networks()]
        n_agents, n_networks = self.policy.n_agents, len(self.policy.members)
        member_indices = np.tile(np.arange(n_agents), self.n_games) if n_networks > 1 else 0
        self._network_indices = np.repeat(np.arange(len(policies)), games * n_agents) * n_networks + member_indices
        first_network = self._members[0]
        planes = first_network.core.planes if isinstance(first_network.core, PlanesCore) else ()
        self._planes = np.array(planes, np.int64).reshape(-1, 3)
        module_types = [type(module) for module in first_network.modules()]
        self._activation = [ACTIVATION_CODES[x] for x in module_types if x in ACTIVATION_CODES][-1]
        self.read()
        networks = self._networks
        n = len(self._network_indices)
        self._output_shapes = ((n, networks.actor[0].shape[1] - 1), (n, networks.actor[-1].shape[2]), (n, 1), (n,))
        example = {name: x[:1] for name, x in observation.items()}
        channels = {name: self.policy.extend_observation(example)[name] for name in first_network.vector_inputs}
        widths = [x[0, 0].numel() for x in channels.values()]
        self._numbers = np.empty((self.n_games, n_agents, sum(widths)), np.float32)
        stops = np.cumsum(widths).tolist()
        self._columns = {name: slice(i - width, i) for name, width, i in zip(channels, widths, stops, strict=True)}
        if (player_columns := self._columns.pop(PLAYER_CHANNEL, None)) is not None:
            self._numbers[:, :, player_columns] = channels[PLAYER_CHANNEL].numpy()
        width = max(max(layer.shape[1:]) for layer in (*networks.core, *networks.actor, *networks.critic))
        first_inputs, hidden_inputs = (
            NonzeroInputs(np.empty(width, np.int64), np.empty(width, np.float32)) for _ in range(2)
        )
        self._compiled_act: Callable[..., None] | None = None
        self._scratch = Scratch(first_inputs, hidden_inputs, np.empty(width, np.float32))

    @torch.no_grad()
    def read(self) -> None:
        """Copy the weights of the policies."""
        parts = [[_list_linear_layers(getattr(member, name)) for member in self._members] for name in _PART_NAMES]
        core, actor, critic = (tuple(_stack_layers(layers) for layers in zip(*part, strict=True)) for part in parts)
        self._networks = NetworkWeights(self._planes, core, actor, critic, self._activation)

    def act(self, observation: dict[str, torch.Tensor], uniform: torch.Tensor | None) -> PolicyOutput:
        """Return the output of all policies.

        Args:
            observation: channels of all games, [n_envs, n_agents, ...], those of the first policy first.
            uniform: numbers in [0, 1), [n_envs, n_agents, n_actions]; None: the most probable actions are taken.
        """
        n, shape = len(self._network_indices), (self.n_games, self.policy.n_agents)
        map_channel = self._members[0].spatial_channel
        codes = np.empty((n, 0, 0), np.uint8)
        if map_channel is not None:
            codes = np.ascontiguousarray(observation[map_channel].numpy())
            codes = codes.reshape(n, -1, codes.shape[-1])
        for name, columns in self._columns.items():
            self._numbers[:, :, columns] = observation[name].numpy().reshape(*shape, -1)
        uniform_numbers = np.empty((n, 0), np.float32) if uniform is None else uniform.numpy().reshape(n, -1)
        samples = Samples(codes, self._numbers.reshape(n, -1), self._network_indices, uniform_numbers)
        outputs = Outputs._make([*(np.empty(x, np.float32) for x in self._output_shapes), np.empty(n, np.int64)])
        arguments = samples, self._networks, self._scratch, outputs
        self._compiled_act = self._compiled_act or compile_for_types(get_compiled_act(), arguments)
        self._compiled_act(*arguments)
        features, logits, values, log_prob, action = (torch.from_numpy(x).view(*shape, *x.shape[1:]) for x in outputs)
        core_features = features if self.policy.core_frozen else None
        return PolicyOutput(action, log_prob, values.squeeze(-1), core_features, logits=logits)


def is_compilable(policy: SocietyPolicy, games: int) -> bool:
    """Return whether this policy and others of its shape, all without memory, should act by the compiled function.

    Args:
        policy: one of the policies.
        games: number of games of each policy.
    """
    network = policy.members[0]
    assert isinstance(network, ActorCritic)
    return (
        games * policy.n_agents <= MAX_SAMPLES * len(policy.members)
        and (type(network.core) is PlanesCore or network.spatial_channel is None)
        and isinstance(network.distribution, CategoricalDistribution)
        and "action_mask" not in policy.channels
        and not (network.has_central_critic or network.has_separate_critic or network.has_normalizers)
        and all(x.dtype == torch.float32 and x.device.type == "cpu" for x in network.parameters())
    )


def _list_linear_layers(module: nn.Module) -> list[nn.Linear]:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)]


def _stack_layers(layers: Sequence[nn.Linear]) -> np.ndarray:
    """Return the weights of a layer of k networks as in `NetworkWeights`."""
    return torch.stack([torch.cat([layer.weight.mT, layer.bias[None]]) for layer in layers]).numpy()
