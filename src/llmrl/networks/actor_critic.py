"""Actor-critics: a core that turns channels into features, and linear (or deeper) heads on top.

What the actor puts out describes a distribution of actions (`action_distributions`): logits, or Gaussians.

The published society studies freeze the core. All inputs of the heads are therefore in `features`, and a rollout of a
frozen core stores features instead of observations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.spaces import EnvSpec
from llmrl.networks import categorical
from llmrl.networks.action_distributions import Numbers, distribution
from llmrl.networks.cnn import PixelCore
from llmrl.networks.film import FilmCore, FilmSettings
from llmrl.networks.grid_cores import MAP_CHANNELS, GridCore, PlanesCore
from llmrl.networks.mlp import POLICY_GAIN, VALUE_GAIN, Activation, initialise, mlp
from llmrl.networks.recurrent_layer import RecurrentLayer
from llmrl.networks.running_moments import RunningNormalizer

MECHANISM = "mechanism"
"""Channel with the mechanism's values, in environments that show them."""
PLAYER = "player"
"""Channel with the agent's index as one-hot, added by the policy and not by environments."""
JOINT = "joint"
"""Channel with the numbers that all agents of a game observe, added by the policy for a central critic."""
MISSION = "mission"
"""Channel with the words of an instruction as indices into a vocabulary, read by `film` cores only."""
UNREAD = ("text", "prompt", "state", "action_mask", MISSION, "expert")
"""Channels that networks do not read as numeric input."""

PIECE = 2**15
"""Most map cells in one forward pass of a core on the CPU without gradients."""

Critic = Literal["own", "separate", "central"]
CoreType = Literal["auto", "mlp", "planes", "film"]
Join = Literal["heads", "core"]
Encoding = Literal["onehot", "codes"]


@dataclass(frozen=True)
class NetworkSettings:
    """Architecture of an `ActorCritic`.

    Attributes:
        features: width of the core's output; None: the convolutions' output unchanged with a map, 512 with pixels, 32
            with a `film` core, else 64.
        core_hidden: hidden widths of an MLP core, and of a central critic.
        head_hidden: hidden widths of the heads.
        observation_channels: names of the channels read; None: all numeric ones.
        memory: units of each LSTM layer; None: no memory.
        memory_layers: number of LSTM layers.
        critic: `own`: a head on the actor's features; `separate`: a network of its own, with the hidden widths of the
            core, that reads what the actor reads; `central`: one that reads the observations of all agents of a game
            (Yu et al. 2022, arXiv 2103.01955).
        core: `auto`; `mlp`: a map or image is flattened like any other channel; `planes`: one linear layer on binary
            facts about a map's cells; `film`: convolutions over a map, modulated by the words of `mission`.
        encoding: input of the convolutions over a map: `onehot` codes, or the `codes` as numbers.
        film: architecture of a `film` core; None: its defaults.
        map_channels: output channels of the convolutions over a map.
        map_stride: stride of the first convolution over a map.
        planes: names of the facts that a `planes` core reads; None: all that the map has.
        join: where numbers enter beside an image or a map: at the `heads`, or before the last layer of the `core`.
        activation: nonlinearity of MLP layers, in core and heads; convolutions have ReLUs.
        initial_std: initial standard deviation of real-valued actions, in units of half their range, > 0.
        state_dependent_std: whether the actor puts these deviations out; otherwise they are parameters.
        squash_actions: whether real-valued actions are the tanh of a Gaussian.
        normalize_observations: whether numbers are normalised by their running moments (`RunningNormalizer`).
    """

    features: int | None = None
    core_hidden: Sequence[int] = ()
    head_hidden: Sequence[int] = ()
    observation_channels: Sequence[str] | None = None
    memory: int | None = None
    memory_layers: int = 1
    critic: Critic = "own"
    core: CoreType = "auto"
    encoding: Encoding = "onehot"
    film: FilmSettings | None = None
    map_channels: Sequence[int] = MAP_CHANNELS
    map_stride: int = 1
    planes: Sequence[str] | None = None
    join: Join = "heads"
    activation: Activation = "relu"
    initial_std: float = 1.0
    state_dependent_std: bool = False
    squash_actions: bool = False
    normalize_observations: bool = False


class ActorCritic(nn.Module):
    """One network: channels [batch, ...] -> features [batch, F] -> outputs [batch, n_outputs] and value [batch].

    The outputs are the parameters of `distribution`: logits of actions, or means and standard deviations of numbers.

    A core reads an image or map (a channel of three axes) if there is one. All other channels then join at the heads,
    as in the published society agents, or before the core's last layer. Otherwise an MLP core reads all channels,
    flattened. An optional memory sits between core and heads.

    Args:
        spec: spec of the environment.
        generator: random numbers of the initial weights.
        settings: architecture of the network.

    Attributes:
        distribution: distribution of actions that the outputs describe.
        normalizer, joint_normalizer: normalisation of the numbers of an agent, and of a central critic; None: none.
        image, words: names of the map or image and of the instruction that the core reads; None: it reads none.
        joined: names of all other channels read, without `player`.
        mechanism_columns: columns of the features that hold the mechanism's values unchanged; None: there are none.
        joint_columns: columns of a central critic's channel `joint` that hold them, agent by agent.

    Raises:
        ConfigError: the settings do not fit the environment or each other, e.g. two channels with three axes, a
            critic of its own with an image or map, or a `film` core without a map of codes or a mission.
    """

    def __init__(self, spec: EnvSpec, generator: torch.Generator, settings: NetworkSettings) -> None:
        super().__init__()
        s = settings
        self.distribution = distribution(spec, s.squash_actions)
        if s.core == "film":
            _check_instructed(spec, s.observation_channels)
        chosen = readable(spec, s.observation_channels)
        spatial = [name for name in chosen if s.core != "mlp" and len(spec.observation[name].shape) == 3]
        _check_channels(spec, s, chosen, spatial)
        self.image = spatial[0] if spatial else None
        self.joined = tuple(name for name in chosen if name not in spatial)
        self.words = MISSION if s.core == "film" else None
        # With a single agent the index carries no information.
        self.vectors = (*self.joined, PLAYER) if spec.n_players > 1 else self.joined
        self.join, self.central, self.separate = s.join, s.critic == "central", s.critic == "separate"
        widths = {name: int(torch.Size(spec.observation[name].shape).numel()) for name in self.joined}
        seen = sum(widths.values())
        width = seen + (spec.n_players if PLAYER in self.vectors else 0)
        own = slice(0, 0)
        if MECHANISM in widths:
            start = sum(widths[name] for name in self.joined[: self.joined.index(MECHANISM)])
            own = slice(start, start + widths[MECHANISM])
        self.mechanism_columns: slice | None = None
        self.core: nn.Module
        if self.image is None:
            self.n_features = s.features or 64
            self.core = mlp([width, *s.core_hidden, self.n_features], generator, s.activation)
        else:
            self.core, self.n_features = _spatial_core(spec, self.image, width, generator, s)
            shown = spec.observation[self.image]
            # A film core may use batch normalisation, and images gain nothing from pieces.
            whole = s.core == "film" or self.image == "pixels"
            self._piece = 0 if whole else max(1, PIECE // (shown.shape[0] * shown.shape[1]))
            if s.join == "heads":
                if MECHANISM in widths:
                    self.mechanism_columns = slice(self.n_features + own.start, self.n_features + own.stop)
                self.n_features += width
        self.memory = (
            None if s.memory is None else RecurrentLayer(self.n_features, s.memory, s.memory_layers, generator)
        )
        head = [self.n_features if s.memory is None else s.memory, *s.head_hidden]
        n_std = self.distribution.n_real if isinstance(self.distribution, Numbers) else 0
        n_outputs = self.distribution.n_outputs - (0 if s.state_dependent_std else n_std)
        last = nn.Linear(head[-1], n_outputs)
        self.actor = nn.Sequential(*mlp(head, generator, s.activation), initialise(last, POLICY_GAIN, generator))
        log_std = math.log(s.initial_std)
        if n_std and s.state_dependent_std:
            with torch.no_grad():
                last.bias[-n_std:] = log_std
        self.std: LogStd | None = LogStd(n_std, log_std) if n_std and not s.state_dependent_std else None
        self.joint_columns: list[int] = []
        n_joint = spec.n_agents * seen + spec.n_players
        if self.central:
            self.joint_columns = [
                agent * seen + i for agent in range(spec.n_agents) for i in range(own.start, own.stop)
            ]
        if s.critic != "own":
            head = [n_joint if self.central else width, *s.core_hidden, self.n_features, *s.head_hidden]
        self.normalizer = RunningNormalizer((width,)) if s.normalize_observations and width else None
        self.joint_normalizer = RunningNormalizer((n_joint,)) if s.normalize_observations and self.central else None
        hidden = mlp(head, generator, s.activation)
        self.critic = nn.Sequential(*hidden, initialise(nn.Linear(head[-1], 1), VALUE_GAIN, generator))

    def forward(self, samples: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return outputs [batch, n_outputs] and values [batch] of `samples["features"]`, if given, else of channels.

        With a memory, samples are concatenated sequences with `lengths` [n_sequences] and initial `state`
        [n_sequences, state_size].
        """
        features = samples["features"] if "features" in samples else self.encode(samples)
        if self.memory is not None:
            features = self.memory.unroll(features, samples["lengths"], samples["state"])
        return self.outputs(features, samples.get("action_mask")), self.value(features, samples)

    def encode(self, channels: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the inputs [batch, F] of memory and heads: core output, then joined channels, from [batch, ...]."""
        if self.image is None:
            return self.core(self._numbers(channels, self._core_width()))  # type: ignore[no-any-return]
        flat = self._numbers(channels)
        if self.join == "core":
            return self._spatial(channels[self.image], flat)
        read = (self.image,) if self.words is None else (self.image, self.words)
        features = self._spatial(*(channels[name] for name in read))
        return features if flat is None else torch.cat([features, flat], dim=-1)

    def _spatial(self, *inputs: torch.Tensor | None) -> torch.Tensor:
        """Return the core's output for an image or map and its further inputs, each [batch, ...].

        On the CPU, large batches of maps without gradients are split into pieces whose one-hots fit into its cache.
        """
        seen = inputs[0]
        assert seen is not None
        if not self._piece or seen.device.type != "cpu" or torch.is_grad_enabled():
            return self.core(*inputs)  # type: ignore[no-any-return]
        batch = seen.dim() - 4  # the axis of samples: stacked networks have theirs in front of it
        # The piece size must not depend on the number of stacked networks: a product's shape decides its rounding.
        n, piece = seen.shape[batch], self._piece
        if n <= piece:
            return self.core(*inputs)  # type: ignore[no-any-return]
        split = [[None] * -(-n // piece) if x is None else torch.split(x, piece, batch) for x in inputs]
        return torch.cat([self.core(*own) for own in zip(*split, strict=True)], batch)

    def outputs(self, features: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the parameters of `distribution`, [..., n_outputs], for inputs of the heads, [..., F].

        Those of illegal actions are at the dtype's minimum."""
        outputs = self.actor(features)
        return categorical.mask_logits(outputs if self.std is None else self.std(outputs), mask)

    def value(self, features: torch.Tensor, channels: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return values [batch] for inputs of the heads, [batch, F]; a critic of its own reads `channels` instead."""
        if self.central:
            joint = self._flat([channels[JOINT], channels[PLAYER]])
            assert joint is not None
            features = joint if self.joint_normalizer is None else self.joint_normalizer(joint)
        elif self.separate:
            numbers = self._numbers(channels)
            assert numbers is not None
            features = numbers
        return self.critic(features).squeeze(-1)  # type: ignore[no-any-return]

    @property
    def normalizes(self) -> bool:
        """Whether observations are normalised by running moments (`see`)."""
        return self.normalizer is not None or self.joint_normalizer is not None

    def see(self, samples: dict[str, torch.Tensor]) -> None:
        """Take in the samples [n, ...] of an update, by which later ones are normalised."""
        if self.normalizer is not None:
            self.normalizer.see(self._flat([samples[name] for name in self.vectors]))  # type: ignore[arg-type]
        if self.joint_normalizer is not None:
            self.joint_normalizer.see(self._flat([samples[JOINT], samples[PLAYER]]))  # type: ignore[arg-type]

    def _core_width(self) -> int:
        """Return the inputs of the core's first layer; a stacked layer has as many as fill whole cache lines."""
        first = next(self.core.parameters(), None)
        return 0 if first is None else first.shape[-1]

    def _numbers(self, channels: dict[str, torch.Tensor], width: int = 0) -> torch.Tensor | None:
        """Return all numbers beside an image or map, [batch, n], normalised if asked; None if there are none. Zeros
        follow if n < `width`, but not with a normalizer."""
        channel_list = [channels[name] for name in self.vectors]
        if self.normalizer is None:
            return self._flat(channel_list, width)
        flat = self._flat(channel_list)
        return None if flat is None else self.normalizer(flat)

    def _flat(self, channels: Sequence[torch.Tensor], width: int = 0) -> torch.Tensor | None:
        """Concatenate channels [batch, ...] to [batch, n]; None if there are none. Stacked networks
        (`algorithms/societies/stacked_networks.py`) have batches of two axes, as their weights have one more.

        If n < `width`, zeros follow, and the numbers are converted, joined and padded in one pass over memory.
        """
        if not channels:
            return None
        weight = self.critic[-1].weight
        flat = [x.flatten(weight.dim() - 1) for x in channels]  # type: ignore[operator]
        n = sum(x.shape[-1] for x in flat)
        if n >= width:
            return torch.cat([x.to(weight.dtype) for x in flat], dim=-1)  # type: ignore[arg-type]
        numbers = torch.empty((*flat[0].shape[:-1], width), dtype=weight.dtype, device=flat[0].device)  # type: ignore[arg-type]
        parts = torch.split(numbers[..., :n], [x.shape[-1] for x in flat], -1)
        for part, x in zip(parts, flat, strict=True):
            part.copy_(x)
        numbers[..., n:].zero_()
        return numbers


class LogStd(nn.Module):
    """Logarithms of standard deviations as parameters, which are appended to outputs [..., n], as [..., n + n_std].

    Args:
        n_std: number of deviations.
        initial: initial value of each logarithm.
    """

    def __init__(self, n_std: int, initial: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((n_std,), initial))

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([outputs, self.weight.expand(*outputs.shape[:-1], -1)], dim=-1)


def readable(spec: EnvSpec, observation_channels: Sequence[str] | None) -> tuple[str, ...]:
    """Return the channels that a network reads as numbers: `observation_channels`, or (None) every numeric one.

    Raises:
        ConfigError: one of `observation_channels` is no numeric channel, or no channel is left.
    """
    offered = [name for name in spec.observation if name not in UNREAD]
    if not offered:
        raise Incompatible(
            Misfit.INTERFACE,
            f"agent=ppo reads pixels or numbers, but env={spec.name} offers only {sorted(spec.observation)}",
        )
    if unknown := [name for name in observation_channels or () if name not in offered]:
        raise ConfigError(
            f"agent.observation_channels: env={spec.name} offers no channel {unknown[0]!r}, but {', '.join(offered)}"
        )
    chosen = tuple(name for name in offered if observation_channels is None or name in observation_channels)
    if not chosen:
        raise ConfigError(f"agent.observation_channels is empty; env={spec.name} offers {', '.join(offered)}")
    return chosen


def _check_instructed(spec: EnvSpec, reads: Sequence[str] | None) -> None:
    """Raise ConfigError unless there is a mission, and among `observation_channels` (None: all) a map of codes."""
    maps = [name for name, channel in spec.observation.items() if channel.codes and len(channel.shape) == 3]
    if not maps or MISSION not in spec.observation:
        raise Incompatible(
            Misfit.INTERFACE,
            f"agent.core=film looks at a map of codes as the words of a mission say, and env={spec.name} offers only "
            f"{', '.join(sorted(spec.observation))}; use env=babyai_text, or agent=ppo",
        )
    if reads is not None and not set(reads) & set(maps):
        raise ConfigError(
            f"agent.core=film looks at a map, and agent.observation_channels={list(reads)} names none; add {maps[0]!r}"
        )


def _spatial_core(
    spec: EnvSpec, image: str, width: int, generator: torch.Generator, settings: NetworkSettings
) -> tuple[nn.Module, int]:
    """Return the core for the map or image `image` and the width of its output; `width` numbers may join it.

    Raises:
        ConfigError: numbers are to join at a last layer that the core does not have.
    """
    s, channel = settings, spec.observation[image]
    joined = width if s.join == "core" else 0
    codes = channel.codes if s.encoding == "onehot" else ()
    if s.core == "planes":
        features = s.features or 64
        return PlanesCore(channel.shape, _planes(spec, image, s.planes), features, generator, joined), features
    if image == "pixels":
        features = s.features or 512
        return PixelCore(channel.shape, features, generator, joined), features
    if s.core == "film":
        [n_words] = spec.observation[MISSION].codes
        film = FilmCore(channel.shape, codes, n_words, s.features or 32, s.film or FilmSettings(), generator)
        return film, film.n_features
    if joined and s.features is None:
        raise ConfigError("agent.join=core needs a last layer of the core: set agent.features, e.g. 64")
    grid = GridCore(channel.shape, s.features, generator, codes, s.map_channels, joined, s.map_stride)
    return grid, grid.n_features


def _planes(spec: EnvSpec, name: str, wanted: Sequence[str] | None) -> list[tuple[int, int, int]]:
    """Return the facts about cells of the map `name` that a `planes` core reads: `wanted`, or all if None.

    Raises:
        ConfigError: the map has no such fact or names none, or `wanted` is empty.
    """
    offered = spec.observation[name].planes
    if not offered:
        having = [other for other, channel in spec.observation.items() if channel.planes]
        lacks = f"agent.core=planes: the channel {name!r} of env={spec.name} names no facts about its cells"
        if having:
            raise ConfigError(f"{lacks}; use agent.observation_channels=[{having[0]}]")
        raise Incompatible(Misfit.INTERFACE, f"{lacks}; use agent.core=auto")
    if unknown := [plane for plane in wanted or () if plane not in offered]:
        raise ConfigError(f"agent.planes: {name!r} has no plane {unknown[0]!r}, but {', '.join(offered)}")
    if wanted is not None and not wanted:
        raise ConfigError(f"agent.planes is empty; {name!r} offers {', '.join(offered)}")
    return [offered[plane] for plane in (offered if wanted is None else wanted)]


def _check_channels(spec: EnvSpec, settings: NetworkSettings, chosen: Sequence[str], spatial: Sequence[str]) -> None:
    """Refuse settings that do not fit the channels that a network reads.

    Args:
        spec: spec of the environment.
        settings: architecture of the network.
        chosen: names of all channels read.
        spatial: names of those that are an image or a map.

    Raises:
        ConfigError, Incompatible: see `ActorCritic`.
    """
    if len(spatial) > 1:
        raise ConfigError(
            f"one network reads one picture or map, and env={spec.name} offers {' and '.join(spatial)}; choose "
            f"with agent.observation_channels, e.g. agent.observation_channels=[{spatial[0]}]"
        )
    if settings.join == "core" and spatial and settings.core == "film":
        raise ConfigError("agent.join=core: a film core has no last layer to join at; use agent.join=heads")
    if settings.core == "planes" and not spatial:
        raise Incompatible(
            Misfit.INTERFACE, f"agent.core=planes looks at a map, and env={spec.name} offers {', '.join(chosen)}"
        )
    if settings.critic != "own" and spatial:
        raise ConfigError(
            f"agent.critic={settings.critic} reads numbers, and {spatial[0]!r} of env={spec.name} is a picture or a "
            "map; use agent.critic=own"
        )
