"""Policy of a language model, and distribution of its work over several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import nn

from llmrl.agents.llm_ppo.network import LanguageActorCritic
from llmrl.core.processes import ProcessGroup
from llmrl.core.records import PolicyOutput
from llmrl.core.spaces import EnvSpec
from llmrl.networks import categorical
from llmrl.networks.action_distributions import Choice
from llmrl.networks.memo import Memo

Read = Callable[[Sequence[str]], tuple[torch.Tensor, torch.Tensor]]


class LanguagePolicy(nn.Module):
    """Policy that reads a text channel and acts by the scores of the actions' texts; one network for all agents.

    Each distinct text is computed once per rollout (`Memoizing`).

    Args:
        spec: spec of the environment.
        network: network of the policy.
    """

    recurrent = False

    def __init__(self, spec: EnvSpec, network: LanguageActorCritic) -> None:
        super().__init__()
        self.network, self.n_agents = network, spec.n_agents
        self.channels: tuple[str, ...] = tuple(
            name for name in (network.channel, "action_mask") if name in spec.observation
        )
        self._memo = Memo(self._compute)

    @property
    def distribution(self) -> Choice:
        """Distribution over the actions."""
        return Choice(self.network.n_actions)

    def unchanged(self) -> AbstractContextManager[None]:
        """Return the context of a rollout, in which each text is computed once (`Memoizing`)."""
        return self._memo.unchanged()

    def groups(self) -> list[tuple[nn.Module, slice]]:
        """Return the network, which plays all agents."""
        return [(self.network, slice(0, self.n_agents))]

    def extended(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return the observation unchanged, because prompts contain everything."""
        return observation

    @torch.no_grad()
    def act(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Sample actions [n_envs, n_agents] with their log-probabilities and values."""
        logits, value = self._evaluate(observation)
        action = logits.argmax(-1) if greedy else categorical.sample(logits, generator)
        log_prob, _ = categorical.log_prob_entropy(logits, action)
        return PolicyOutput(action=action, log_prob=log_prob, value=value, logits=logits)

    @torch.no_grad()
    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return state values, [n_envs, n_agents]."""
        return self._evaluate(observation)[1]

    @torch.no_grad()
    def probabilities(self, prompts: Sequence[str]) -> torch.Tensor:
        """Return the probabilities of actions after each prompt, [n, n_actions]."""
        return self._compute(list(prompts))[0].softmax(-1)

    def _evaluate(self, observation: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [n_envs, n_agents, n_actions] and values [n_envs, n_agents]."""
        prompts = np.asarray(observation[self.network.channel], dtype=object)
        logits, value = self._memo([str(text) for text in prompts.ravel()])
        logits, value = logits.reshape(*prompts.shape, -1), value.reshape(prompts.shape)
        return categorical.mask_logits(logits, observation.get("action_mask")), value

    def _compute(self, prompts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [n, n_actions] and values [n] of distinct prompts."""
        return shared(self.network.processes, prompts, self.network.read)


def shared(processes: ProcessGroup, prompts: Sequence[str], read: Read) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs of `read` for all prompts, [n, ...]; each process computes its share of them."""
    if processes.world_size == 1:
        return read(prompts)
    local_prompts = prompts[processes.share(len(prompts))]
    # A process without a share computes one prompt nevertheless, to know the shape of the outputs.
    logits, value = read(local_prompts or prompts[:1])
    return processes.gather(logits[: len(local_prompts)].contiguous()), processes.gather(
        value[: len(local_prompts)].contiguous()
    )
