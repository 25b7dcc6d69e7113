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

from llmrl.algorithms.optimizer_step import Batch, OptimizerStep, Record
from llmrl.chat_learning import advantages_and_losses
from llmrl.chat_learning.token_network import Precision, TokenNetwork
from llmrl.core.errors import ConfigError
from llmrl.core.processes import ProcessGroup
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.llms.local.chat import LocalChat
from llmrl.llms.local.learning import AdapterSharing, TokenSequence, Trajectory, Turn, token_sequences
from llmrl.llms.local.loading import check_model_unchanged, copy_weights, enable_recomputation, folder_fingerprint
from llmrl.llms.local.lora import AdapterSet, Lora, disable_adapters, write_adapter

Advantage = Literal["episode", "turn", "anchor", "replay"]
_WEIGHT_OPTIONS = "llm=, llm.model, llm.learn.tune and llm.learn.lora"
"""Options that determine the names and shapes of the trained weights."""


@dataclass(frozen=True)
class GRPO:
    """Settings of group-relative policy optimization; meanings, units and ranges are in `conf/llm/learn/grpo.yaml`.

    Raises:
        ConfigError: a group has one episode.
    """

    advantage: Advantage
    group_size: PositiveInt
    gamma: UnitInterval
    anchor_weight: NonNegativeFloat
    continuations: PositiveInt
    scale: Literal["batch", "group", "none"]
    invalid_reward: float
    loss: advantages_and_losses.Aggregation
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
            raise ConfigError(
                f"llm.learn.group_size={self.group_size} must be at least 2, because episodes of a group are compared"
            )
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

    def scheduled(self, initial: float, final: float | None, update: int) -> float:
        """Return a value of a linear schedule at an update; without a final value it is constant."""
        if final is None or self.schedule_updates is None:
            return initial
        return initial + (final - initial) * min(update / self.schedule_updates, 1.0)


class GRPOLearners:
    """Learners of the adapters of one chat model, or of all its weights (`ChatLearners`).

    Args:
        settings: options.
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
        """Return the learner of an adapter; raise ConfigError for a second one of all weights."""
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
        """Return the seed tree of the replies with an adapter."""
        return self._reply_seeds.get(adapter, self._seeds)

    def use_adapters(self, adapters: Sequence[str]) -> AbstractContextManager[None]:
        """Return a context in which sequence i of a batch uses `adapters[i]`."""
        return nullcontext() if self.settings.tune == "full" else self.adapters.use_adapters(adapters)

    @cached_property
    def adapters(self) -> AdapterSet:
        """Adapters of the model."""
        if self.settings.recompute:
            enable_recomputation(self.chat.module, "llm.learn.recompute=true")
        return AdapterSet(self.chat.module, self.settings.lora, self._seeds.integer("adapter"))


class ChatGRPO:
    """Learner that makes better replies of a local chat model more likely (GRPO, arXiv 2402.03300).

    Losses apply to the sampled tokens only, whose ids and log-probabilities were recorded in sampling. Dropout is never
    active, so probabilities in update and sampling agree for equal weights up to rounding.

    Args:
        learners: learners of the chat model.
        adapter: name of the trained adapter; ignored if all weights are trained.
    """

    def __init__(self, learners: GRPOLearners, adapter: str) -> None:
        self.settings, self.chat = learners.settings, learners.chat
        self._learners, self._adapter = learners, adapter
        self.updates = 0
        self._processes = ProcessGroup.get_joined()
        self._network: TokenNetwork | None = None
        self._step: OptimizerStep | None = None
        self._reference: TokenNetwork | None = None
        self._initial: dict[str, torch.Tensor] = {}

    def update(self, trajectories: Sequence[Trajectory], generator: torch.Generator) -> dict[str, float]:
        """Train on complete trajectories; minibatches are drawn with `generator`.

        Returns:
            Metrics: `learn/reward` (mean over trajectories), `learn/kl` and `learn/entropy` (nats per reply, summed
            over its tokens), `learn/clip_fraction` (of tokens), `learn/reply_tokens`, `learn/tokens` (positions
            computed), `learn/invalid` (share of replies), `learn/grad_norm`, `learn/learning_rate`,
            `learn/kl_coefficient`, `learn/log_prob_error`, the mean absolute difference from sampling in the first
            minibatch, and with `llm/sampler` `learn/importance`, the mean importance weight of tokens.
        """
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        if not turns:
            # A run that resumes after this update has no cache either, so that its rounding errors are equal.
            self.chat.clear_cache()
            return {}
        settings, step = self.settings, self._optimizer_step()
        self._activate()
        learning_rate = settings.scheduled(settings.learning_rate, settings.learning_rate_final, self.updates)
        kl = settings.scheduled(settings.kl, settings.kl_final, self.updates)
        for group in step.optimizer.param_groups:
            group["lr"] = learning_rate
        advantage = torch.from_numpy(self.advantages(trajectories)).float()
        sequences: list[TokenSequence] = []
        for trajectory in trajectories:
            n_replies = 1 + int(sequences[-1].reply_indices[-1]) if sequences else 0
            sequences += token_sequences([turn.sample for turn in trajectory.turns], n_replies)
        if self.chat.settings.sampler is not None:
            # Probabilities of the server differ by rounding, and by staleness.
            old = self._token_network().sampled_log_probs(sequences)
            sequences = [replace(s, old_log_probs=x) for s, x in zip(sequences, old, strict=True)]
        records: list[Record] = []
        for _ in range(settings.epochs):
            order = torch.randperm(len(sequences), generator=generator).tolist()
            for minibatch in self._minibatches([sequences[i] for i in order]):
                batch = {
                    "sequences": minibatch,
                    "advantage": advantage,
                    "n_replies": sum(len(np.unique(sequence.reply_indices)) for sequence in minibatch),
                    "n_tokens": sum(len(sequence.positions) for sequence in minibatch),
                    "kl": kl,
                }
                records.append(step.step(batch, self._loss))
        self.updates += 1
        self.chat.weights_changed()
        return self._metrics(trajectories, turns, records) | {
            "learn/learning_rate": learning_rate,
            "learn/kl_coefficient": kl,
        }

    def advantages(self, trajectories: Sequence[Trajectory]) -> np.ndarray:
        """Return the advantage of each turn of all trajectories, [n_turns] float64."""
        settings = self.settings
        turns = [turn for trajectory in trajectories for turn in trajectory.turns]
        lengths = [len(trajectory.turns) for trajectory in trajectories]
        n_agents = 1 + max(trajectory.agent for trajectory in trajectories)
        groups = [t.game // settings.group_size * n_agents + t.agent for t in trajectories]
        index, group = np.repeat(np.arange(len(lengths)), lengths), np.repeat(np.array(groups), lengths)
        reward = np.array([self.reward(turn) for turn in turns])
        if settings.advantage == "episode":
            advantage = advantages_and_losses.episode_advantages(reward, index, group)
        elif settings.advantage == "turn":
            advantage = advantages_and_losses.turn_advantages(reward, index, group, settings.gamma)
        elif settings.advantage == "replay":
            values = np.array([turn.value for turn in turns])
            advantage = advantages_and_losses.replay_advantages(reward, index, values, settings.gamma)
        else:
            observations = [turn.observation for turn in turns]
            weight = settings.anchor_weight
            advantage = advantages_and_losses.anchor_advantages(
                reward, index, group, observations, settings.gamma, weight
            )
        return advantages_and_losses.scale_advantages(advantage, group, settings.scale)

    def reward(self, turn: Turn) -> float:
        """Return the reward of a turn, which includes that of an invalid reply."""
        return turn.reward + (0.0 if turn.is_valid else self.settings.invalid_reward)

    def reset(self) -> None:
        """Restore the initial weights and forget the state of the optimizer."""
        if self._network is not None:
            copy_weights(self._initial, self._trained(), "the initial model", _WEIGHT_OPTIONS)
            self._step = None
        self.updates = 0
        self.chat.weights_changed()

    def write_adapter(self, folder: Path) -> None:
        """Write the trained adapter in peft's format; do nothing if all weights are trained."""
        if self.settings.tune == "lora":
            language, revision = self._token_network().language, self.chat.settings.revision
            write_adapter(language, self._trained(), self.settings.lora, folder, self.chat.model, revision)

    def describe(self) -> Mapping[str, Any]:
        """Return what is trained, and numbers of parameters."""
        trained = self._trained()
        return {
            "learns by": f"grpo, advantage {self.settings.advantage}, groups of {self.settings.group_size}",
            "tuned": self.settings.tune,
            "parameters": sum(p.numel() for p in self.chat.module.parameters()),
            "trainable": sum(p.numel() for p in trained.values()),
        }

    def state_dict(self) -> State:
        """Return the trained weights and the state of the optimizer; `llm=` determines the rest of the model."""
        trained = self._trained()
        return {
            "weights": {name: parameter.detach().cpu().clone() for name, parameter in trained.items()},
            "optimizer": self._optimizer_step().state_dict(),
            "updates": self.updates,
            "model": self._fingerprint(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore weights and optimizer; raise ConfigError if the model's files or the shapes differ."""
        check_model_unchanged(self.chat.model, state["model"], self._fingerprint())
        copy_weights(state["weights"], self._trained(), "the checkpoint", _WEIGHT_OPTIONS)
        self._optimizer_step().load_state_dict(state["optimizer"])
        self.updates = state["updates"]
        self.chat.weights_changed()

    def _loss(self, batch: Batch) -> tuple[torch.Tensor, Record]:
        """Return the loss of a piece of a minibatch, and its record; both add up over pieces."""
        settings, network, sequences = self.settings, self._token_network(), batch["sequences"]
        log_probs = network(sequences)
        device = log_probs.device

        def concatenate(arrays: Sequence[np.ndarray]) -> torch.Tensor:
            return torch.from_numpy(np.concatenate(arrays)).to(device)

        tokens = concatenate([np.array(s.tokens)[s.positions] for s in sequences])
        replies = concatenate([s.reply_indices for s in sequences])
        sampling = concatenate([s.log_probs for s in sequences])
        old = concatenate([s.log_probs if s.old_log_probs is None else s.old_log_probs for s in sequences])
        log_prob = log_probs.gather(1, tokens[:, None]).squeeze(1)
        n_replies, n_tokens = batch["n_replies"], batch["n_tokens"]
        weights = advantages_and_losses.token_weights(
            replies, settings.loss, n_replies, n_tokens, self.chat.settings.max_tokens
        )
        log_ratio = advantages_and_losses.log_ratios(log_prob, old, replies, settings.ratio)
        advantage = batch["advantage"].to(device)[replies]
        token_loss, is_clipped = advantages_and_losses.policy_loss(
            log_ratio, advantage, settings.clip, settings.clip_high
        )
        entropy = advantages_and_losses.entropy(log_probs)
        record = {
            "entropy": entropy.detach().sum() / n_replies,
            "clip_fraction": is_clipped.float().sum() / n_tokens,
            "log_prob_error": (log_prob.detach() - sampling).abs().sum() / n_tokens,
        }
        if (sampler := self.chat.settings.sampler) is not None:
            importance = advantages_and_losses.importance_weights(old, sampling, sampler.max_importance)
            token_loss = importance * token_loss
            record["importance"] = importance.sum() / n_tokens
        token_loss = token_loss - settings.entropy * entropy
        if batch["kl"]:
            reference = self._reference_log_probs(sequences)
            if settings.kl_estimator == "exact":
                kl = advantages_and_losses.exact_kl(log_probs, reference)
            else:
                kl = advantages_and_losses.sampled_kl(log_prob, reference.gather(1, tokens[:, None]).squeeze(1))
            token_loss = token_loss + batch["kl"] * kl
            record["kl"] = kl.detach().sum() / n_replies
        return (weights * token_loss).sum(), record

    @torch.no_grad()
    def _reference_log_probs(self, sequences: Sequence[TokenSequence]) -> torch.Tensor:
        """Return log-probabilities of the model before training, [n_tokens, vocabulary]."""
        network = self._token_network()
        if self._reference is not None:
            return self._reference.forward(sequences)
        with disable_adapters(network.language):
            return network.forward(sequences)

    def _minibatches(self, sequences: Sequence[TokenSequence]) -> Iterator[list[TokenSequence]]:
        """Yield successive sequences that together have about `minibatch_replies` replies."""
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

    def _metrics(
        self, trajectories: Sequence[Trajectory], turns: Sequence[Turn], records: Sequence[Record]
    ) -> dict[str, float]:
        """Return the metrics of an update."""
        network = self._token_network()
        # Read only here, so that no gradient step waits for the device.
        averages = {name: float(torch.stack([record[name] for record in records]).mean()) for name in records[0]}
        averages["log_prob_error"] = float(records[0]["log_prob_error"])
        n_computed, network.tokens = float(sum(self._processes.all_gather_object(network.tokens))), 0
        return {f"learn/{name}": x for name, x in averages.items()} | {
            "learn/reward": float(np.mean([sum(self.reward(turn) for turn in t.turns) for t in trajectories])),
            "learn/invalid": float(np.mean([not turn.is_valid for turn in turns])),
            "learn/reply_tokens": float(np.mean([len(turn.sample.tokens) for turn in turns])),
            "learn/tokens": n_computed,
        }

    def _token_network(self) -> TokenNetwork:
        """Return the network, made ready for training at the first call."""
        if self._network is None:
            settings, module = self.settings, self.chat.module
            if settings.tune == "full":
                module.requires_grad_(True)
                if settings.recompute:
                    enable_recomputation(module, "llm.learn.recompute=true")
            self._network = self._make_network(module)
            self._initial = {name: p.detach().clone() for name, p in self._trained().items()}
            if settings.kl and settings.tune == "full":
                self._reference = self._make_network(copy.deepcopy(module).requires_grad_(False))
        return self._network

    def _make_network(self, module: torch.nn.Module) -> TokenNetwork:
        settings, chat = self.settings, self.chat.settings
        return TokenNetwork(
            module,
            chat.temperature,
            settings.piece_tokens,
            settings.precision,
            chat.prefix_cache_tokens > 0,
            settings.recompute,
            self._processes,
        )

    def _optimizer_step(self) -> OptimizerStep:
        if self._step is None:
            settings, network = self.settings, self._token_network()
            self._activate()
            self._step = OptimizerStep(network, settings.learning_rate, 1e-8, settings.max_grad_norm)
        return self._step

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        """Return the trained parameters by name."""
        network = self._token_network()  # stores the initial weights, before a checkpoint replaces them
        if self.settings.tune == "lora":
            return dict(self._learners.adapters.parameters(self._adapter))
        return dict(network.language.named_parameters())

    def _activate(self) -> None:
        """Make the adapter the one that the model uses, and whose parameters require gradients."""
        if self.settings.tune == "lora":
            self._learners.adapters.activate(self._adapter)

    def _fingerprint(self) -> str | None:
        """Return the fingerprint of the model's folder; None for a model of the hub."""
        return folder_fingerprint(self.chat.model, sampled=True)


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
