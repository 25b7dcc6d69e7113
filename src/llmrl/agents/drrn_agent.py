"""Agent `agent=drrn`, which reads prompts and actions and learns action values by Q-learning (He et al. 2016)."""

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
from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.protocols import AgentLoop
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.records import PolicyOutput, State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.networks.action_distributions import CategoricalActions, mask_logits, sample_categorical
from llmrl.networks.drrn import DRRN, Vocabulary, pad_texts
from llmrl.networks.memo import Memo

MASK = "action_mask"


class DRRNPolicy:
    """Policy that draws actions from softmax(Q / temperature).

    Attributes:
        network: network that computes Q of actions in states.
        words: vocabulary of the texts.
        actions: encoded texts of the actions.
        final_states: states of the newest rollout (`unchanged`) in which no action is taken, in the order in which
            `Collector` requests their `values`. Each has the encoded texts [n_envs * n_agents], the legal actions, and
            whether each text is empty.
    """

    def __init__(self, spec: EnvSpec, network: DRRN, words: Vocabulary, channel: str, temperature: float) -> None:
        self.network, self.words, self.temperature = network, words, temperature
        self.channel = channel
        self.channels = (channel, *((MASK,) if MASK in spec.observation else ()))
        self.actions = [words.encode(text) for text in spec.continuations(channel)]
        self.final_states: list[tuple[list[bytes], np.ndarray | None, np.ndarray]] = []
        self._memo = Memo(self._read)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Encode each text once within the `with` block, which is a rollout (`Memoizing`)."""
        self.final_states = []
        with self._memo.unchanged():
            yield

    def act(
        self,
        observation: dict[str, Any],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        q, _ = self._q(observation)
        mask = observation.get(MASK)
        logits, q = mask_logits(q / self.temperature, mask), mask_logits(q, mask)
        action = q.argmax(-1) if greedy else sample_categorical(logits, generator)
        log_prob, _ = CategoricalActions.log_prob_entropy(logits, action)
        return PolicyOutput(action=action, log_prob=log_prob, value=q.amax(-1), logits=logits)

    def values(self, observation: dict[str, Any], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return the highest Q, [n_envs, n_agents]."""
        q, texts = self._q(observation)
        mask = observation.get(MASK)
        if self._memo.is_active:
            empty = np.asarray(observation[self.channel], dtype=object).ravel() == ""
            self.final_states.append((texts, None if mask is None else mask.flatten(0, 1).cpu().numpy(), empty))
        return mask_logits(q, mask).amax(-1)

    @torch.no_grad()
    def probabilities(self, prompts: Sequence[str]) -> torch.Tensor:
        """Return the probabilities of actions after each prompt, [n, n_actions].

        The vocabulary does not change: new words remain unknown.
        """
        texts = [self.words.encode(prompt, learn=False) for prompt in prompts]
        q: torch.Tensor = self.network(pad_texts(texts), pad_texts(self.actions))
        return (q / self.temperature).softmax(-1)

    @torch.no_grad()
    def _q(self, observation: dict[str, Any]) -> tuple[torch.Tensor, list[bytes]]:
        """Return Q [n_envs, n_agents, n_actions] and the encoded texts."""
        prompts = np.asarray(observation[self.channel], dtype=object)
        texts = [self.words.encode(prompt) for prompt in prompts.ravel()]
        [q] = self._memo(texts)
        return q.reshape(*prompts.shape, -1), texts

    def _read(self, texts: Sequence[bytes]) -> tuple[torch.Tensor]:
        """Return Q of distinct texts, [n, n_actions]."""
        return (self.network(pad_texts(texts), pad_texts(self.actions)),)


@dataclass(frozen=True)
class DRRNSettings:
    """Options of `DRRNAgent`; ranges are in `conf/agent/drrn.yaml`.

    Attributes:
        text_channel: text channel that is read.
        units: width of the embedding, the recurrent networks and the hidden layer.
        vocabulary: size of the table of words, two of which stand for padding and unknown words.
        temperature: temperature of the softmax from which actions are drawn, in units of reward.
        q: hyperparameters of learning.
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
        ConfigError: actions are not discrete, or there is no such channel of texts.
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
        spec.need_discrete("agent=drrn")
        text_channel, vocabulary = settings.text_channel, settings.vocabulary
        texts = [name for name, channel in spec.observation.items() if channel.dtype == "object"]
        if text_channel not in texts:
            problem = f"agent.text_channel={text_channel}: agent=drrn reads texts, but env={spec.name} has"
            if texts:
                raise ConfigError(f"{problem} only the texts {', '.join(texts)}; use agent.text_channel={texts[0]}")
            raise Incompatible(Misfit.INTERFACE, f"{problem} no texts; use a text environment, e.g. env=babyai_text")
        network = DRRN(vocabulary, settings.units, seeds.torch("weights")).to(device)
        self.policy = DRRNPolicy(spec, network, Vocabulary(vocabulary), text_channel, settings.temperature)
        self._settings = settings.q
        self._original = copy.deepcopy(network.state_dict())
        self._first_words = self.policy.words.state_dict()
        self._learner = QLearning(network, settings.q)

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        transitions = self._transitions(rollout)
        metrics = self._learner.learn(transitions, len(rollout.action), self.policy.actions, generator)
        self.policy.words.commit()
        return {**metrics, "loss/entropy": -float(rollout.log_prob.mean())}

    def adapt(self, spec: EnvSpec) -> None:
        """Use the actions of `spec` from now on. Words that occurred since the last update are forgotten."""
        spec.need_discrete("agent=drrn")
        self.policy.words.roll_back()
        self.policy.actions = [self.policy.words.encode(text) for text in spec.continuations(self.policy.channel)]

    def reset(self) -> None:
        self.policy.network.load_state_dict(self._original)
        self.policy.words.load_state_dict(self._first_words)
        self._learner = QLearning(self.policy.network, self._settings)

    def describe(self) -> dict[str, Any]:
        n = sum(p.numel() for p in self.policy.network.parameters())
        return {"policy": "deep reinforcement relevance network", "parameters": n, "trainable": n}

    def state_dict(self) -> State:
        return {
            "policy": dict(self.policy.network.state_dict()),
            "words": self.policy.words.state_dict(),
            "learner": self._learner.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        self.policy.network.load_state_dict(state["policy"])
        self.policy.words.load_state_dict(state["words"])
        self._learner.load_state_dict(state["learner"])

    def _transitions(self, rollout: Rollout) -> Transitions:
        """Return the transitions of a rollout, at most T * n_envs * n_agents, oldest first.

        A step with an empty text is another agent's turn and no transition of its own: its reward is added to the
        agent's last decision, whose next state is that of the agent's next decision. Decisions whose next decision is
        not in the rollout are omitted.
        """
        policy, steps = self.policy, len(rollout.action)
        shape = rollout.action.shape
        # Steps whose next state is not acted in within the rollout; see `Collector`.
        has_final = rollout.truncated.any(1)
        has_final[-1] = True
        final_states = dict(
            zip(has_final.nonzero()[:, 0].tolist(), policy.final_states[-int(has_final.sum()) :], strict=True)
        )
        prompt_array = rollout.observation[policy.channel]
        unique_texts, text_indices = prompt_array.distinct()
        word_ids = [policy.words.encode(text) for text in unique_texts]
        prompts = [[word_ids[i] for i in row] for row in text_indices.flatten(1).tolist()]
        next_prompts = [*prompts[1:], final_states[steps - 1][0]]
        legal = None
        if MASK in rollout.observation:
            mask = rollout.observation[MASK].flatten(1, 2).cpu().numpy()
            legal = np.concatenate([mask[1:], final_states[steps - 1][1][None]]).copy()
        truncated = rollout.truncated[:, :, None].expand(shape).flatten(1).cpu().numpy()
        idle = np.array([text == "" for text in unique_texts])[text_indices.flatten(1).cpu().numpy()]
        next_idle = np.concatenate([idle[1:], final_states[steps - 1][2][None]])
        for t, (final_texts, mask, empty) in final_states.items():
            slots = np.flatnonzero(truncated[t]).tolist()
            if slots:
                next_prompts[t] = [final_texts[i] if i in slots else text for i, text in enumerate(next_prompts[t])]
            if legal is not None:
                legal[t, slots] = mask[slots]
            next_idle[t, slots] = empty[slots]
        terminal = rollout.terminated[:, :, None].expand(shape).flatten(1).cpu().numpy()
        if not self._settings.bootstrap_truncation:
            terminal = terminal | truncated
        reward = rollout.reward.flatten(1).cpu().numpy().copy()
        complete = ~next_idle | terminal
        for t, i in np.argwhere(~complete & ~truncated)[::-1].tolist():
            if t < steps - 1:
                reward[t, i] += reward[t + 1, i]
                next_prompts[t][i], terminal[t, i], complete[t, i] = (
                    next_prompts[t + 1][i],
                    terminal[t + 1, i],
                    complete[t + 1, i],
                )
                if legal is not None:
                    legal[t, i] = legal[t + 1, i]
        is_decision = complete & ~idle
        indices = np.argwhere(is_decision).tolist()
        return Transitions(
            prompt=[prompts[t][i] for t, i in indices],
            action=rollout.action.flatten(1).cpu().numpy()[is_decision],
            reward=reward[is_decision],
            next_prompt=[next_prompts[t][i] for t, i in indices],
            terminal=terminal[is_decision],
            legal=None if legal is None else legal[is_decision],
        )
