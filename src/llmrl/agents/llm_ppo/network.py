"""Language model that scores the texts of actions, with a value head; its policy; and a KL penalty for training."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from llmrl.algorithms.minibatches import select_samples
from llmrl.algorithms.optimizer_step import Batch
from llmrl.core.errors import ConfigError
from llmrl.core.processes import ProcessGroup
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.records import PolicyOutput
from llmrl.core.rollouts import Rollout
from llmrl.core.spaces import EnvSpec
from llmrl.core.state_fields import StateFields
from llmrl.core.text_array import TextArray
from llmrl.llms.local.candidate_scorer import LocalScorer
from llmrl.llms.local.lora import disable_adapters
from llmrl.networks.action_distributions import CategoricalDistribution, mask_logits, sample_categorical
from llmrl.networks.layers import HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN, initialize
from llmrl.networks.memo import Memo

ActionSource = Literal["scores", "head"]
OutputFunction = Callable[[Sequence[str]], tuple[torch.Tensor, torch.Tensor]]
Activation = Literal["relu", "tanh", "sigmoid"]
Precision = Literal["float32", "bfloat16"]

_ACTIVATIONS: dict[Activation, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}


@dataclass(frozen=True)
class LanguageNetworkSettings:
    """Settings of a language actor-critic.

    Attributes:
        text_channel: text channel that the model reads.
        actions: source of action probabilities: the model's `scores` of the actions' names, or a `head`.
        temperature: temperature of the scores, > 0.
        head_hidden: hidden widths of the heads.
        head_activation: activation between the heads' layers.
        precision: precision of the model's computation; `bfloat16`: autocast, with the weights unchanged.
        piece_tokens: maximum number of prompt tokens, with padding, in one piece of a minibatch. A longer prompt, or a
            joint action with more tokens, is a separate piece.
    """

    text_channel: str
    actions: ActionSource
    temperature: PositiveFloat
    head_hidden: Sequence[PositiveInt]
    head_activation: Activation
    precision: Precision
    piece_tokens: PositiveInt


class LanguageActorCritic(nn.Module):
    """Network from texts [batch] to logits [batch, n_actions] and values [batch] (Carta et al. 2023, arXiv 2302.02662).

    Action probabilities are softmax(log p(name of the action | prompt) / temperature). With `actions: head` they come
    from a head on the model's hidden state after the prompt, as in the ablations of that study. Values always come from
    such a head. Heads compute in float32.

    Args:
        spec: spec of the environment, with the texts of actions (`EnvSpec.continuations`).
        scorer: the language model.
        generator: random generator for the heads' initial weights.
        settings: settings of the network.
        processes: processes that share the computation.

    Raises:
        ConfigError: the environment has no such text channel, or names of actions are equal or empty.
    """

    def __init__(
        self,
        spec: EnvSpec,
        scorer: LocalScorer,
        generator: torch.Generator,
        settings: LanguageNetworkSettings,
        processes: ProcessGroup,
    ) -> None:
        super().__init__()
        channel, hidden, activation = settings.text_channel, settings.head_hidden, settings.head_activation
        self.n_actions = spec.require_discrete_actions("a language model that scores actions")
        spec.require_text_channel(channel, "agent=llm_ppo")
        self.scorer, self.channel, self.processes = scorer, channel, processes
        self.scores_actions, self.temperature = settings.actions == "scores", settings.temperature
        self.precision, self.piece_tokens = settings.precision, settings.piece_tokens
        self.action_texts: tuple[str, ...] = ()
        self.set_actions(spec)
        self.language = scorer.module
        config: Any = self.language.config
        width = config.get_text_config().hidden_size
        self.critic = _build_head(width, hidden, 1, VALUE_GAIN, activation, generator)
        self.actor: nn.Sequential | None = None
        if not self.scores_actions:
            self.actor = _build_head(width, hidden, self.n_actions, POLICY_GAIN, activation, generator)
        self.n_tokens = 0  # number of positions computed so far
        self.activate_adapter: Callable[[], None] = lambda: None
        """Function that makes the model use this network's adapter, if it has one."""

    def set_actions(self, spec: EnvSpec) -> None:
        """Compute logits for the actions of `spec` from now on.

        Raises:
            ConfigError: their number differs from the head's outputs, or names are equal or empty.
        """
        names = spec.continuations(self.channel)
        labels = [name.strip() for name in names]
        if not self.scores_actions and len(names) != self.n_actions:
            raise ConfigError(
                f"agent.actions=head has one output for each of {self.n_actions} actions, but env={spec.name} has "
                f"{len(names)}; use agent.actions=scores for environments with other actions"
            )
        if self.scores_actions and (duplicates := [name for i, name in enumerate(labels) if name in labels[:i]]):
            raise ConfigError(
                f"two actions of env={spec.name} have the name {duplicates[0]!r}; use agent.actions=head, or "
                "different names"
            )
        if self.scores_actions and not all(labels):
            raise ConfigError(f"an action of env={spec.name} has an empty name: {labels}; use agent.actions=head")
        self.action_texts, self.n_actions = names, len(names)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits, masked if the batch has an `action_mask`, and values; equal texts are computed once."""
        texts = batch[self.channel]
        assert isinstance(texts, TextArray)
        prompts, prompt_indices = texts.unique()
        logits, value = self.compute_outputs(prompts)
        prompt_indices = prompt_indices.to(logits.device)
        return mask_logits(logits[prompt_indices], batch.get("action_mask")), value[prompt_indices]

    def compute_outputs(self, prompts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [n, n_actions] float32 and values [n] float32 of distinct prompts.

        Raises:
            ConfigError: a prompt is too long for the model.
        """
        self.activate_adapter()
        with self._autocast():
            output = self.scorer.forward(prompts, self.action_texts if self.actor is None else ())
        self.n_tokens += output.n_positions
        hidden_state = output.state.float()
        logits = output.log_probs / self.temperature if self.actor is None else self.actor(hidden_state)
        return logits, self.critic(hidden_state).squeeze(-1)

    def split_into_pieces(self, batch: Batch) -> Iterator[tuple[Batch, float]]:
        """Yield this process's pieces of a minibatch, each with its share of the samples.

        A piece contains whole joint actions (`joint_action_index`; without it, each sample is one) with prompts of
        similar length and at most `piece_tokens` tokens; a joint action with more tokens is a separate piece.
        """
        n_samples, world_size = len(batch["action"]), self.processes.world_size
        prompts, prompt_indices = batch[self.channel].unique()
        lengths = self.scorer.count_prompt_tokens(prompts)
        joint_action_indices = batch.get("joint_action_index", torch.arange(n_samples)).to(prompt_indices.device)
        prompt_indices_by_joint_action: list[set[int]] = [set() for _ in range(int(joint_action_indices.max()) + 1)]
        for joint_action, i in zip(joint_action_indices.tolist(), prompt_indices.tolist(), strict=True):
            prompt_indices_by_joint_action[joint_action].add(i)
        # Joint actions with the same prompts are in one piece, so that few prompts are computed repeatedly.
        joint_actions_by_prompts: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for joint_action, indices in enumerate(prompt_indices_by_joint_action):
            joint_actions_by_prompts[tuple(sorted(indices, key=lambda i: (-lengths[i], i)))].append(joint_action)
        piece_indices: list[tuple[set[int], list[int]]] = []  # indices of prompts, and of joint actions
        # All processes form the same pieces, and each computes some of them. The limit is such that each gets some.
        max_tokens = min(self.piece_tokens, -(-sum(lengths) // world_size)) if world_size > 1 else self.piece_tokens
        max_length = 0
        for group_prompt_indices in sorted(joint_actions_by_prompts, key=lambda key: [(-lengths[i], i) for i in key]):
            if not piece_indices or len(piece_indices[-1][0] | set(group_prompt_indices)) * max_length > max_tokens:
                piece_indices.append((set(), []))
                max_length = lengths[group_prompt_indices[0]]
            piece_indices[-1][0].update(group_prompt_indices)
            piece_indices[-1][1].extend(joint_actions_by_prompts[group_prompt_indices])
        local_piece_indices = piece_indices[self.processes.rank :: world_size]
        for _, group_joint_actions in local_piece_indices:
            is_in_piece = torch.isin(joint_action_indices, joint_action_indices.new_tensor(group_joint_actions))
            yield _select_samples(batch, is_in_piece.nonzero().squeeze(1)), int(is_in_piece.sum()) / n_samples
        if not local_piece_indices:  # at least one piece
            yield _select_samples(batch, torch.zeros(1, dtype=torch.int64, device=joint_action_indices.device)), 0.0

    def _autocast(self) -> AbstractContextManager[Any]:
        device_type = next(self.language.parameters()).device.type
        return torch.autocast(device_type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16")


def _select_samples(batch: Batch, indices: torch.Tensor) -> Batch:
    """Return the samples at `indices` of a minibatch, with joint actions numbered from 0."""
    samples = select_samples(batch, indices)
    if "joint_action_index" in samples:
        samples["joint_action_index"] = samples["joint_action_index"].unique(return_inverse=True)[1]
    return samples


def _build_head(
    width: int, hidden: Sequence[int], n_out: int, gain: float, activation: Activation, generator: torch.Generator
) -> nn.Sequential:
    """Return a multilayer perceptron from the hidden state to `n_out` outputs."""
    layers: list[nn.Module] = []
    for n_in, n in zip([width, *hidden], hidden, strict=False):
        layers += [initialize(nn.Linear(n_in, n), HIDDEN_GAIN, generator), _ACTIVATIONS[activation]()]
    return nn.Sequential(*layers, initialize(nn.Linear([width, *hidden][-1], n_out), gain, generator))


class LanguagePolicy(nn.Module):
    """Policy with one `LanguageActorCritic` for all agents.

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
        self._output_memo = Memo(self._compute_outputs)

    @property
    def distribution(self) -> CategoricalDistribution:
        """Distribution over the actions."""
        return CategoricalDistribution(self.network.n_actions)

    def fixed_weights(self) -> AbstractContextManager[None]:
        """Return the context of a rollout, in which each text is computed once (`Memoizing`)."""
        return self._output_memo.fixed_weights()

    def list_networks(self) -> list[tuple[nn.Module, slice]]:
        """Return the network with the slice of the agents that it plays, which are all."""
        return [(self.network, slice(0, self.n_agents))]

    def extend_observation(self, observation: dict[str, Any]) -> dict[str, Any]:
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
        logits, value = self._compute_masked_outputs(observation)
        action = logits.argmax(-1) if greedy else sample_categorical(logits, generator)
        log_prob, _ = CategoricalDistribution.log_prob_entropy(logits, action)
        return PolicyOutput(action=action, log_prob=log_prob, value=value, logits=logits)

    @torch.no_grad()
    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return state values, [n_envs, n_agents]."""
        return self._compute_masked_outputs(observation)[1]

    @torch.no_grad()
    def probabilities(self, prompts: Sequence[str]) -> torch.Tensor:
        """Return the probabilities of actions after each prompt, [n, n_actions]."""
        return self._compute_outputs(list(prompts))[0].softmax(-1)

    def _compute_masked_outputs(self, observation: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [n_envs, n_agents, n_actions] and values [n_envs, n_agents]."""
        prompts = np.asarray(observation[self.network.channel], dtype=object)
        logits, value = self._output_memo([str(text) for text in prompts.ravel()])
        logits, value = logits.reshape(*prompts.shape, -1), value.reshape(prompts.shape)
        return mask_logits(logits, observation.get("action_mask")), value

    def _compute_outputs(self, prompts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [n, n_actions] and values [n] of distinct prompts."""
        return compute_distributed(self.network.processes, prompts, self.network.compute_outputs)


def compute_distributed(
    processes: ProcessGroup, prompts: Sequence[str], compute_outputs: OutputFunction
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the results of `compute_outputs` for all prompts, [n, ...]; each process computes its share of them."""
    if processes.world_size == 1:
        return compute_outputs(prompts)
    local_prompts = prompts[processes.local_slice(len(prompts))]
    # A process without prompts computes one, because it needs the shape of the outputs.
    outputs = compute_outputs(local_prompts or prompts[:1])
    logits, value = (processes.gather(x[: len(local_prompts)].contiguous()) for x in outputs)
    return logits, value


class KLPenalty(StateFields):
    """Additional PPO loss beta KL(pi || pi_0) over the actions (a `Teacher`).

    pi_0 is the model without its adapters or, if all weights are trained, a copy of the initial model. It is determined
    by the model's initial weights, so the penalty has no state to save.

    Args:
        network: network whose actions are scores.
        beta: weight of the divergence, > 0.
        trains_adapters: whether adapters are trained.
    """

    channels: tuple[str, ...] = ()
    policy = None

    def __init__(self, network: LanguageActorCritic, beta: float, trains_adapters: bool) -> None:
        self.network, self.beta = network, beta
        self._frozen_network = None if trains_adapters else _copy_frozen_network(network)

    @torch.no_grad()
    def advise(self, rollout: Rollout) -> dict[str, torch.Tensor]:
        """Return the logits of pi_0, [T, n_envs, n_agents, n_actions]."""
        prompts, prompt_indices = rollout.observation[self.network.channel].unique()
        network = self._frozen_network or self.network
        with disable_adapters(network.language) if self._frozen_network is None else nullcontext():
            logits, _ = compute_distributed(network.processes, prompts, network.compute_outputs)
        return {"reference": logits[prompt_indices.to(logits.device)]}

    def loss(
        self, minibatch: dict[str, torch.Tensor], logits: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the weighted divergence, and as `loss/reference_kl` the divergence in nats."""
        # Illegal actions have probability 0 under both policies.
        reference_logits = mask_logits(minibatch["reference"], minibatch.get("action_mask"))
        log_probs, reference_log_probs = logits.log_softmax(-1), reference_logits.log_softmax(-1)
        divergence = (log_probs.exp() * (log_probs - reference_log_probs)).sum(-1).mean()
        return self.beta * divergence, {"loss/reference_kl": divergence.detach()}

    def metrics(self) -> dict[str, float]:
        """Return no metrics, because the loss records the divergence."""
        return {}

    def reset(self) -> None:
        """Do nothing, because pi_0 never changes."""


def _copy_frozen_network(network: LanguageActorCritic) -> LanguageActorCritic:
    """Return a copy of the network with a copied language model, whose weights are frozen."""
    network_copy = copy.copy(network)
    scorer_copy = copy.copy(network.scorer)
    scorer_copy.replace_module(copy.deepcopy(network.language).requires_grad_(False))
    # Set directly, because the copy shares the dictionary of `nn.Module` with the original.
    network_copy.__dict__["_modules"] = {**network._modules, "language": scorer_copy.module}
    network_copy.scorer = scorer_copy
    return network_copy
