"""Actor-critics: a core that maps observation channels to features, and linear or deeper heads.

Some studies freeze the core. Features contain all inputs of the heads on a core, so a rollout with a frozen core stores
features instead of observations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.spaces import EnvSpec
from llmrl.networks.action_distributions import (
    ActionDistribution,
    CategoricalDistribution,
    NumericDistribution,
    mask_logits,
)
from llmrl.networks.layers import (
    POLICY_GAIN,
    VALUE_GAIN,
    Activation,
    RecurrentLayer,
    RunningNormalizer,
    initialize,
    mlp,
)
from llmrl.networks.spatial_cores import MAP_CONV_CHANNELS, FilmCore, FilmSettings, GridCore, PixelCore, PlanesCore

MECHANISM_CHANNEL = "mechanism"
"""Channel with the mechanism's values, if agents observe them."""
PLAYER_CHANNEL = "player"
"""Channel with the agent's index as one-hot, which the policy adds to an observation."""
JOINT_CHANNEL = "joint"
"""Channel with the concatenated numeric observations of all agents, which the policy adds for a central critic."""
MISSION_CHANNEL = "mission"
"""Channel with the words of an instruction as indices into a vocabulary, read by `film` cores only."""
UNREAD_CHANNELS = ("text", "prompt", "state", "action_mask", MISSION_CHANNEL, "expert")
"""Channels that networks do not read as vectors, maps or images."""

MAX_CELLS_PER_PASS = 2**15
"""Maximum number of map cells in one forward pass of a core on the CPU without gradients."""

CriticType = Literal["own", "separate", "central"]
CoreType = Literal["auto", "mlp", "planes", "film"]
MapEncoding = Literal["onehot", "codes"]


@dataclass(frozen=True)
class NetworkSettings:
    """Architecture of an `ActorCritic`.

    Attributes:
        features: width of the core's output, with a `film` core number of channels. None: 512 with pixels, 32 with a
            `film` core, no layer after the convolutions of other cores over a map, else 64.
        core_hidden: hidden widths of an MLP core, and of the first layers of a separate or central critic.
        head_hidden: hidden widths of the heads.
        observation_channels: names of the channels that the network reads; None: all numeric ones.
        memory: number of units in each LSTM layer; None: no memory.
        memory_layers: number of LSTM layers.
        critic: `own`: a head on the actor's features; `separate`: a separate network with the hidden widths of the core
            and the actor's inputs; `central`: a separate network that reads the observations of all agents of a game
            (Yu et al. 2022, arXiv 2103.01955).
        core: `auto`: convolutions over a map or image, else an MLP; `mlp`: an MLP, for which a map or image is
            flattened; `planes`: one linear layer on binary features of a map's cells; `film`: convolutions over a map,
            modulated by the words of `mission`.
        encoding: input of the convolutions over a map: `onehot` codes, or the `codes` as numbers.
        film: architecture of a `film` core; None: its defaults.
        map_channels: output channels of the convolutions over a map.
        planes: names of the planes (binary features) that a `planes` core reads; None: all planes of the map.
        activation: nonlinearity of MLP layers, in core and heads; convolutions have ReLUs.
        initial_std: initial standard deviation of real-valued actions, whose unit is half their range, > 0.
        normalize_observations: whether numbers are normalized by their running moments (`RunningNormalizer`).
    """

    features: PositiveInt | None = None
    core_hidden: Sequence[PositiveInt] = ()
    head_hidden: Sequence[PositiveInt] = ()
    observation_channels: Sequence[str] | None = None
    memory: PositiveInt | None = None
    memory_layers: PositiveInt = 1
    critic: CriticType = "own"
    core: CoreType = "auto"
    encoding: MapEncoding = "onehot"
    film: FilmSettings | None = None
    map_channels: Sequence[PositiveInt] = MAP_CONV_CHANNELS
    planes: Sequence[str] | None = None
    activation: Activation = "relu"
    initial_std: PositiveFloat = 1.0
    normalize_observations: bool = False


class ActorCritic(nn.Module):
    """Network from channels [batch, ...] to features [batch, F], outputs [batch, n_outputs] and value [batch].

    The outputs are the parameters of `distribution`: logits of actions, or means and log standard deviations of
    real numbers, and logits of integers.

    A core reads an image or map (a channel with three axes) if there is one. All other channels are then concatenated
    to the inputs of the heads, as in published agents for Clean Up and Harvest. Otherwise an MLP core reads all
    channels, flattened. An optional memory is between core and heads.

    Args:
        spec: spec of the environment.
        generator: random generator for the initial weights.
        settings: architecture of the network.

    Attributes:
        distribution: distribution of actions that the outputs parameterize.
        normalizer, joint_normalizer: normalizers of the numbers of an agent, and of a central critic; None: no
            normalizer.
        spatial_channel, instruction_channel: names of the map or image and of the instruction that the core reads;
            None: it reads none.
        vector_channels: names of all other channels of the environment that are read.
        vector_inputs: the same names, and `player` if there are several players.
        mechanism_columns: columns of the features that contain the unchanged values of the mechanism; None: none do.
        joint_columns: columns of a central critic's channel `joint` that contain these values, ordered by agent.

    Raises:
        ConfigError: the settings do not fit the environment or each other, e.g. two channels with three axes, a
            separate critic with an image or map, or a `film` core without a map of codes or a mission.
    """

    def __init__(self, spec: EnvSpec, generator: torch.Generator, settings: NetworkSettings) -> None:
        super().__init__()
        s = settings
        action_space = spec.continuous_actions
        self.distribution: ActionDistribution = (
            CategoricalDistribution(spec.n_actions) if action_space is None else NumericDistribution(action_space)
        )
        if s.core == "film":
            _check_mission(spec, s.observation_channels)
        channel_names = list_readable_channels(spec, s.observation_channels)
        spatial_names = [name for name in channel_names if s.core != "mlp" and len(spec.observation[name].shape) == 3]
        _check_spatial_channels(spec, s, channel_names, spatial_names)
        self.spatial_channel = spatial_names[0] if spatial_names else None
        self.vector_channels = tuple(name for name in channel_names if name not in spatial_names)
        self.instruction_channel = MISSION_CHANNEL if s.core == "film" else None
        # With a single agent the index carries no information.
        self.vector_inputs = (*self.vector_channels, PLAYER_CHANNEL) if spec.n_players > 1 else self.vector_channels
        is_central = s.critic == "central"
        self.has_central_critic, self.has_separate_critic = is_central, s.critic == "separate"
        widths = {name: int(torch.Size(spec.observation[name].shape).numel()) for name in self.vector_channels}
        vector_width = sum(widths.values())
        width = vector_width + (spec.n_players if PLAYER_CHANNEL in self.vector_inputs else 0)
        mechanism_slice = slice(0, 0)
        if MECHANISM_CHANNEL in widths:
            start = sum(widths[name] for name in self.vector_channels[: self.vector_channels.index(MECHANISM_CHANNEL)])
            mechanism_slice = slice(start, start + widths[MECHANISM_CHANNEL])
        self.mechanism_columns: slice | None = None
        self.core: nn.Module
        if self.spatial_channel is None:
            self.n_features = s.features or 64
            self.core = mlp([width, *s.core_hidden, self.n_features], generator, s.activation)
        else:
            self.core, self.n_features = _build_spatial_core(spec, self.spatial_channel, generator, s)
            image_shape = spec.observation[self.spatial_channel].shape
            # A film core may use batch normalization, and splitting images does not make them faster.
            is_single_pass = s.core == "film" or self.spatial_channel == "pixels"
            n_cells = image_shape[0] * image_shape[1]
            self._max_samples_per_pass = 0 if is_single_pass else max(1, MAX_CELLS_PER_PASS // n_cells)
            if MECHANISM_CHANNEL in widths:
                self.mechanism_columns = slice(
                    self.n_features + mechanism_slice.start, self.n_features + mechanism_slice.stop
                )
            self.n_features += width
        self.memory = (
            None if s.memory is None else RecurrentLayer(self.n_features, s.memory, s.memory_layers, generator)
        )
        head_widths = [self.n_features if s.memory is None else s.memory, *s.head_hidden]
        n_std = self.distribution.n_real if isinstance(self.distribution, NumericDistribution) else 0
        last_layer = nn.Linear(head_widths[-1], self.distribution.n_outputs - n_std)
        self.actor = nn.Sequential(
            *mlp(head_widths, generator, s.activation), initialize(last_layer, POLICY_GAIN, generator)
        )
        self.std: LogStd | None = LogStd(n_std, math.log(s.initial_std)) if n_std else None
        joint_width = spec.n_agents * vector_width + spec.n_players
        self.joint_columns = [
            agent * vector_width + i
            for agent in range(spec.n_agents if is_central else 0)
            for i in range(mechanism_slice.start, mechanism_slice.stop)
        ]
        separate_widths = [joint_width if is_central else width, *s.core_hidden, self.n_features, *s.head_hidden]
        critic_widths = head_widths if s.critic == "own" else separate_widths
        self.normalizer = RunningNormalizer((width,)) if s.normalize_observations and width else None
        self.joint_normalizer = RunningNormalizer((joint_width,)) if s.normalize_observations and is_central else None
        layers = mlp(critic_widths, generator, s.activation)
        self.critic = nn.Sequential(*layers, initialize(nn.Linear(critic_widths[-1], 1), VALUE_GAIN, generator))

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
        """Return the inputs [batch, F] of memory and heads: the core's output, then concatenated channels."""
        if self.spatial_channel is None:
            weight = next(self.core.parameters(), None)
            width = 0 if weight is None else weight.shape[-1]  # stacked layers are padded to whole cache lines
            return self.core(self._read_vectors(channels, width))
        core_inputs = (self.spatial_channel, self.instruction_channel)
        features = self._encode_spatial(*(channels[name] for name in core_inputs if name is not None))
        return torch.cat([features, self._read_vectors(channels)], dim=-1) if self.vector_inputs else features

    def _encode_spatial(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Return the core's output [batch, F] for `inputs`: an image or map, then words if the core is `film`.

        On the CPU, large batches of maps without gradients are split into pieces whose one-hots fit into its cache.
        """
        image = inputs[0]
        if not self._max_samples_per_pass or image.device.type != "cpu" or torch.is_grad_enabled():
            return self.core(*inputs)
        sample_axis = image.dim() - 4  # stacked networks have an axis of networks before it
        # The piece size must not depend on the number of stacked networks: a product's shape decides its rounding.
        split_inputs = [torch.split(x, self._max_samples_per_pass, sample_axis) for x in inputs]
        if len(split_inputs[0]) == 1:
            return self.core(*inputs)
        return torch.cat([self.core(*piece_inputs) for piece_inputs in zip(*split_inputs, strict=True)], sample_axis)

    def outputs(self, features: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return the parameters of `distribution`, [..., n_outputs], for inputs of the heads, [..., F].

        The logits of illegal actions are at the dtype's minimum.
        """
        outputs = self.actor(features)
        return mask_logits(outputs if self.std is None else self.std(outputs), mask)

    def value(self, features: torch.Tensor, channels: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return values [batch] for inputs of the heads, [batch, F].

        A separate or central critic reads `channels` instead.
        """
        if self.has_central_critic:
            joint = self._concatenate([channels[JOINT_CHANNEL], channels[PLAYER_CHANNEL]])
            features = joint if self.joint_normalizer is None else self.joint_normalizer(joint)
        elif self.has_separate_critic:
            features = self._read_vectors(channels)
        return self.critic(features).squeeze(-1)

    @property
    def has_normalizers(self) -> bool:
        """True if observations are normalized by running moments (`update_normalizers`)."""
        return self.normalizer is not None or self.joint_normalizer is not None

    def update_normalizers(self, samples: dict[str, torch.Tensor]) -> None:
        """Update the running moments with the samples [n, ...] of an update."""
        if self.normalizer is not None:
            self.normalizer.update(self._concatenate([samples[name] for name in self.vector_inputs]))
        if self.joint_normalizer is not None:
            self.joint_normalizer.update(self._concatenate([samples[JOINT_CHANNEL], samples[PLAYER_CHANNEL]]))

    def _read_vectors(self, channels: dict[str, torch.Tensor], width: int = 0) -> torch.Tensor:
        """Return all numbers except those of an image or map, [batch, n]; there must be at least one channel of them.

        They are normalized if there is a normalizer; otherwise they are padded with zeros if n < `width`.
        """
        vectors = [channels[name] for name in self.vector_inputs]
        return (
            self._concatenate(vectors, width)
            if self.normalizer is None
            else self.normalizer(self._concatenate(vectors))
        )

    def _concatenate(self, channels: Sequence[torch.Tensor], width: int = 0) -> torch.Tensor:
        """Concatenate channels [batch, ...] to [batch, n].

        Stacked networks (`algorithms/societies/stacked_networks.py`) have batches of two axes, as their weights have
        one more.

        If n < `width`, zeros follow, and the numbers are converted, concatenated and padded in one pass over memory.
        """
        weight = self.critic[-1].weight
        flat = [x.flatten(weight.dim() - 1) for x in channels]  # type: ignore[operator]
        n = sum(x.shape[-1] for x in flat)
        if n >= width:
            return torch.cat([x.to(weight.dtype) for x in flat], dim=-1)  # type: ignore[arg-type]
        numbers = torch.empty((*flat[0].shape[:-1], width), dtype=weight.dtype, device=flat[0].device)  # type: ignore[arg-type]
        for part, x in zip(torch.split(numbers[..., :n], [x.shape[-1] for x in flat], -1), flat, strict=True):
            part.copy_(x)
        numbers[..., n:].zero_()
        return numbers


class LogStd(nn.Module):
    """Layer that appends learned logarithms of standard deviations to outputs: [..., n] -> [..., n + n_std].

    Args:
        n_std: number of standard deviations.
        initial_log_std: initial value of each logarithm.
    """

    def __init__(self, n_std: int, initial_log_std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((n_std,), initial_log_std))

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([outputs, self.weight.expand(*outputs.shape[:-1], -1)], dim=-1)


def list_readable_channels(spec: EnvSpec, observation_channels: Sequence[str] | None) -> tuple[str, ...]:
    """Return the channels that a network reads as numbers: `observation_channels`, or all numeric ones if None.

    Raises:
        ConfigError: one of `observation_channels` is not a numeric channel, or no channel is left.
    """
    available = [name for name in spec.observation if name not in UNREAD_CHANNELS]
    if not available:
        raise Incompatible(
            IncompatibilityReason.INTERFACE,
            f"agent=ppo needs pixels or numbers, but env={spec.name} has only {', '.join(sorted(spec.observation))}; "
            "use an agent that reads text",
        )
    if unknown := [name for name in observation_channels or () if name not in available]:
        raise ConfigError(
            f"agent.observation_channels: env={spec.name} has no numeric channel {unknown[0]!r}; "
            f"available: {', '.join(available)}"
        )
    channels = tuple(name for name in available if observation_channels is None or name in observation_channels)
    if not channels:
        raise ConfigError(f"agent.observation_channels is empty; choose from {', '.join(available)}")
    return channels


def _check_mission(spec: EnvSpec, observation_channels: Sequence[str] | None) -> None:
    """Raise an error unless there are a mission and, among `observation_channels` (None: all), a map of codes."""
    code_maps = [name for name, channel in spec.observation.items() if channel.codes and len(channel.shape) == 3]
    if not code_maps or MISSION_CHANNEL not in spec.observation:
        raise Incompatible(
            IncompatibilityReason.INTERFACE,
            f"agent.core=film needs a map of codes and the channel {MISSION_CHANNEL!r}, but env={spec.name} has only "
            f"{', '.join(sorted(spec.observation))}; use env=babyai_text or agent=ppo",
        )
    if observation_channels is not None and not set(observation_channels) & set(code_maps):
        raise ConfigError(
            f"agent.core=film needs a map, but agent.observation_channels={list(observation_channels)} contains none; "
            f"add {code_maps[0]!r}"
        )


def _build_spatial_core(
    spec: EnvSpec, channel_name: str, generator: torch.Generator, settings: NetworkSettings
) -> tuple[nn.Module, int]:
    """Return the core for the map or image `channel_name` and the width of its output."""
    s, channel = settings, spec.observation[channel_name]
    codes = channel.codes if s.encoding == "onehot" else ()
    if s.core == "planes":
        features = s.features or 64
        return PlanesCore(channel.shape, _select_planes(spec, channel_name, s.planes), features, generator), features
    if channel_name == "pixels":
        features = s.features or 512
        return PixelCore(channel.shape, features, generator), features
    if s.core == "film":
        [vocab_size] = spec.observation[MISSION_CHANNEL].codes
        film_core = FilmCore(channel.shape, codes, vocab_size, s.features or 32, s.film or FilmSettings(), generator)
        return film_core, film_core.n_features
    grid_core = GridCore(channel.shape, s.features, generator, codes, s.map_channels)
    return grid_core, grid_core.n_features


def _select_planes(spec: EnvSpec, name: str, selection: Sequence[str] | None) -> list[tuple[int, int, int]]:
    """Return the planes (`Channel.planes`) of the map `name` that a `planes` core reads: `selection`, or all if None.

    Raises:
        ConfigError: the map has no such plane or no planes at all, or `selection` is empty.
    """
    available = spec.observation[name].planes
    if not available:
        alternatives = [channel_name for channel_name, channel in spec.observation.items() if channel.planes]
        problem = f"agent.core=planes needs a map with planes, but the channel {name!r} of env={spec.name} has none"
        if alternatives:
            raise ConfigError(f"{problem}; use agent.observation_channels=[{alternatives[0]}]")
        raise Incompatible(IncompatibilityReason.INTERFACE, f"{problem}; use agent.core=auto")
    if unknown := [plane for plane in selection or () if plane not in available]:
        raise ConfigError(f"agent.planes: {name!r} has no plane {unknown[0]!r}; available: {', '.join(available)}")
    if selection is not None and not selection:
        raise ConfigError(f"agent.planes is empty; choose from {', '.join(available)}")
    return [available[plane] for plane in (available if selection is None else selection)]


def _check_spatial_channels(
    spec: EnvSpec, settings: NetworkSettings, channel_names: Sequence[str], spatial_names: Sequence[str]
) -> None:
    """Raise ConfigError or Incompatible if the settings do not fit the channels that a network reads.

    Args:
        spec: spec of the environment.
        settings: architecture of the network.
        channel_names: names of all channels read.
        spatial_names: names of those that are an image or a map.
    """
    if len(spatial_names) > 1:
        raise ConfigError(
            f"a network reads one image or map, but env={spec.name} has {' and '.join(spatial_names)}; choose one with "
            f"agent.observation_channels, e.g. agent.observation_channels=[{spatial_names[0]}]"
        )
    if settings.core == "planes" and not spatial_names:
        raise Incompatible(
            IncompatibilityReason.INTERFACE,
            f"agent.core=planes needs a map, but env={spec.name} has {', '.join(channel_names)}; use agent.core=auto",
        )
    if settings.critic != "own" and spatial_names:
        raise ConfigError(
            f"agent.critic={settings.critic} reads numbers, but {spatial_names[0]!r} of env={spec.name} is an image or "
            "map; use agent.critic=own"
        )
