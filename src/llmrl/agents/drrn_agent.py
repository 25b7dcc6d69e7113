"""Agent `agent=drrn`, which learns values of action texts after prompts by Q-learning (DRRN, He et al. 2016)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Interval

from llmrl.algorithms.q_learning import QLearning, QSettings, Transitions
from llmrl.core.protocols import AgentLoop
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.records import PolicyOutput, State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.networks.action_distributions import CategoricalDistribution, mask_logits, sample_categorical
from llmrl.networks.drrn import DRRN, Vocabulary, pad_texts
from llmrl.networks.memo import Memo

ACTION_MASK_CHANNEL = "action_mask"


class DRRNPolicy:
    """Policy that samples actions with probabilities softmax(Q / temperature).

    Attributes:
        network: network that computes the values Q of actions after prompts.
        vocabulary: vocabulary of the texts.
        action_texts: encoded texts of the actions.
        final_states: states of the newest rollout in which no action is taken (after truncations and its last step), in
            the order in which `Collector` requests their `values`. Each consists of the encoded texts
            [n_envs * n_agents], the mask of legal actions (None: all are legal), and whether each text is empty.
    """

    def __init__(self, spec: EnvSpec, network: DRRN, vocabulary: Vocabulary, channel: str, temperature: float) -> None:
        self.network, self.vocabulary, self.temperature = network, vocabulary, temperature
        self.channel = channel
        self.channels = (channel, *((ACTION_MASK_CHANNEL,) if ACTION_MASK_CHANNEL in spec.observation else ()))
        self.action_texts = [vocabulary.encode(text) for text in spec.continuations(channel)]
        self.final_states: list[tuple[list[bytes], np.ndarray | None, np.ndarray]] = []
        self._output_memo = Memo(self._compute_q_of_texts)

    @contextmanager
    def fixed_weights(self) -> Iterator[None]:
        """Return the context of a new rollout, in which each text is encoded once (`Memoizing`)."""
        self.final_states = []
        with self._output_memo.fixed_weights():
            yield

    def act(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        q, _ = self._compute_q_of_observation(observation)
        mask = observation.get(ACTION_MASK_CHANNEL)
        logits, q = mask_logits(q / self.temperature, mask), mask_logits(q, mask)
        action = q.argmax(-1) if greedy else sample_categorical(logits, generator)
        log_prob, _ = CategoricalDistribution.log_prob_entropy(logits, action)
        return PolicyOutput(action=action, log_prob=log_prob, value=q.amax(-1), logits=logits)

    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return the highest Q of each agent, [n_envs, n_agents]."""
        q, texts = self._compute_q_of_observation(observation)
        mask = observation.get(ACTION_MASK_CHANNEL)
        if self._output_memo.is_active:
            is_empty = np.asarray(observation[self.channel], dtype=object).ravel() == ""
            self.final_states.append((texts, None if mask is None else mask.flatten(0, 1).cpu().numpy(), is_empty))
        return mask_logits(q, mask).amax(-1)

    @torch.no_grad()
    def probabilities(self, prompts: Sequence[str]) -> torch.Tensor:
        """Return the probabilities of actions after each prompt, [n, n_actions].

        New words are not added to the vocabulary.
        """
        texts = [self.vocabulary.encode(prompt, add_words=False) for prompt in prompts]
        return (self.network(pad_texts(texts), pad_texts(self.action_texts)) / self.temperature).softmax(-1)

    @torch.no_grad()
    def _compute_q_of_observation(self, observation: dict[str, Any]) -> tuple[torch.Tensor, list[bytes]]:
        """Return Q [n_envs, n_agents, n_actions] and the encoded texts."""
        prompts = np.asarray(observation[self.channel], dtype=object)
        texts = [self.vocabulary.encode(prompt) for prompt in prompts.ravel()]
        [q] = self._output_memo(texts)
        return q.reshape(*prompts.shape, -1), texts

    def _compute_q_of_texts(self, texts: Sequence[bytes]) -> tuple[torch.Tensor]:
        """Return Q of distinct texts, [n, n_actions]."""
        return (self.network(pad_texts(texts), pad_texts(self.action_texts)),)


@dataclass(frozen=True)
class DRRNSettings:
    """Options of `DRRNAgent`; ranges are in `conf/agent/drrn.yaml`.

    Attributes:
        text_channel: text channel that the network reads.
        units: width of the embedding, the recurrent networks and the hidden layer.
        vocabulary: size of the vocabulary, including two entries for padding and unknown words.
        temperature: temperature of the softmax from which actions are sampled, in units of reward.
        q: hyperparameters of Q-learning.
    """

    text_channel: str
    units: PositiveInt
    vocabulary: Annotated[int, Interval(ge=3, le=32767)]
    temperature: PositiveFloat
    q: QSettings


class DRRNAgent:
    """Agent with a deep reinforcement relevance network and a replay buffer.

    Args:
        spec: spec of the environment.
        settings: options.
        seeds: seed tree; initial weights come from its stream `weights`.
        device: torch device.

    Raises:
        ConfigError: actions are not discrete, or the channel contains no text.
        Incompatible: the environment has no text channel.
    """

    loop: ClassVar[AgentLoop] = "learn"
    learns = True
    reads_texts: ClassVar[bool] = True

    def __init__(
        self,
        spec: EnvSpec,
        settings: DRRNSettings,
        seeds: Seeds,
        device: str,
    ) -> None:
        spec.require_discrete_actions("agent=drrn")
        text_channel, vocabulary_size = settings.text_channel, settings.vocabulary
        spec.require_text_channel(text_channel, "agent=drrn")
        network = DRRN(vocabulary_size, settings.units, seeds.torch("weights")).to(device)
        self.policy = DRRNPolicy(spec, network, Vocabulary(vocabulary_size), text_channel, settings.temperature)
        self._q_settings = settings.q
        self._initial_weights = copy.deepcopy(network.state_dict())
        self._initial_vocabulary = self.policy.vocabulary.state_dict()
        self._learner = QLearning(network, settings.q)

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        metrics = self._learner.learn(
            self._build_transitions(rollout), len(rollout.action), self.policy.action_texts, generator
        )
        self.policy.vocabulary.commit()
        return {**metrics, "loss/entropy": -float(rollout.log_prob.mean())}

    def adapt(self, spec: EnvSpec) -> None:
        """Use the actions of `spec` from now on. Words since the last update are removed from the vocabulary."""
        spec.require_discrete_actions("agent=drrn")
        self.policy.vocabulary.roll_back()
        self.policy.action_texts = [
            self.policy.vocabulary.encode(text) for text in spec.continuations(self.policy.channel)
        ]

    def reset(self) -> None:
        self.policy.network.load_state_dict(self._initial_weights)
        self.policy.vocabulary.load_state_dict(self._initial_vocabulary)
        self._learner = QLearning(self.policy.network, self._q_settings)

    def describe(self) -> dict[str, Any]:
        n = sum(p.numel() for p in self.policy.network.parameters())
        return {"policy": "deep reinforcement relevance network", "parameters": n, "trainable": n}

    def state_dict(self) -> State:
        return {
            "policy": dict(self.policy.network.state_dict()),
            "words": self.policy.vocabulary.state_dict(),
            "learner": self._learner.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.policy.network.load_state_dict(state["policy"])
        self.policy.vocabulary.load_state_dict(state["words"])
        self._learner.load_state_dict(state["learner"])

    def _build_transitions(self, rollout: Rollout) -> Transitions:
        """Return the transitions of a rollout, at most n_steps * n_envs * n_agents, the oldest first.

        In a step with an empty text, the agent had no decision, as in another agent's turn. The reward of this step is
        added to the agent's previous decision, whose next state is that of its next decision. A decision whose next
        decision is not in the rollout is omitted.
        """
        policy, n_steps = self.policy, len(rollout.action)
        shape = rollout.action.shape
        # Steps after which there is a final state.
        has_final = rollout.truncated.any(1)
        has_final[-1] = True
        final_states = dict(
            zip(has_final.nonzero()[:, 0].tolist(), policy.final_states[-int(has_final.sum()) :], strict=True)
        )
        unique_texts, text_indices = rollout.observation[policy.channel].unique()
        encoded_texts = [policy.vocabulary.encode(text) for text in unique_texts]
        prompts = [[encoded_texts[i] for i in row] for row in text_indices.flatten(1).tolist()]
        next_prompts = [*prompts[1:], final_states[n_steps - 1][0]]
        next_action_mask = None
        if ACTION_MASK_CHANNEL in rollout.observation:
            mask = rollout.observation[ACTION_MASK_CHANNEL].flatten(1, 2).cpu().numpy()
            next_action_mask = np.concatenate([mask[1:], final_states[n_steps - 1][1][None]]).copy()
        truncated = rollout.truncated[:, :, None].expand(shape).flatten(1).cpu().numpy()
        is_idle = np.array([text == "" for text in unique_texts])[text_indices.flatten(1).cpu().numpy()]
        is_next_idle = np.concatenate([is_idle[1:], final_states[n_steps - 1][2][None]])
        for t, (final_texts, mask, is_empty) in final_states.items():
            ended = np.flatnonzero(truncated[t]).tolist()
            if ended:
                next_prompts[t] = [final_texts[i] if i in ended else text for i, text in enumerate(next_prompts[t])]
            if next_action_mask is not None:
                next_action_mask[t, ended] = mask[ended]
            is_next_idle[t, ended] = is_empty[ended]
        terminal = rollout.terminated[:, :, None].expand(shape).flatten(1).cpu().numpy()
        if not self._q_settings.bootstrap_truncation:
            terminal = terminal | truncated
        reward = rollout.reward.flatten(1).cpu().numpy().copy()
        has_known_next_state = ~is_next_idle | terminal
        for t, i in np.argwhere(~has_known_next_state & ~truncated)[::-1].tolist():
            if t < n_steps - 1:
                reward[t, i] += reward[t + 1, i]
                next_prompts[t][i], terminal[t, i], has_known_next_state[t, i] = (
                    next_prompts[t + 1][i],
                    terminal[t + 1, i],
                    has_known_next_state[t + 1, i],
                )
                if next_action_mask is not None:
                    next_action_mask[t, i] = next_action_mask[t + 1, i]
        is_decision = has_known_next_state & ~is_idle
        indices = np.argwhere(is_decision).tolist()
        return Transitions(
            prompt=[prompts[t][i] for t, i in indices],
            action=rollout.action.flatten(1).cpu().numpy()[is_decision],
            reward=reward[is_decision],
            next_prompt=[next_prompts[t][i] for t, i in indices],
            terminal=terminal[is_decision],
            next_action_mask=None if next_action_mask is None else next_action_mask[is_decision],
        )
