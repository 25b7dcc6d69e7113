"""The policy before it was trained, as an anchor: one more loss that keeps the trained one near."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from llmrl.agents.llm_ppo.network import LanguageActorCritic
from llmrl.agents.llm_ppo.policy import shared
from llmrl.core.records import State
from llmrl.core.rollouts import Rollout


class ReferenceKL:
    """beta KL(pi || pi_0) over the actions, for PPO to add (a `Teacher`).

    pi_0 is the model with its adapters switched off, or, where all weights are trained, a copy of it as it began.

    Args:
        network: whose actions are scores.
        beta: weight of the divergence, > 0.
        adapters: whether what is trained are adapters.
    """

    channels: tuple[str, ...] = ()
    policy = None

    def __init__(self, network: LanguageActorCritic, beta: float, adapters: bool) -> None:
        self.network, self.beta = network, beta
        self._frozen = None if adapters else _frozen_copy(network)

    @torch.no_grad()
    def advise(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """Logits of pi_0, [T, n_envs, n_agents, n_actions]."""
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
        """The weighted divergence, and it in nats as `loss/reference_kl`."""
        reference = minibatch["reference"]
        # Actions that are forbidden are equally so for both.
        mask = minibatch.get("action_mask")
        ours, theirs = logits.log_softmax(-1), reference.log_softmax(-1)
        if mask is not None:
            theirs = reference.masked_fill(~mask.bool(), torch.finfo(reference.dtype).min).log_softmax(-1)
        divergence = (ours.exp() * (ours - theirs)).sum(-1).mean()
        return self.beta * divergence, {"loss/reference_kl": divergence.detach()}

    def metrics(self) -> dict[str, float]:
        """Nothing beside what the loss records."""
        return {}

    def reset(self) -> None:
        """It never changes."""

    def state_dict(self) -> State:
        """Nothing: it is made of the weights the model began with."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to load."""


@contextmanager
def adapters_off(module: Any) -> Iterator[None]:
    """The model as it is without its adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [layer for layer in module.modules() if isinstance(layer, BaseTunerLayer)]
    trained = [p for p in module.parameters() if p.requires_grad]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
        for parameter in trained:  # which peft froze
            parameter.requires_grad_(True)


def _frozen_copy(network: LanguageActorCritic) -> LanguageActorCritic:
    frozen = copy.copy(network)
    scorer = copy.copy(network.scorer)
    scorer.replace_module(copy.deepcopy(network.language).requires_grad_(False))
    # Not through nn.Module's own registration, which the copy shares with the original.
    frozen.__dict__["_modules"] = {**network._modules, "language": scorer.module}
    frozen.scorer = scorer
    return frozen
