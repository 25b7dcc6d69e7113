"""Actor-critics: a core that turns channels into features, and linear (or deeper) heads on top.

The core is what the published society studies freeze, so everything a head needs is in `features`, and a rollout of a
frozen core stores features instead of observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec
from llmrl.networks import categorical
from llmrl.networks.cnn import MAP_CHANNELS, GridCore, PixelCore, PlanesCore
from llmrl.networks.film import FilmCore, FilmSettings
from llmrl.networks.layers import POLICY_GAIN, VALUE_GAIN, initialise, mlp
from llmrl.networks.memory import Memory

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

Critic = Literal["own", "central"]
Core = Literal["auto", "mlp", "planes", "film"]
Join = Literal["heads", "core"]
Encoding = Literal["onehot", "codes"]


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


class ActorCritic(nn.Module):
    """One network: channels [batch, ...] -> features [batch, F] -> logits [batch, n_actions] and value [batch].

    With a picture or a map (a channel of three axes) the core is about that, and what else is read joins at the heads
    (as in the published society agents) or before the core's last layer. Without, every channel, flattened, goes into
    an MLP core. A memory, if there is one, stands between core and heads.

    Args:
        spec: of the environment.
        generator: of the initial weights.
        features: width of the core's output; None with a map: the convolutions' output as it is, of a `film` core 32.
        core_hidden: hidden widths of an MLP core.
        head_hidden: hidden widths of the heads.
        reads: channels taken in; None: all.
        memory: units of an LSTM's layers; None: no memory.
        memory_layers: of the LSTM.
        core: `auto`; `mlp`: a map or picture is flattened like any other channel; `planes`: one linear layer on facts
            about a map's cells; or `film`: a map is looked at as the words of the channel `mission` say.
        encoding: of a map's codes for convolutions: `onehot`, or `codes`: the numbers they are.
        critic: `own`: a head on the actor's features; `central`: a network of its own, with the hidden widths of the
            core, that sees what all agents of the game see (Yu et al. 2022, arXiv 2103.01955).
        film: shape of a `film` core; None: its defaults.
        map_channels: output channels of the convolutions over a map.
        planes: names of the facts that a `planes` core looks at; None: all that the map has.
        join: where numbers beside a picture or a map come in: at the `heads`, or before the last layer of the `core`.

    Attributes:
        mechanism_columns: where features hold the mechanism's values; None where they do not, as such.
        joint_columns: where the channel `joint` of a central critic holds them, for one agent after the other.

    Raises:
        ConfigError: two channels with three axes, a central critic where one is read, or a `film` core where there is
            no map of codes or no mission.
    """

    def __init__(
        self,
        spec: EnvSpec,
        generator: torch.Generator,
        features: int | None,
        core_hidden: Sequence[int],
        head_hidden: Sequence[int],
        reads: Sequence[str] | None = None,
        memory: int | None = None,
        memory_layers: int = 1,
        critic: Critic = "own",
        core: Core = "auto",
        encoding: Encoding = "onehot",
        film: FilmSettings | None = None,
        map_channels: Sequence[int] = MAP_CHANNELS,
        planes: Sequence[str] | None = None,
        join: Join = "heads",
    ) -> None:
        super().__init__()
        n_actions = spec.need_discrete("a network that learns by PPO")
        if core == "film":
            _check_instructed(spec, reads)
        chosen = readable(spec, reads)
        spatial = [name for name in chosen if core != "mlp" and len(spec.observation[name].shape) == 3]
        if len(spatial) > 1:
            raise ConfigError(
                f"one network reads one picture or map, and env={spec.name} offers {' and '.join(spatial)}; choose "
                f"with agent.reads, e.g. agent.reads=[{spatial[0]}]"
            )
        self.image = spatial[0] if spatial else None
        extras = [name for name in chosen if name not in spatial]
        self.joined = tuple(extras)
        self.words = MISSION if core == "film" else None
        # A player who is alone need not be told who it is.
        self.vectors = (*extras, PLAYER) if spec.n_agents > 1 else tuple(extras)
        widths = {name: int(torch.Size(spec.observation[name].shape).numel()) for name in extras}
        width = sum(widths.values()) + (spec.n_agents if PLAYER in self.vectors else 0)
        self.mechanism_columns: slice | None = None
        self.joint_columns: list[int] = []
        self.core: nn.Module
        self.join = join
        joined = width if join == "core" else 0
        if join == "core" and self.image is not None and core == "film":
            raise ConfigError("agent.join=core: a film core has no last layer to join at; use agent.join=heads")
        if core == "planes" and self.image is None:
            raise ConfigError(f"agent.core=planes looks at a map, and env={spec.name} offers {', '.join(chosen)}")
        if self.image is not None:
            shape = spec.observation[self.image].shape
            codes = spec.observation[self.image].codes if encoding == "onehot" else ()
            if core == "planes":
                features = features or 64
                self.core = PlanesCore(shape, _planes(spec, self.image, planes), features, generator, joined)
            elif self.image == "pixels":
                features = features or 512
                self.core = PixelCore(shape, features, generator, joined)
            elif core == "film":
                [n_words] = spec.observation[MISSION].codes
                self.core = FilmCore(shape, codes, n_words, features or 32, film or FilmSettings(), generator)
                features = self.core.n_features
            else:
                if joined and features is None:
                    raise ConfigError("agent.join=core needs a last layer of the core: set agent.features, e.g. 64")
                self.core = GridCore(shape, features, generator, codes, map_channels, joined)
                features = self.core.n_features
            if MECHANISM in extras and not joined:
                start = features + sum(widths[name] for name in extras[: extras.index(MECHANISM)])
                self.mechanism_columns = slice(start, start + widths[MECHANISM])
            self.n_features = features + (0 if joined else width)
        else:
            features = features or 64
            self.core = mlp([width, *core_hidden, features], generator)
            self.n_features = features
        self.memory = None if memory is None else Memory(self.n_features, memory, memory_layers, generator)
        head = [self.n_features if memory is None else memory, *head_hidden]
        self.actor = nn.Sequential(
            *mlp(head, generator), initialise(nn.Linear(head[-1], n_actions), POLICY_GAIN, generator)
        )
        if critic == "central":
            if self.image is not None:
                raise ConfigError(
                    f"agent.critic=central reads numbers, and {self.image!r} of env={spec.name} is a picture or a map; "
                    "use agent.critic=own"
                )
            seen = sum(widths.values())
            if MECHANISM in extras:
                start = sum(widths[name] for name in extras[: extras.index(MECHANISM)])
                own = range(start, start + widths[MECHANISM])
                self.joint_columns = [agent * seen + i for agent in range(spec.n_agents) for i in own]
            head = [spec.n_agents * seen + spec.n_agents, *core_hidden, features, *head_hidden]
        self.central = critic == "central"
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
            return self.core(channels[self.image], flat)  # type: ignore[no-any-return]
        read = (self.image,) if self.words is None else (self.image, self.words)
        features: torch.Tensor = self.core(*(channels[name] for name in read))
        return features if flat is None else torch.cat([features, flat], dim=-1)

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
        (`networks/stacked.py`) have batches of two axes, as their weights have one more."""
        weight = self.critic[-1].weight
        batch = weight.dim() - 1  # type: ignore[operator]
        return torch.cat([x.flatten(batch).to(weight.dtype) for x in channels], dim=-1) if channels else None  # type: ignore[arg-type]
