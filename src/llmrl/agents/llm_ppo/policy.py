"""The policy of a language model, and how several processes share its work."""

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
    """Reads a text channel and acts by the scores of the actions' names; one network for all agents.

    A text is read once in a rollout, however often it is met (`Memoizing`).

    Args:
        spec: of the environment.
        network: the model.
    """

    recurrent = False

    def __init__(self, spec: EnvSpec, network: LanguageActorCritic) -> None:
        super().__init__()
        self.network, self.n_agents = network, spec.n_agents
        self.channels: tuple[str, ...] = tuple(
            name for name in (network.channel, "action_mask") if name in spec.observation
        )
        self._memo = Memo(self._read)

    @property
    def distribution(self) -> Choice:
        """Distribution of actions that the model's scores describe."""
        return Choice(self.network.n_actions)

    def unchanged(self) -> AbstractContextManager[None]:
        """As `Memoizing`: a rollout, in which each text is read once."""
        return self._memo.unchanged()

    def groups(self) -> list[tuple[nn.Module, slice]]:
        """One network plays all agents."""
        return [(self.network, slice(0, self.n_agents))]

    def extended(self, observation: dict[str, Any]) -> dict[str, Any]:
        """The observation: prompts say all there is."""
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
        logits, value = self._look(observation)
        action = logits.argmax(-1) if greedy else categorical.sample(logits, generator)
        log_prob, entropy = categorical.log_prob_entropy(logits, action)
        return PolicyOutput(action=action, log_prob=log_prob, value=value, logits=logits, entropy=entropy)

    @torch.no_grad()
    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        """State values [n_envs, n_agents]."""
        return self._look(observation)[1]

    @torch.no_grad()
    def probabilities(self, prompts: Sequence[str]) -> torch.Tensor:
        """Of the actions after each prompt, [n, n_actions]."""
        return self._read(list(prompts))[0].softmax(-1)

    def _look(self, observation: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [n_envs, n_agents, n_actions] and values [n_envs, n_agents]."""
        prompts = np.asarray(observation[self.network.channel], dtype=object)
        logits, value = self._memo([str(text) for text in prompts.ravel()])
        logits, value = logits.reshape(*prompts.shape, -1), value.reshape(prompts.shape)
        return categorical.mask_logits(logits, observation.get("action_mask")), value

    def _read(self, prompts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [n, n_actions] and values [n] of different prompts."""
        return shared(self.network.processes, prompts, self.network.read)


def shared(processes: ProcessGroup, prompts: Sequence[str], read: Read) -> tuple[torch.Tensor, torch.Tensor]:
    """What `read` gives of all prompts, [n, ...], each of several processes having read its share of them."""
    if processes.world_size == 1:
        return read(prompts)
    own = prompts[processes.share(len(prompts))]
    # A process without a share reads one all the same, to know what a row looks like.
    logits, value = read(own or prompts[:1])
    return processes.gather(logits[: len(own)].contiguous()), processes.gather(value[: len(own)].contiguous())
