"""Agent whose actions come from a chat model, which may learn from its replies."""

from __future__ import annotations

import statistics
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from llmrl.agents.llm_player.conversation import PlayerConversation
from llmrl.agents.llm_player.lessons import MAX_LESSON_TURNS
from llmrl.agents.llm_player.player_prompts import PlayerResources, PlayerSettings
from llmrl.agents.llm_player.policy import LLMPolicy
from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.protocols import AgentLoop
from llmrl.core.records import CHOSEN_MODEL, CallEstimate, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.llms.client import ChatClient
from llmrl.llms.images import estimate_image_tokens
from llmrl.llms.local.learning import AdapterSharing, ChatLearner, TrajectoryBuffer
from llmrl.llms.provider import TOKENS_PER_MESSAGE, estimate_tokens

if TYPE_CHECKING:
    import torch

    from llmrl.core.rollouts import Rollout

OBSERVATION_PLACEHOLDER = "?" * 200
"""Text that replaces an observation in estimates of prompt tokens, if the environment gives no example."""
REPLY_TOKENS = 80
"""Approximate number of tokens of a reply with a reflection."""
LESSON_TOKENS = 80
"""Approximate number of tokens of a lesson."""


class LLMPlayer:
    """Chat model that plays a game described in words, by reflection and action (`LLMPolicy`).

    With `llm/learn`, the model is trained from the rewards of its replies.

    Args:
        spec: spec of the environment.
        settings: options.
        llm: the chat model.
        prompt_folder: folder of the user's prompts; None: there are none.
        seeds: seed tree for sampling replies; only used with a principal.
        has_principal: whether a principal governs the agent.
        society_index: index of the agent's society; only used with a principal.
        member: index of the agent among the members of `agent=mixed`; None: it is not a member.

    Attributes:
        group_size, n_continuations, gamma: settings of the learner (`ComparesEpisodes`); `group_size` is None without
            a learner.
        carried_states: names of the states that are passed on from an episode to the next one of the same game,
            "last_episode" and "lessons". If there are any, episodes depend on one another and on the number of games.

    Raises:
        ConfigError: the environment has no description in words; a prompt template is invalid; an episode might never
            end and there is no budget; the model accepts no images; `players` does not name one model per player; or
            the model learns, and `group_size` does not divide the number of games, or `advantage=replay` is used under
            a principal.
    """

    loop: ClassVar[AgentLoop] = "play"
    reads_texts: ClassVar[bool] = True
    no_learning_setting = ("llm.learn", None)
    """(option, value): with this value the agent does not learn."""

    def __init__(
        self,
        spec: EnvSpec,
        settings: PlayerSettings,
        llm: ChatModel,
        prompt_folder: Path | None = None,
        seeds: Seeds | None = None,
        has_principal: bool = False,
        society_index: int = 0,
        member: int | None = None,
    ) -> None:
        has_budget = isinstance(llm, ChatClient) and llm.budget.has_limits
        if spec.endless and not has_budget:
            raise ConfigError(
                f"episodes of env={spec.name} may never end, so calls of a paid model are not limited; set env.horizon "
                "(maximum steps of an episode), or a budget (llm.budget.usd, llm.budget.calls or llm.budget.tokens)"
            )
        models = _list_player_models(settings.players, spec)
        for model in dict.fromkeys(models or (CHOSEN_MODEL,)):
            if settings.show_frames and not llm.accepts_images(model):
                model_label = llm.model_label(model)
                raise ConfigError(
                    f"agent.show_frames={settings.show_frames}: {model_label} accepts no images; choose another llm, "
                    "or set agent.show_frames=0"
                )
        if not settings.show_text and not settings.show_frames:
            raise ConfigError("agent.show_text=false needs frames; set agent.show_frames to 1 or more")
        personas = () if settings.personas is None else read_personas(Path(settings.personas).expanduser())
        resources = PlayerResources(prompt_folder, models, personas)
        self._has_principal = has_principal
        learners = llm.provider.learners if isinstance(llm, ChatClient) else None
        self.learns = learners is not None
        self._learners: dict[str, ChatLearner] = {}
        self._trajectory_buffer = TrajectoryBuffer()
        self.group_size: int | None = None
        self.n_continuations, self.gamma = 0, 1.0
        adapters: list[str] = []
        if learners is not None:
            self.group_size, self.gamma = learners.group_size, learners.gamma
            self.n_continuations = learners.n_continuations
            if has_principal and self.n_continuations:
                raise ConfigError(
                    "llm.learn.advantage=replay continues restored games, which is not supported under a principal; "
                    "use episode, turn or anchor"
                )
            if spec.n_envs % self.group_size:
                raise ConfigError(
                    f"env.n_envs gives {spec.n_envs} games to each society; this must be a multiple of "
                    f"llm.learn.group_size={self.group_size}, the number of episodes that are compared"
                )
            adapters = name_adapters(learners.sharing, spec, society_index if has_principal else None, member)
            reply_seeds = seeds.child("replies") if has_principal and seeds is not None else None
            self._learners = {name: learners.learner(name, reply_seeds) for name in adapters}
        self.policy = LLMPolicy(
            spec, llm, settings, resources, self._trajectory_buffer if self.learns else None, adapters
        )
        self.carried_states = self.policy.carried_states

    def pause_recording(self) -> AbstractContextManager[None]:
        """Return a context in which replies are not recorded for training, e.g. that of an evaluation."""
        return self._trajectory_buffer.paused()

    def truncate_episodes(self) -> None:
        """Truncate the recorded episodes that are still in progress."""
        for game in range(self.policy.spec.n_envs):
            self._trajectory_buffer.end_episode(game)

    def set_state_values(self, values: np.ndarray) -> None:
        """Set the values of the states of the recorded episodes, [n_steps, n_envs, n_agents]."""
        self._trajectory_buffer.set_state_values(values)

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Train the model on the episodes that have ended since the last update; return metrics.

        The metrics (`learn/...`, under a principal `player/learn/...`) are means over the players' adapters.
        `learn/diversity` measures how much the players' actions differ (`compute_action_diversity`).
        """
        if not self.learns:
            return {}
        trajectories = self._trajectory_buffer.pop_complete()
        learner_metrics = [
            learner.update([t for t in trajectories if self.policy.adapters[t.agent] == name], generator)
            for name, learner in self._learners.items()
        ]
        names = dict.fromkeys(name for metrics in learner_metrics for name in metrics)
        means = {name: statistics.fmean(x[name] for x in learner_metrics if name in x) for name in names}
        if self.policy.spec.n_agents > 1 and self.policy.spec.continuous_actions is None:
            means["learn/diversity"] = compute_action_diversity(rollout, self.policy.spec.n_actions)
        if not self._has_principal:
            return means | self.metrics()
        # `llm/` and `learn/` are the principal's metrics; those of its players have the prefix `player/`.
        player_metrics = {name: x for name, x in self.metrics().items() if name.startswith("player/")}
        return player_metrics | {f"player/{name}": x for name, x in means.items()}

    def reset(self) -> None:
        """Restore the weights that the model had before training."""
        for learner in self._learners.values():
            learner.reset()

    def write_adapter(self, folder: Path) -> None:
        """Write the trained adapter into `folder` in peft's format; do nothing if none is trained.

        Several adapters are written into subfolders that are named after them.
        """
        for name, learner in self._learners.items():
            learner.write_adapter(folder / name if len(self._learners) > 1 else folder)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of `LLMPolicy.metrics`."""
        return self.policy.metrics()

    def estimate(self, steps: int, n: int, n_earlier_outcomes: int = 0) -> CallEstimate:
        """Estimate the calls for `n` episodes of `steps` steps, played in `n_envs` parallel games.

        With an action mask, an action may become illegal at any step, so one call per step is assumed. Prompts are
        estimated from an example observation. `n_earlier_outcomes` has no effect, because players are shown no outcomes
        of proposals.
        """
        policy, spec, settings = self.policy, self.policy.spec, self.policy.settings
        steps_per_decision = 1 if "action_mask" in policy.channels else settings.action_interval
        n_decisions = -(-steps // steps_per_decision)
        turn_tokens = self._estimate_turn_tokens(steps, steps_per_decision)
        reply_tokens = TOKENS_PER_MESSAGE + (REPLY_TOKENS if settings.reflection else 10)
        frame_tokens = settings.show_frames * estimate_image_tokens(settings.frame_size, settings.frame_size)
        system_tokens = estimate_tokens(policy.prompts.render_system(0, ()).text) + TOKENS_PER_MESSAGE
        shown_lesson_tokens = settings.lessons * LESSON_TOKENS
        prompt_tokens = system_tokens + shown_lesson_tokens + turn_tokens + frame_tokens
        n_turns = sum(self._count_shown_turns(k) for k in range(n_decisions))
        episode_tokens = n_decisions * prompt_tokens + n_turns * (turn_tokens + reply_tokens)
        n_lessons = (n - min(n, spec.n_envs)) * (settings.lessons > 0)
        lesson_prompt_tokens = (
            2 * system_tokens + shown_lesson_tokens + min(n_decisions, MAX_LESSON_TURNS) * (turn_tokens + reply_tokens)
        )
        n_agents = spec.n_agents
        n_messages = 0 if policy.talk is None else -(-steps // policy.talk.interval) * n
        message_tokens = 0 if policy.talk is None else policy.talk.max_length // 4 + TOKENS_PER_MESSAGE
        min_calls = (n_decisions * n + n_lessons + n_messages) * n_agents
        # The others read a message with their next question, and in the turns that are shown later.
        message_prompt_tokens = episode_tokens // n_decisions + n_agents * message_tokens
        total_prompt_tokens = (
            episode_tokens * n + lesson_prompt_tokens * n_lessons + n_messages * message_prompt_tokens
        ) * n_agents
        total_reply_tokens = (
            n_decisions * n * reply_tokens + n_lessons * LESSON_TOKENS + n_messages * message_tokens
        ) * n_agents
        n_shown_turns = (n_turns * n + min(n_decisions, MAX_LESSON_TURNS) * n_lessons) * n_agents
        model_shares = {model: policy.models.count(model) / n_agents for model in dict.fromkeys(policy.models)}
        max_calls = min_calls * (1 + policy.structured_query.repair_turns)
        return CallEstimate(min_calls, max_calls, total_prompt_tokens, total_reply_tokens, n_shown_turns, model_shares)

    def _count_shown_turns(self, n_decisions: int) -> int:
        """Return the number of earlier turns that are shown with the question after `n_decisions` decisions."""
        history, sliding = self.policy.settings.history, self.policy.settings.sliding_history
        if history == 0 or sliding or n_decisions < 2 * history:
            return min(n_decisions, history) if sliding or history == 0 else n_decisions
        return history + (n_decisions - history) % history

    def _estimate_turn_tokens(self, steps: int, n_observations: int) -> int:
        """Estimate the number of tokens of a question with `n_observations` observations and all their extras."""
        policy = self.policy
        conversation = PlayerConversation(steps=steps, episode_return=-float(steps) - 0.1, reward=-float(steps) - 0.1)
        has_mask = "action_mask" in policy.channels
        legal_answers = policy.answers.format_legal_answers([True] * policy.spec.n_actions) if has_mask else None
        observation_text = (
            (policy.env_description.example or OBSERVATION_PLACEHOLDER) if policy.settings.show_text else None
        )
        for _ in range(n_observations):
            conversation.add_observation(observation_text, legal_answers, policy.settings.observation_extras)
        return estimate_tokens(conversation.render_question()) + TOKENS_PER_MESSAGE

    def describe(self) -> dict[str, Any]:
        """Return a description of the player for the summary of a run."""
        policy, settings, resources = self.policy, self.policy.settings, self.policy.resources
        model_texts = [f"{policy.models.count(m)} x {policy.llm.model_label(m)}" for m in dict.fromkeys(policy.models)]
        return {
            "policy": (", ".join(model_texts) if resources.models else policy.llm.model_label())
            + ("" if self.learns else ", zero-shot"),
            "history": f"{settings.history} turns"
            if settings.sliding_history
            else f"{settings.history} to {max(2 * settings.history - 1, 0)} turns",
            "action every": f"{settings.action_interval} steps",
            "pictures": f"the newest {settings.show_frames}" if settings.show_frames else "none",
            "lessons": settings.lessons or "none",
            **(
                {}
                if policy.talk is None
                else {"talk": f"every {policy.talk.interval} steps, to {policy.talk.recipient_mode}"}
            ),
            **({"personas": len(resources.personas)} if resources.personas else {}),
            **(next(iter(self._learners.values())).describe() if self.learns else {}),
            **({"adapters": len(self._learners)} if len(self._learners) > 1 else {}),
            "from episode to episode": ", ".join(self.carried_states) or "nothing",
            "system prompt": f"about {estimate_tokens(policy.prompts.render_system(0, ()).text):,} tokens",
        }

    def state_dict(self) -> State:
        state = self.policy.state_dict()
        if self.learns:
            state["learners"] = [learner.state_dict() for learner in self._learners.values()]
            state["trajectories"] = self._trajectory_buffer.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        self.policy.load_state_dict(state)
        if self.learns:
            for learner, learner_state in zip(self._learners.values(), state["learners"], strict=True):
                learner.load_state_dict(learner_state)
            self._trajectory_buffer.load_state_dict(state["trajectories"])


def compute_action_diversity(rollout: Rollout, n_actions: int) -> float:
    """Return the Jensen-Shannon divergence between the distributions of the players' actions, in nats.

    It is the entropy of the mean distribution minus the mean entropy: 0 if all players have the same distribution, at
    most the logarithm of the number of players. Steps after the end of an episode are left out.
    """
    end_mask = (rollout.terminated | rollout.truncated).cpu().numpy()
    played_mask = np.cumsum(end_mask, axis=0) - end_mask == 0  # [T, n_envs]
    actions = rollout.action.cpu().numpy()[played_mask]  # [n_played, n_agents]
    counts = np.stack([np.bincount(column, minlength=n_actions) for column in actions.T])
    from scipy.stats import entropy  # lazy: importing it takes longer than most commands

    probabilities = counts / counts.sum(axis=1, keepdims=True)
    return entropy(probabilities.mean(axis=0)) - entropy(probabilities, axis=1).mean()


def name_adapters(sharing: AdapterSharing, spec: EnvSpec, society_index: int | None, member: int | None) -> list[str]:
    """Return the name of the adapter of each player.

    Args:
        sharing: players that share an adapter.
        spec: spec of the environment, or of the players of a member.
        society_index: index of the players' society; None: there is only one.
        member: index of the entry of `members` of `agent=mixed` that these players belong to; None: to none.
    """
    name_parts = [] if society_index is None else [f"society_{society_index}"]
    if sharing == "per_member" and member is not None:
        name_parts.append(f"member_{member}")
    if sharing != "per_player":
        return ["_".join(name_parts)] * spec.n_agents
    return ["_".join([*name_parts, f"player_{seat}"]) for seat in spec.seats or range(spec.n_agents)]


def read_personas(path: Path) -> tuple[str, ...]:
    """Return the texts of a YAML file with a list of personas.

    Raises:
        ConfigError: the file cannot be read, or is not a list of texts.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"agent.personas={path} cannot be read: {error}") from error
    if not isinstance(content, list) or not content or not all(isinstance(x, str) and x.strip() for x in content):
        raise ConfigError(
            f"agent.personas={path} must be a list of texts, e.g. `- You are a fisher who thinks of next year.`"
        )
    return tuple(" ".join(text.split()) for text in content)


def _list_player_models(players: dict[str, int] | list[str] | None, spec: EnvSpec) -> tuple[str, ...]:
    """Return the name of each player's model; () if all have the chosen model.

    Raises:
        ConfigError: the number of models is not the number of players.
    """
    if players is None:
        return ()
    names = [name for name, count in players.items() for _ in range(count)] if isinstance(players, dict) else players
    if len(names) != spec.n_agents:
        raise ConfigError(
            f"agent.players has models for {len(names)} players, but env={spec.name} has {spec.n_agents}: "
            f"{', '.join(spec.player_names)}; set one model for each"
        )
    return tuple(names)
