"""Actor-critics: a core that turns channels into features, and linear (or deeper) heads on top.

The core is what the published society studies freeze, so everything a head needs is in `features`, and a rollout of a
frozen core stores features instead of observations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from llmrl.core.errors import ConfigError
from llmrl.core.records import Act
from llmrl.core.spaces import EnvSpec
from llmrl.networks import categorical
from llmrl.networks.cnn import PixelCore
from llmrl.networks.layers import POLICY_GAIN, VALUE_GAIN, initialise, mlp

MECHANISM = "mechanism"
"""Channel with the mechanism's values, in environments that show them."""
PLAYER = "player"
"""Channel with the agent's index as one-hot, added by the policy (environments need not know about it)."""


class ActorCritic(nn.Module):
    """One network: channels [batch, ...] -> features [batch, F] -> logits [batch, n_actions] and value [batch].

    With `pixels`, the core is convolutional and the player's identity and the mechanism join at the heads (as in the
    published society agents). Without, every numeric channel, flattened, goes into an MLP core.

    Attributes:
        mechanism_columns: where features hold the mechanism's values; None where they do not, as such.
    """

    def __init__(
        self,
        spec: EnvSpec,
        generator: torch.Generator,
        features: int,
        core_hidden: Sequence[int],
        head_hidden: Sequence[int],
    ) -> None:
        super().__init__()
        self.pixel = "pixels" in spec.observation
        extras = [name for name in spec.observation if name not in ("pixels", "text", "action_mask")]
        self.vectors = (*extras, PLAYER)
        widths = {name: int(torch.Size(spec.observation[name].shape).numel()) for name in extras}
        width = spec.n_agents + sum(widths.values())
        self.mechanism_columns: slice | None = None
        self.core: nn.Module
        if self.pixel:
            if MECHANISM in extras:
                start = features + sum(widths[name] for name in extras[: extras.index(MECHANISM)])
                self.mechanism_columns = slice(start, start + widths[MECHANISM])
            self.core = PixelCore(spec.observation["pixels"].shape, features, generator)
            self.n_features = features + width
        elif extras:
            sizes = [width, *core_hidden, features]
            self.core = mlp(sizes, generator)
            self.n_features = features
        else:
            raise ConfigError(
                f"agent=ppo reads pixels or numbers, but env={spec.name} offers only {sorted(spec.observation)}"
            )
        head = [self.n_features, *head_hidden]
        self.actor = nn.Sequential(
            *mlp(head, generator), initialise(nn.Linear(head[-1], spec.n_actions), POLICY_GAIN, generator)
        )
        self.critic = nn.Sequential(*mlp(head, generator), initialise(nn.Linear(head[-1], 1), VALUE_GAIN, generator))

    def forward(self, samples: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [batch, n_actions] and values [batch] from `features` where samples have them, else from channels."""
        features = samples["features"] if "features" in samples else self.encode(samples)
        return self.heads(features, samples.get("action_mask"))

    def encode(self, channels: dict[str, torch.Tensor]) -> torch.Tensor:
        """Features [batch, F] from channels [batch, ...]."""
        dtype = self.critic[-1].weight.dtype
        flat = torch.cat([channels[name].flatten(1).to(dtype) for name in self.vectors], dim=1)  # type: ignore[arg-type]
        if self.pixel:
            return torch.cat([self.core(channels["pixels"]), flat], dim=1)
        return self.core(flat)  # type: ignore[no-any-return]

    def heads(self, features: torch.Tensor, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [..., n_actions] (masked) and values [...] of features [..., F]."""
        return categorical.mask_logits(self.actor(features), mask), self.critic(features).squeeze(-1)


class SocietyPolicy(nn.Module):
    """The policy of all agents of a game: one shared `ActorCritic`, or one for each agent.

    Attributes:
        members: the networks; one, or `n_agents`.
        channels: observation channels read.
        core_frozen: the cores get no gradient, and `act` returns their features for reuse.
    """

    def __init__(self, spec: EnvSpec, members: Sequence[ActorCritic], core_frozen: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.n_agents = spec.n_agents
        self.core_frozen = core_frozen
        self.channels = tuple(name for name in spec.observation if name != "text")
        if core_frozen:
            for member in members:
                member.core.requires_grad_(False)
        self.register_buffer("identity", torch.eye(spec.n_agents), persistent=False)

    def groups(self) -> list[tuple[ActorCritic, slice]]:
        """Each network with the agents it plays, as a slice of the agent axis."""
        if len(self.members) == 1:
            return [(self.members[0], slice(0, self.n_agents))]  # type: ignore[list-item]
        return [(member, slice(i, i + 1)) for i, member in enumerate(self.members)]  # type: ignore[misc]

    def with_player(self, observation: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The observation [n_envs, n_agents, ...] with the `player` channel added."""
        n_envs = next(iter(observation.values())).shape[0]
        player = self.identity.unsqueeze(0).expand(n_envs, -1, -1)  # type: ignore[operator]
        return {**observation, PLAYER: player}

    @torch.no_grad()
    def values(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """State values [n_envs, n_agents], without drawing actions."""
        return torch.cat(
            [network.critic(features).squeeze(-1) for network, features, _ in self._encoded(observation)], dim=1
        )

    @torch.no_grad()
    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: object = None,
        generator: torch.Generator | None = None,
    ) -> Act:
        """Sample actions [n_envs, n_agents] with their log-probabilities, values and (frozen core) features."""
        logits, values, features = [], [], []
        for network, encoded, mask in self._encoded(observation):
            network_logits, network_values = network.heads(encoded, mask)
            logits.append(network_logits)
            values.append(network_values)
            features.append(encoded)
        all_logits = torch.cat(logits, dim=1)
        action = categorical.sample(all_logits, generator)
        log_prob, _ = categorical.log_prob_entropy(all_logits, action)
        return Act(
            action=action,
            log_prob=log_prob,
            value=torch.cat(values, dim=1),
            features=torch.cat(features, dim=1) if self.core_frozen else None,
            state=state,
        )

    def _encoded(
        self, observation: dict[str, torch.Tensor]
    ) -> Iterator[tuple[ActorCritic, torch.Tensor, torch.Tensor | None]]:
        """For each network: features [n_envs, k, F] and action mask [n_envs, k, n_actions] of its k agents."""
        channels = self.with_player(observation)
        for network, agents in self.groups():
            own = {name: x[:, agents] for name, x in channels.items()}
            features = network.encode({name: x.flatten(0, 1) for name, x in own.items()})
            yield network, features.view(*own[PLAYER].shape[:2], -1), own.get("action_mask")
