"""Penalty on the divergence of the trained policy from the policy before training."""

from __future__ import annotations

import copy

import torch

from llmrl.agents.llm_ppo.network import LanguageActorCritic, shared
from llmrl.core.records import State
from llmrl.core.rollouts import Rollout
from llmrl.llms.local.adapter import adapters_off


class ReferenceKL:
    """Additional PPO loss beta KL(pi || pi_0) over the actions (a `Teacher`).

    pi_0 is the model without its adapters or, if all weights are trained, a copy of the initial model.

    Args:
        network: network whose actions are scores.
        beta: weight of the divergence, > 0.
        adapters: whether adapters are trained.
    """

    channels: tuple[str, ...] = ()
    policy = None

    def __init__(self, network: LanguageActorCritic, beta: float, adapters: bool) -> None:
        self.network, self.beta = network, beta
        self._frozen = None if adapters else _frozen_copy(network)

    @torch.no_grad()
    def advise(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """Return the logits of pi_0, [T, n_envs, n_agents, n_actions]."""
        prompts, places = rollout.observation[self.network.channel].distinct()
        if self._frozen is not None:
            logits, _ = shared(self.network.processes, prompts, self._frozen.read)
        else:
            with adapters_off(self.network.language):
                logits, _ = shared(self.network.processes, prompts, self.network.read)
        return {"reference": logits[places.to(logits.device)]}

    def loss(
        self, minibatch: dict[str, torch.Tensor], logits: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the weighted divergence, and as `loss/reference_kl` the divergence in nats."""
        reference = minibatch["reference"]
        # Forbidden actions have probability 0 under both policies.
        mask = minibatch.get("action_mask")
        log_probs, reference_log_probs = logits.log_softmax(-1), reference.log_softmax(-1)
        if mask is not None:
            reference_log_probs = reference.masked_fill(~mask.bool(), torch.finfo(reference.dtype).min).log_softmax(-1)
        divergence = (log_probs.exp() * (log_probs - reference_log_probs)).sum(-1).mean()
        return self.beta * divergence, {"loss/reference_kl": divergence.detach()}

    def metrics(self) -> dict[str, float]:
        """Return no metrics, because the loss records the divergence."""
        return {}

    def reset(self) -> None:
        """Do nothing, because pi_0 never changes."""

    def state_dict(self) -> State:
        """Return no state, because pi_0 follows from the model's initial weights."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Do nothing, because there is no state."""


def _frozen_copy(network: LanguageActorCritic) -> LanguageActorCritic:
    """Return a copy of the network whose language model is frozen and not shared."""
    clone = copy.copy(network)
    scorer = copy.copy(network.scorer)
    scorer.replace_module(copy.deepcopy(network.language).requires_grad_(False))
    # Set directly, because the copy shares the dictionary of `nn.Module` with the original.
    clone.__dict__["_modules"] = {**network._modules, "language": scorer.module}
    clone.scorer = scorer
    return clone
