"""Group-relative policy optimization of a chat model from trajectories of replies."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from llmrl.algorithms.optimizer_step import Batch, LossRecord, OptimizerStep
from llmrl.chat_learning import advantages_and_losses
from llmrl.chat_learning.token_network import Precision, TokenNetwork
from llmrl.core.errors import ConfigError
from llmrl.core.processes import ProcessGroup
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.learning import AdapterSharing, TokenSequence, Trajectory, Turn, build_token_sequences
from llmrl.llms.local.loading import check_model_unchanged, copy_weights, enable_recomputation, folder_fingerprint
from llmrl.llms.local.lora import AdapterSet, Lora, disable_adapters, write_adapter

AdvantageMethod = Literal["episode", "turn", "anchor", "replay"]
_WEIGHT_OPTION_NAMES = "llm=, llm.model, llm.learn.tune and llm.learn.lora"
"""Options that determine the names and shapes of the trained weights."""


@dataclass(frozen=True)
class GRPO:
    """Settings of group-relative policy optimization; meanings, units and ranges are in `conf/llm/learn/grpo.yaml`.

    Raises:
        ConfigError: a group has one episode, or options contradict each other.
    """

    advantage: AdvantageMethod
    group_size: PositiveInt
    gamma: UnitInterval
    anchor_weight: NonNegativeFloat
    continuations: PositiveInt
    scale: Literal["batch", "group", "none"]
    invalid_reward: float
    loss: advantages_and_losses.LossAggregation
    ratio: advantages_and_losses.RatioLevel
    clip: PositiveFloat
    clip_high: PositiveFloat | None
    kl: NonNegativeFloat
    kl_final: NonNegativeFloat | None
    kl_estimator: Literal["exact", "sampled"]
    entropy: NonNegativeFloat
    tune: Literal["full", "lora"]
    lora: Lora
    adapters: AdapterSharing
    learning_rate: PositiveFloat
    learning_rate_final: NonNegativeFloat | None
    schedule_updates: PositiveInt | None
    epochs: PositiveInt
    minibatch_replies: PositiveInt
    max_grad_norm: PositiveFloat
    piece_tokens: PositiveInt
    precision: Precision
    recompute: bool

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ConfigError(f"llm.learn.group_size={self.group_size} must be at least 2, as a group is compared")
        if self.schedule_updates is None and (self.kl_final is not None or self.learning_rate_final is not None):
            raise ConfigError(
                "llm.learn.kl_final and llm.learn.learning_rate_final need llm.learn.schedule_updates, the number of "
                "updates until they are reached"
            )
        if self.kl_final is not None and self.kl == 0:
            raise ConfigError(f"llm.learn.kl_final={self.kl_final:g} needs llm.learn.kl > 0")
        if self.adapters != "shared" and self.tune == "full":
            raise ConfigError(f"llm.learn.adapters={self.adapters} needs llm.learn.tune=lora, got full")

    def learners(self, chat: LocalChat, seeds: Seeds) -> GRPOLearners:
        """Return learners of the weights of `chat`."""
        return GRPOLearners(self, chat, seeds)

    def scheduled_value(self, initial: float, final: float | None, update: int) -> float:
        """Return the value at an update (from 0) of a linear schedule; `initial` if there is no final value."""
        if final is None or self.schedule_updates is None:
            return initial
        return initial + (final - initial) * min(update / self.schedule_updates, 1.0)


class GRPOLearners:
    """Learners of the adapters of one chat model; with `tune=full` one learner of all weights. See `ChatLearners`.

    Args:
        settings: settings of the training.
        chat: chat model to train.
        seeds: seed tree of the model, whose stream `adapter` initializes adapters.

    Raises:
        ConfigError: options of the model do not allow training.
    """

    def __init__(self, settings: GRPO, chat: LocalChat, seeds: Seeds) -> None:
        _check_model(chat, settings)
        self.settings, self.chat, self._seeds = settings, chat, seeds
        self.sharing, self.group_size, self.gamma = settings.adapters, settings.group_size, settings.gamma
        self.n_continuations = settings.continuations if settings.advantage == "replay" else 0
        self._learners: dict[str, ChatGRPO] = {}
        self._reply_seeds: dict[str, Seeds] = {}

    def learner(self, adapter: str, seeds: Seeds | None = None) -> ChatGRPO:
        """Return the learner of an adapter, whose replies are sampled with `seeds` (None: the seeds of the model).

        Raise ConfigError if all weights are trained and there is already a learner with another name.
        """
        if self.settings.tune == "full" and self._learners.keys() - {adapter}:
            raise ConfigError(
                "llm.learn.tune=full trains one set of weights, but several societies, or players and a principal, "
                "learn separately; use llm.learn.tune=lora"
            )
        if adapter not in self._learners:
            self._learners[adapter] = ChatGRPO(self, adapter)
            self._reply_seeds[adapter] = self._seeds if seeds is None else seeds
        return self._learners[adapter]

    def seeds(self, adapter: str) -> Seeds:
        """Return the seed tree for sampling replies with an adapter."""
        return self._reply_seeds.get(adapter, self._seeds)

    def use_adapters(self, adapters: Sequence[str]) -> AbstractContextManager[None]:
        """Return a context in which sequence i of a batch uses the adapter named `adapters[i]`."""
        return nullcontext() if self.settings.tune == "full" else self.adapters.use_adapters(adapters)

    @cached_property
    def adapters(self) -> AdapterSet:
        """Adapters of the model."""
        if self.settings.recompute:
            enable_recomputation(self.chat.module, "llm.learn.recompute=true")
        return AdapterSet(self.chat.module, self.settings.lora, self._seeds.integer("adapter"))


class ChatGRPO:
    """Learner of a local chat model by group-relative policy optimization (GRPO, arXiv 2402.03300).

    Losses apply only to the sampled tokens, whose ids and log-probabilities were recorded when they were sampled.
    Dropout is never active, so with equal weights, probabilities in update and sampling agree up to rounding.

    Args:
        learners: learners of the chat model.
        adapter: name of the trained adapter; ignored if all weights are trained.
    """

    def __init__(self, learners: GRPOLearners, adapter: str) -> None:
        self.settings, self.chat = learners.settings, learners.chat
        self._learners, self._adapter = learners, adapter
        self.n_updates = 0
        self._processes = ProcessGroup.get_joined()
        self._network: TokenNetwork | None = None
        self._optimizer: OptimizerStep | None = None
        self._reference_network: TokenNetwork | None = None
        self._initial_weights: dict[str, torch.Tensor] = {}

    def update(self, trajectories: Sequence[Trajectory], generator: torch.Generator) -> dict[str, float]:
        """Train on complete trajectories; minibatches are drawn with `generator`.

        Returns:
            Metrics: `learn/reward` (mean over trajectories), `learn/kl` and `learn/entropy` (nats per reply, summed
            over its tokens), `learn/clip_fraction` (of tokens), `learn/reply_tokens` (mean), `learn/tokens` (token
            positions computed in forward passes), `learn/invalid` (share of replies), `learn/grad_norm`,
            `learn/learning_rate`, `learn/kl_coefficient`, `learn/log_prob_error` (mean absolute difference between the
            log-probabilities of the first minibatch and those recorded in sampling), and, only with `llm/sampler`,
            `learn/importance` (mean importance weight of tokens).
        """
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        if not turns:
            # A run that is resumed after this update starts with an empty cache, and must have equal rounding errors.
            self.chat.clear_cache()
            return {}
        settings, optimizer_step = self.settings, self._get_optimizer_step()
        self._activate_adapter()
        learning_rate = settings.scheduled_value(settings.learning_rate, settings.learning_rate_final, self.n_updates)
        kl_coefficient = settings.scheduled_value(settings.kl, settings.kl_final, self.n_updates)
        for group in optimizer_step.optimizer.param_groups:
            group["lr"] = learning_rate
        advantages = torch.from_numpy(self.compute_advantages(trajectories)).float()
        sequences: list[TokenSequence] = []
        for trajectory in trajectories:
            n_replies = 1 + int(sequences[-1].reply_indices[-1]) if sequences else 0
            sequences += build_token_sequences([turn.sample for turn in trajectory.turns], n_replies)
        if self.chat.settings.sampler is not None:
            # Log-probabilities of the sampling server differ by rounding, and because its weights may be older.
            pairs = zip(sequences, self._get_token_network().compute_sampled_log_probs(sequences), strict=True)
            sequences = [replace(sequence, old_log_probs=log_probs) for sequence, log_probs in pairs]
        records: list[LossRecord] = []
        for _ in range(settings.epochs):
            order = torch.randperm(len(sequences), generator=generator).tolist()
            for minibatch in self._iterate_minibatches([sequences[i] for i in order]):
                batch = {
                    "sequences": minibatch,
                    "advantage": advantages,
                    "n_replies": sum(len(np.unique(sequence.reply_indices)) for sequence in minibatch),
                    "n_tokens": sum(len(sequence.positions) for sequence in minibatch),
                    "kl": kl_coefficient,
                }
                records.append(optimizer_step.step(batch, self._compute_loss))
        self.n_updates += 1
        self.chat.discard_outdated_weights()
        return self._compute_metrics(trajectories, turns, records) | {
            "learn/learning_rate": learning_rate,
            "learn/kl_coefficient": kl_coefficient,
        }

    def compute_advantages(self, trajectories: Sequence[Trajectory]) -> np.ndarray:
        """Return the advantage of each turn of all trajectories, [n_turns] float64."""
        settings = self.settings
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        lengths = [len(trajectory.turns) for trajectory in trajectories]
        n_agents = 1 + max(trajectory.agent for trajectory in trajectories)
        groups = [t.game // settings.group_size * n_agents + t.agent for t in trajectories]
        trajectory_index = np.repeat(np.arange(len(lengths)), lengths)  # of each turn, [n_turns]
        group_index = np.repeat(np.array(groups), lengths)
        rewards = np.array([self.reward(turn) for turn in turns])
        if settings.advantage == "episode":
            advantages = advantages_and_losses.episode_advantages(rewards, trajectory_index, group_index)
        elif settings.advantage == "turn":
            advantages = advantages_and_losses.turn_advantages(rewards, trajectory_index, group_index, settings.gamma)
        elif settings.advantage == "replay":
            values = np.array([turn.value for turn in turns])
            advantages = advantages_and_losses.replay_advantages(rewards, trajectory_index, values, settings.gamma)
        else:
            observations = [turn.observation for turn in turns]
            advantages = advantages_and_losses.anchor_advantages(
                rewards, trajectory_index, group_index, observations, settings.gamma, settings.anchor_weight
            )
        return advantages_and_losses.scale_advantages(advantages, group_index, settings.scale)

    def reward(self, turn: Turn) -> float:
        """Return the reward of a turn, plus `invalid_reward` if its reply is invalid."""
        return turn.reward + (0.0 if turn.is_valid else self.settings.invalid_reward)

    def reset(self) -> None:
        """Restore the initial weights, and reset the optimizer and the number of updates."""
        if self._network is not None:
            copy_weights(self._initial_weights, self._trained_parameters(), "the initial model", _WEIGHT_OPTION_NAMES)
            self._optimizer = None
        self.n_updates = 0
        self.chat.discard_outdated_weights()

    def write_adapter(self, folder: Path) -> None:
        """Write the trained adapter in peft's format; do nothing if all weights are trained."""
        if self.settings.tune == "lora":
            model, trained = self._get_token_network().language_model, self._trained_parameters()
            write_adapter(model, trained, self.settings.lora, folder, self.chat.model, self.chat.settings.revision)

    def describe(self) -> Mapping[str, Any]:
        """Return the training method, the trained weights, and the numbers of all and of trainable parameters."""
        trained = self._trained_parameters()
        return {
            "learns by": f"grpo, advantage {self.settings.advantage}, groups of {self.settings.group_size}",
            "tuned": self.settings.tune,
            "parameters": sum(p.numel() for p in self.chat.module.parameters()),
            "trainable": sum(p.numel() for p in trained.values()),
        }

    def state_dict(self) -> State:
        """Return the trained weights and the state of the optimizer, without weights that stay frozen."""
        trained = self._trained_parameters()
        return {
            "weights": {name: parameter.detach().cpu().clone() for name, parameter in trained.items()},
            "optimizer": self._get_optimizer_step().state_dict(),
            "updates": self.n_updates,
            "model": self._compute_fingerprint(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore weights and optimizer; raise ConfigError if the model's files or the shapes differ."""
        check_model_unchanged(self.chat.model, state["model"], self._compute_fingerprint())
        copy_weights(state["weights"], self._trained_parameters(), "the checkpoint", _WEIGHT_OPTION_NAMES)
        self._get_optimizer_step().load_state_dict(state["optimizer"])
        self.n_updates = state["updates"]
        self.chat.discard_outdated_weights()

    def _compute_loss(self, batch: Batch) -> tuple[torch.Tensor, LossRecord]:
        """Return the contribution of a piece to the loss of its minibatch, and to the metrics of the minibatch."""
        settings, network, sequences = self.settings, self._get_token_network(), batch["sequences"]
        log_probs = network(sequences)  # [n_tokens, vocabulary]
        device = log_probs.device

        def concatenate(arrays: Sequence[np.ndarray]) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(arrays)).to(device)

        # Each sampled token's id, its reply, and its log-probabilities in sampling and before this update.
        tokens = concatenate([np.array(s.tokens)[s.positions] for s in sequences])
        reply_indices = concatenate([s.reply_indices for s in sequences])
        sampling_log_prob = concatenate([s.log_probs for s in sequences])
        old_log_prob = concatenate([s.log_probs if s.old_log_probs is None else s.old_log_probs for s in sequences])
        token_log_prob = log_probs.gather(1, tokens[:, None]).squeeze(1)
        n_replies, n_tokens = batch["n_replies"], batch["n_tokens"]
        weights = advantages_and_losses.token_weights(
            reply_indices, settings.loss, n_replies, n_tokens, self.chat.settings.max_tokens
        )
        log_ratio = advantages_and_losses.log_ratios(token_log_prob, old_log_prob, reply_indices, settings.ratio)
        token_loss, is_clipped = advantages_and_losses.policy_loss(
            log_ratio, batch["advantage"].to(device)[reply_indices], settings.clip, settings.clip_high
        )
        entropy = advantages_and_losses.entropy(log_probs)
        record = {
            "entropy": entropy.detach().sum() / n_replies,
            "clip_fraction": is_clipped.float().sum() / n_tokens,
            "log_prob_error": (token_log_prob.detach() - sampling_log_prob).abs().sum() / n_tokens,
        }
        if (sampler := self.chat.settings.sampler) is not None:
            max_importance = sampler.max_importance
            importance = advantages_and_losses.importance_weights(old_log_prob, sampling_log_prob, max_importance)
            token_loss = importance * token_loss
            record["importance"] = importance.sum() / n_tokens
        token_loss = token_loss - settings.entropy * entropy
        if batch["kl"]:
            reference = self._compute_reference_log_probs(sequences)  # [n_tokens, vocabulary]
            if settings.kl_estimator == "exact":
                kl = advantages_and_losses.exact_kl(log_probs, reference)
            else:
                kl = advantages_and_losses.sampled_kl(token_log_prob, reference.gather(1, tokens[:, None]).squeeze(1))
            token_loss = token_loss + batch["kl"] * kl
            record["kl"] = kl.detach().sum() / n_replies
        return (weights * token_loss).sum(), record

    @torch.no_grad()
    def _compute_reference_log_probs(self, sequences: Sequence[TokenSequence]) -> torch.Tensor:
        """Return log-probabilities of the model before training, [n_tokens, vocabulary]."""
        network = self._get_token_network()
        if self._reference_network is not None:
            return self._reference_network.forward(sequences)
        with disable_adapters(network.language_model):
            return network.forward(sequences)

    def _iterate_minibatches(self, sequences: Sequence[TokenSequence]) -> Iterator[list[TokenSequence]]:
        """Yield minibatches of consecutive sequences, each but the last with at least `minibatch_replies` replies."""
        minibatch: list[TokenSequence] = []
        n_replies = 0
        for sequence in sequences:
            minibatch.append(sequence)
            n_replies += len(np.unique(sequence.reply_indices))
            if n_replies >= self.settings.minibatch_replies:
                yield minibatch
                minibatch, n_replies = [], 0
        if minibatch:
            yield minibatch

    def _compute_metrics(
        self, trajectories: Sequence[Trajectory], turns: Sequence[Turn], records: Sequence[LossRecord]
    ) -> dict[str, float]:
        """Return the metrics of an update."""
        network = self._get_token_network()
        # Tensors are converted to numbers only after all gradient steps, because a conversion waits for the device.
        means = {name: float(torch.stack([record[name] for record in records]).mean()) for name in records[0]}
        means["log_prob_error"] = float(records[0]["log_prob_error"])
        n_positions = float(sum(self._processes.all_gather_object(network.n_computed_positions)))
        network.n_computed_positions = 0
        return {f"learn/{name}": mean for name, mean in means.items()} | {
            "learn/reward": float(np.mean([sum(self.reward(turn) for turn in t.turns) for t in trajectories])),
            "learn/invalid": float(np.mean([not turn.is_valid for turn in turns])),
            "learn/reply_tokens": float(np.mean([len(turn.sample.tokens) for turn in turns])),
            "learn/tokens": n_positions,
        }

    def _get_token_network(self) -> TokenNetwork:
        """Return the network; the first call builds it and copies the initial weights."""
        if self._network is None:
            settings, module = self.settings, self.chat.module
            if settings.tune == "full":
                module.requires_grad_(True)
                if settings.recompute:
                    enable_recomputation(module, "llm.learn.recompute=true")
            self._network = self._build_network(module)
            self._initial_weights = {name: p.detach().clone() for name, p in self._trained_parameters().items()}
            if settings.kl and settings.tune == "full":
                self._reference_network = self._build_network(copy.deepcopy(module).requires_grad_(False))
        return self._network

    def _build_network(self, module: torch.nn.Module) -> TokenNetwork:
        settings, chat = self.settings, self.chat.settings
        return TokenNetwork(
            module,
            temperature=chat.temperature,
            max_piece_tokens=settings.piece_tokens,
            precision=settings.precision,
            reuse_prefix=chat.prefix_cache_tokens > 0,
            recompute=settings.recompute,
            processes=self._processes,
        )

    def _get_optimizer_step(self) -> OptimizerStep:
        if self._optimizer is None:
            settings, network = self.settings, self._get_token_network()
            self._activate_adapter()
            self._optimizer = OptimizerStep(network, settings.learning_rate, 1e-8, settings.max_grad_norm)
        return self._optimizer

    def _trained_parameters(self) -> dict[str, torch.nn.Parameter]:
        """Return the trained parameters by name."""
        network = self._get_token_network()  # copies the initial weights before a checkpoint can replace them
        if self.settings.tune == "lora":
            return dict(self._learners.adapters.parameters(self._adapter))
        return dict(network.language_model.named_parameters())

    def _activate_adapter(self) -> None:
        """Let the model use this learner's adapter, and let only its parameters require gradients."""
        if self.settings.tune == "lora":
            self._learners.adapters.activate(self._adapter)

    def _compute_fingerprint(self) -> str | None:
        """Return the fingerprint of the model's folder; None for a model of the Hugging Face hub."""
        return folder_fingerprint(self.chat.model, hashes_blocks=True)


def _check_model(chat: LocalChat, settings: GRPO) -> None:
    """Raise ConfigError if options of the model do not allow training."""
    options = chat.settings
    if options.temperature == 0 or options.top_p < 1:
        raise ConfigError(
            f"llm/learn needs samples of the complete distribution, but llm.temperature={options.temperature:g} and "
            f"llm.top_p={options.top_p:g}; use llm.temperature=1 and llm.top_p=1"
        )
    if options.sampler is not None and (settings.tune == "full" or options.temperature != 1):
        raise ConfigError(
            f"llm/sampler=vllm needs llm.learn.tune=lora and llm.temperature=1, got {settings.tune} and "
            f"{options.temperature:g}"
        )
    if settings.tune == "full" and options.dtype != "float32":
        raise ConfigError(
            f"llm.learn.tune=full cannot be used with llm.dtype={options.dtype}, in which small updates vanish; use "
            "llm.dtype=float32 with llm.learn.precision=bfloat16, or llm.learn.tune=lora"
        )
    if settings.tune == "lora" and settings.lora.dropout:
        raise ConfigError(
            f"llm.learn.lora.dropout={settings.lora.dropout:g} must be 0, because probabilities of sampling and update "
            "have to agree"
        )
    if options.adapter is not None:
        raise ConfigError(
            f"llm.adapter={options.adapter} cannot be combined with llm/learn; merge the adapter into the model first "
            "(llmrl-export adapter --merge)"
        )
