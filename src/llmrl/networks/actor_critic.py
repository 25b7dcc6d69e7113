"""Actor-critics: a core that turns channels into features, and linear (or deeper) heads on top.

The core is what the published society studies freeze, so everything a head needs is in `features`, and a rollout of a
frozen core stores features instead of observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec
from llmrl.networks import categorical
from llmrl.networks.cnn import PixelCore
from llmrl.networks.film import FilmCore, FilmSettings
from llmrl.networks.maps import MAP_CHANNELS, GridCore, PlanesCore
from llmrl.networks.mlp import POLICY_GAIN, VALUE_GAIN, initialise, mlp

MECHANISM = "mechanism"
"""Channel with the mechanism's values, in environments that show them."""
PLAYER = "player"
"""Channel with the agent's index as one-hot, added by the policy (environments need not know about it)."""
JOINT = "joint"
"""Channel with the numbers that all agents of a game see, added by the policy for a critic that may know them."""
MISSION = "mission"
"""Channel with the words of an instruction, as places in a vocabulary; only a core that reads words takes it in."""
UNREAD = ("text", "prompt", "state", "action_mask", MISSION, "expert")
"""Channels that are no input of a network, as numbers."""

PIECE = 2**15
"""Cells of maps that a core takes in at once where nobody learns from them, on a processor."""

Critic = Literal["own", "central"]
CoreType = Literal["auto", "mlp", "planes", "film"]
Join = Literal["heads", "core"]
Encoding = Literal["onehot", "codes"]


@dataclass(frozen=True)
class NetworkSettings:
    """Shape of an `ActorCritic`.

    Attributes:
        features: width of the core's output; None with a map: the convolutions' output as it is, with pixels 512, of a
            `film` core 32, else 64.
        core_hidden: hidden widths of an MLP core, and of a central critic.
        head_hidden: hidden widths of the heads.
        reads: channels taken in; None: all.
        memory: units of an LSTM's layers; None: no memory.
        memory_layers: of the LSTM.
        critic: `own`: a head on the actor's features; `central`: a network of its own, with the hidden widths of the
            core, that sees what all agents of the game see (Yu et al. 2022, arXiv 2103.01955).
        core: `auto`; `mlp`: a map or picture is flattened like any other channel; `planes`: one linear layer on facts
            about a map's cells; or `film`: a map is looked at as the words of the channel `mission` say.
        encoding: of a map's codes for convolutions: `onehot`, or `codes`: the numbers they are.
        film: shape of a `film` core; None: its defaults.
        map_channels: output channels of the convolutions over a map.
        map_stride: of the first of them.
        planes: names of the facts that a `planes` core looks at; None: all that the map has.
        join: where numbers beside a picture or a map come in: at the `heads`, or before the last layer of the `core`.
    """

    features: int | None = None
    core_hidden: Sequence[int] = ()
    head_hidden: Sequence[int] = ()
    reads: Sequence[str] | None = None
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


class ActorCritic(nn.Module):
    """One network: channels [batch, ...] -> features [batch, F] -> logits [batch, n_actions] and value [batch].

    With a picture or a map (a channel of three axes) the core is about that, and what else is read joins at the heads
    (as in the published society agents) or before the core's last layer. Without, every channel, flattened, goes into
    an MLP core. A memory, if there is one, stands between core and heads.

    Args:
        spec: of the environment.
        generator: of the initial weights.
        settings: shape of the network.

    Attributes:
        image, words: names of the map or picture and of the instruction that the core reads; None: it reads none.
        joined: names of the further channels taken in, without the one that says who plays.
        mechanism_columns: where features hold the mechanism's values; None where they do not, as such.
        joint_columns: where the channel `joint` of a central critic holds them, for one agent after the other.

    Raises:
        ConfigError: two channels with three axes, a central critic where one is read, or a `film` core where there is
            no map of codes or no mission.
    """

    def __init__(self, spec: EnvSpec, generator: torch.Generator, settings: NetworkSettings) -> None:
        super().__init__()
        s = settings
        n_actions = spec.need_discrete("a network that learns by PPO")
        if s.core == "film":
            _check_instructed(spec, s.reads)
        chosen = readable(spec, s.reads)
        spatial = [name for name in chosen if s.core != "mlp" and len(spec.observation[name].shape) == 3]
        if len(spatial) > 1:
            raise ConfigError(
                f"one network reads one picture or map, and env={spec.name} offers {' and '.join(spatial)}; choose "
                f"with agent.reads, e.g. agent.reads=[{spatial[0]}]"
            )
        self.image = spatial[0] if spatial else None
        self.joined = tuple(name for name in chosen if name not in spatial)
        self.words = MISSION if s.core == "film" else None
        # A player who is alone need not be told who it is.
        self.vectors = (*self.joined, PLAYER) if spec.n_agents > 1 else self.joined
        self.join, self.central = s.join, s.critic == "central"
        if s.join == "core" and self.image is not None and s.core == "film":
            raise ConfigError("agent.join=core: a film core has no last layer to join at; use agent.join=heads")
        if s.core == "planes" and self.image is None:
            raise ConfigError(f"agent.core=planes looks at a map, and env={spec.name} offers {', '.join(chosen)}")
        widths = {name: int(torch.Size(spec.observation[name].shape).numel()) for name in self.joined}
        seen = sum(widths.values())
        width = seen + (spec.n_agents if PLAYER in self.vectors else 0)
        own = slice(0, 0)
        if MECHANISM in widths:
            start = sum(widths[name] for name in self.joined[: self.joined.index(MECHANISM)])
            own = slice(start, start + widths[MECHANISM])
        self.mechanism_columns: slice | None = None
        self.core: nn.Module
        if self.image is None:
            self.n_features = s.features or 64
            self.core = mlp([width, *s.core_hidden, self.n_features], generator)
        else:
            self.core, self.n_features = _spatial_core(spec, self.image, width, generator, s)
            shown = spec.observation[self.image]
            # A film core may normalise by the samples that it is given together, and pictures gain nothing.
            whole = s.core == "film" or self.image == "pixels"
            self._piece = 0 if whole else max(1, PIECE // (shown.shape[0] * shown.shape[1]))
            if s.join == "heads":
                if MECHANISM in widths:
                    self.mechanism_columns = slice(self.n_features + own.start, self.n_features + own.stop)
                self.n_features += width
        self.memory = None if s.memory is None else Memory(self.n_features, s.memory, s.memory_layers, generator)
        head = [self.n_features if s.memory is None else s.memory, *s.head_hidden]
        self.actor = nn.Sequential(
            *mlp(head, generator), initialise(nn.Linear(head[-1], n_actions), POLICY_GAIN, generator)
        )
        self.joint_columns: list[int] = []
        if self.central:
            if self.image is not None:
                raise ConfigError(
                    f"agent.critic=central reads numbers, and {self.image!r} of env={spec.name} is a picture or a map; "
                    "use agent.critic=own"
                )
            self.joint_columns = [
                agent * seen + i for agent in range(spec.n_agents) for i in range(own.start, own.stop)
            ]
            head = [spec.n_agents * seen + spec.n_agents, *s.core_hidden, self.n_features, *s.head_hidden]
        self.critic = nn.Sequential(*mlp(head, generator), initialise(nn.Linear(head[-1], 1), VALUE_GAIN, generator))

    def forward(self, samples: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [batch, n_actions] and values [batch] from `features` where samples have them, else from channels.

        With a memory, samples are sequences laid end to end, with their `lengths` [n_sequences] and the `state`
        [n_sequences, state_size] before each.
        """
        features = samples["features"] if "features" in samples else self.encode(samples)
        if self.memory is not None:
            features = self.memory.unroll(features, samples["lengths"], samples["state"])
        return self.logits(features, samples.get("action_mask")), self.value(features, samples)

    def encode(self, channels: dict[str, torch.Tensor]) -> torch.Tensor:
        """Features [batch, F] of the core from channels [batch, ...]."""
        flat = self._flat([channels[name] for name in self.vectors])
        if self.image is None:
            return self.core(flat)  # type: ignore[no-any-return]
        if self.join == "core":
            return self._spatial(channels[self.image], flat)
        read = (self.image,) if self.words is None else (self.image, self.words)
        features = self._spatial(*(channels[name] for name in read))
        return features if flat is None else torch.cat([features, flat], dim=-1)

    def _spatial(self, *inputs: torch.Tensor | None) -> torch.Tensor:
        """What the core makes of a picture or map and what it takes in beside it, each [batch, ...].

        On a processor many maps that nobody learns from are taken in pieces, whose one-hots stay in its cache.
        """
        seen = inputs[0]
        assert seen is not None
        if not self._piece or seen.device.type != "cpu" or torch.is_grad_enabled():
            return self.core(*inputs)  # type: ignore[no-any-return]
        batch = seen.dim() - 4  # the axis of samples: stacked networks have theirs in front of it
        # Of stacked networks each takes pieces of one size, however many they are: a product's shape decides its bits.
        n, piece = seen.shape[batch], self._piece
        if n <= piece:
            return self.core(*inputs)  # type: ignore[no-any-return]
        split = [[None] * -(-n // piece) if x is None else torch.split(x, piece, batch) for x in inputs]
        return torch.cat([self.core(*own) for own in zip(*split, strict=True)], batch)

    def logits(self, features: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [..., n_actions] (masked) of what the heads take in, [..., F]."""
        return categorical.mask_logits(self.actor(features), mask)

    def value(self, features: torch.Tensor, channels: dict[str, torch.Tensor]) -> torch.Tensor:
        """Values [batch] of what the heads take in, [batch, F]; a central critic reads `channels` instead."""
        if self.central:
            joint = self._flat([channels[JOINT], channels[PLAYER]])
            assert joint is not None
            features = joint
        return self.critic(features).squeeze(-1)  # type: ignore[no-any-return]

    def _flat(self, channels: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Channels [batch, ...] side by side, [batch, n]; None if there are none. Stacked networks
        (`algorithms/societies/stacked_networks.py`) have batches of two axes, as their weights have one more."""
        weight = self.critic[-1].weight
        batch = weight.dim() - 1  # type: ignore[operator]
        return torch.cat([x.flatten(batch).to(weight.dtype) for x in channels], dim=-1) if channels else None  # type: ignore[arg-type]


class Memory(nn.Module):
    """An LSTM between core and heads; its state is one row of numbers an agent, all zeros at the start of an episode.

    Args:
        n_in: features of the core.
        units: of each layer, and features given to the heads.
        layers: stacked.
        generator: of the initial weights, uniform within 1 / sqrt(units) as torch draws them.
    """

    def __init__(self, n_in: int, units: int, layers: int, generator: torch.Generator) -> None:
        super().__init__()
        self.units, self.layers = units, layers
        self.lstm = nn.LSTM(n_in, units, layers)
        bound = units**-0.5
        for weight in self.lstm.parameters():
            nn.init.uniform_(weight, -bound, bound, generator=generator)

    @property
    def state_size(self) -> int:
        """Numbers in a row of the state: hidden and cell values of all layers."""
        return 2 * self.layers * self.units

    def step(self, features: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """One step: features [batch, n_in], state [batch, state_size] (None: zeros) -> output [batch, units], state."""
        output, after = self.lstm(features.unsqueeze(0), self._split(state))
        return output.squeeze(0), self._joined(after)

    def unroll(self, features: torch.Tensor, lengths: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Outputs [n, units] of sequences laid end to end, features [n, n_in], each from its own state.

        Args:
            features: of all steps of the first sequence, then of the second, ...
            lengths: steps of each, [n_sequences] int64 on the processor, adding up to n.
            state: before the first step of each, [n_sequences, state_size].
        """
        packed = pack_sequence(list(torch.split(features, lengths.tolist())), enforce_sorted=False)
        output, _ = self.lstm(packed, self._split(state))
        return torch.cat(unpack_sequence(output))

    def _split(self, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor] | None:
        if state is None:
            return None
        pair = state.reshape(-1, 2, self.layers, self.units).permute(1, 2, 0, 3).contiguous()
        return pair[0], pair[1]

    def _joined(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.stack(pair).permute(2, 0, 1, 3).flatten(1)


def readable(spec: EnvSpec, reads: Sequence[str] | None) -> tuple[str, ...]:
    """The channels a network takes in as numbers: `reads`, or every numeric one.

    Raises:
        ConfigError: one of `reads` is no such channel, or there are none.
    """
    offered = [name for name in spec.observation if name not in UNREAD]
    if not offered:
        raise ConfigError(
            f"agent=ppo reads pixels or numbers, but env={spec.name} offers only {sorted(spec.observation)}"
        )
    if unknown := [name for name in reads or () if name not in offered]:
        raise ConfigError(f"agent.reads: env={spec.name} offers no channel {unknown[0]!r}, but {', '.join(offered)}")
    chosen = tuple(name for name in offered if reads is None or name in reads)
    if not chosen:
        raise ConfigError(f"agent.reads is empty; env={spec.name} offers {', '.join(offered)}")
    return chosen


def _check_instructed(spec: EnvSpec, reads: Sequence[str] | None) -> None:
    """Raise ConfigError unless there is a mission, and among `reads` (None: all) a map of codes."""
    maps = [name for name, channel in spec.observation.items() if channel.codes and len(channel.shape) == 3]
    if not maps or MISSION not in spec.observation:
        raise ConfigError(
            f"agent.core=film looks at a map of codes as the words of a mission say, and env={spec.name} offers only "
            f"{', '.join(sorted(spec.observation))}; use env=babyai_text, or agent=ppo"
        )
    if reads is not None and not set(reads) & set(maps):
        raise ConfigError(f"agent.core=film looks at a map, and agent.reads={list(reads)} names none; add {maps[0]!r}")


def _spatial_core(
    spec: EnvSpec, image: str, width: int, generator: torch.Generator, settings: NetworkSettings
) -> tuple[nn.Module, int]:
    """The core for the map or picture `image`, and the width of its output; `width` numbers stand beside it.

    Raises:
        ConfigError: numbers are to join at a last layer that it does not have.
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
    """The facts about the cells of the map `name` that a `planes` core looks at: `wanted`, or all.

    Raises:
        ConfigError: the map has no such fact, or none at all.
    """
    offered = spec.observation[name].planes
    if not offered:
        having = [other for other, channel in spec.observation.items() if channel.planes]
        raise ConfigError(
            f"agent.core=planes: the channel {name!r} of env={spec.name} names no facts about its cells; "
            + (f"use agent.reads=[{having[0]}]" if having else "use agent.core=auto")
        )
    if unknown := [plane for plane in wanted or () if plane not in offered]:
        raise ConfigError(f"agent.planes: {name!r} has no plane {unknown[0]!r}, but {', '.join(offered)}")
    if wanted is not None and not wanted:
        raise ConfigError(f"agent.planes is empty; {name!r} offers {', '.join(offered)}")
    return [offered[plane] for plane in (offered if wanted is None else wanted)]
