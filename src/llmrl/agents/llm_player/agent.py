"""Agent `agent=llm_player`: a chat model plays without training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from llmrl.agents.llm_player.answer_format import AnswerWith
from llmrl.agents.llm_player.conversation import SHOWN, PlayerConversation, Show
from llmrl.agents.llm_player.episode_examples import RULE, RecordedEpisode, of_rule, of_run
from llmrl.agents.llm_player.lessons import LESSON_TURNS
from llmrl.agents.llm_player.player_settings import PlayerSettings
from llmrl.agents.llm_player.policy import LLMPolicy
from llmrl.agents.llm_player.talk import TalkTo
from llmrl.core.errors import ConfigError
from llmrl.core.model_protocols import ChatModel
from llmrl.core.non_learning_agent import NonLearningAgent
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import CHOSEN, CallEstimate, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.llms.client import ChatClient
from llmrl.llms.images import image_tokens
from llmrl.llms.provider import MESSAGE_TOKENS, estimate_tokens

if TYPE_CHECKING:
    from llmrl.core.protocols import VecEnv
    from llmrl.envs.gym.env_factory import EnvFactory
    from llmrl.envs.gym.vec_env import GymnasiumEnv

EXAMPLE = "?" * 200
"""Placeholder of an observation in estimates of prompts."""
REPLY_TOKENS = 80
"""Approximate tokens of a reply with a reflection."""
PLAN_TOKENS = 40
"""Approximate tokens of a plan."""
LESSON_TOKENS = 80
"""Approximate tokens of a lesson."""


class LLMPlayer(NonLearningAgent):
    """Chat model that plays a game described in words, by reflection and action (`LLMPolicy`).

    Args:
        spec: spec of the environment.
        llm: the chat model.
        prompt_folder, history, action_every, reflection, require_reflection, lessons, answer_with, legal_only,
            decimals, repair_turns, sliding_history, plan, show_frames, frame_size, show_text: as in `PlayerSettings`.
        show: as in `PlayerSettings`; None: `SHOWN`.
        players: model of each player: number of players by model name, in the order of players, or one name for each
            player; `llm` is the chosen model. None: the chosen model for all.
        examples: number of example episodes in the prompt.
        examples_from: source of the examples: `heuristic`, the environment's rule, which plays them now, or the folder
            of a run of another seed that has recorded episodes.
        example_steps: number of first steps shown of each example.
        talk_every, talk_to, talk_length: as in `PlayerSettings`.
        personas: YAML file with a list of texts, who the players are; player k is text k, and from the first again.
        seeds: seed tree; episodes of the rule start from `examples/k`.
        env_factory, one_game: factories of single games of the environment; None: it has none.

    Attributes:
        carried: what is carried from an episode to the next one of the same game: "last_episode", "lessons", or
            nothing. If anything is, episodes depend on one another and on the number of parallel games.

    Raises:
        ConfigError: the environment has no description in words; a prompt is wrong; an episode might never end and
            there is no budget; the examples do not exist; the model accepts no images; or `players` does not match.
    """

    reads_texts: ClassVar[bool] = True

    def __init__(
        self,
        spec: EnvSpec,
        llm: ChatModel,
        prompt_folder: Path | None,
        history: NonNegativeInt = 10,
        action_every: PositiveInt = 1,
        reflection: bool = True,
        require_reflection: bool = True,
        show: list[Show] | None = None,
        lessons: NonNegativeInt = 0,
        answer_with: AnswerWith = "name",
        legal_only: bool = True,
        decimals: NonNegativeInt = 2,
        repair_turns: NonNegativeInt = 1,
        sliding_history: bool = False,
        plan: bool = False,
        show_frames: NonNegativeInt = 0,
        frame_size: PositiveInt = 336,
        show_text: bool = True,
        players: dict[str, PositiveInt] | list[str] | None = None,
        examples: NonNegativeInt = 0,
        examples_from: str | None = None,
        example_steps: PositiveInt = 50,
        talk_every: NonNegativeInt = 0,
        talk_to: TalkTo = "all",
        talk_length: PositiveInt = 300,
        personas: str | None = None,
        seeds: Seeds | None = None,
        env_factory: EnvFactory | None = None,
        one_game: Callable[[], GymnasiumEnv | VecEnv] | None = None,
    ) -> None:
        limited = isinstance(llm, ChatClient) and llm.budget.limited
        if spec.endless and not limited:
            raise ConfigError(
                f"nothing is known to end an episode of env={spec.name}, so a player that is paid for might play for "
                "ever: set env.horizon (steps an episode), or a budget (llm.budget.usd, llm.budget.calls or "
                "llm.budget.tokens)"
            )
        models = _slots(players, spec)
        for model in dict.fromkeys(models or (CHOSEN,)):
            if show_frames and not llm.sees(model):
                blind = llm.label_of(model)
                raise ConfigError(
                    f"agent.show_frames={show_frames}: {blind} takes no pictures; choose another llm, or 0"
                )
        if not show_text and not show_frames:
            raise ConfigError("agent.show_text=false: the player would see nothing; set agent.show_frames to 1 or more")
        recorded: list[RecordedEpisode] = []
        if examples and examples_from is None:
            raise ConfigError(
                f"agent.examples={examples}, and agent.examples_from=null says not whose: {RULE}, run:<hash>, "
                "latest:<name>, or the folder of a run"
            )
        if examples and examples_from == RULE:
            recorded = of_rule(one_game, env_factory, (seeds or Seeds(0)).child("examples"), examples)
        elif examples and examples_from is not None:
            recorded = of_run(Path(examples_from).expanduser(), examples, None if seeds is None else seeds.seed)
        shown: list[Show] = list(SHOWN) if show is None else show
        settings = PlayerSettings(
            history=history,
            action_every=action_every,
            reflection=reflection,
            require_reflection=require_reflection,
            show=shown,
            lessons=lessons,
            answer_with=answer_with,
            legal_only=legal_only,
            decimals=decimals,
            repair_turns=repair_turns,
            prompt_folder=prompt_folder,
            sliding_history=sliding_history,
            plan=plan,
            show_frames=show_frames,
            frame_size=frame_size,
            show_text=show_text,
            models=models,
            examples=tuple(recorded),
            example_steps=example_steps,
            examples_by="a simple rule" if examples_from == RULE else "another player",
            talk_every=talk_every,
            talk_to=talk_to,
            talk_length=talk_length,
            personas=() if personas is None else read_personas(Path(personas).expanduser()),
        )
        self.policy = LLMPolicy(spec, llm, settings)
        self.carried = self.policy.carried

    def metrics(self) -> dict[str, float]:
        """Return the metrics of `LLMPolicy.metrics`."""
        return self.policy.metrics()

    def estimate(self, steps: int, n: int, known: int = 0) -> CallEstimate:
        """Estimate the calls for `n` episodes of `steps` steps, played in the environment's number of parallel games.

        With an action mask an action may become illegal at any step, so one call per step is assumed. Prompts are
        estimated from an example observation.
        """
        policy, spec, settings = self.policy, self.policy.spec, self.policy.settings
        repeated = 1 if "action_mask" in policy.channels else settings.action_every
        decisions = -(-steps // repeated)
        planned = PLAN_TOKENS if settings.plan else 0
        turn = self._turn_tokens(steps, repeated) + planned
        reply = MESSAGE_TOKENS + (REPLY_TOKENS if settings.reflection else 10) + planned
        seen = settings.show_frames * image_tokens(settings.frame_size, settings.frame_size)
        system = estimate_tokens(policy.system[0].text) + MESSAGE_TOKENS
        told = settings.lessons * LESSON_TOKENS
        shown = sum(self._shown(k) for k in range(decisions))
        episode = decisions * (system + told + turn + seen) + shown * (turn + reply)
        lessons = (n - min(n, spec.n_envs)) * (settings.lessons > 0)
        lesson = 2 * system + told + min(decisions, LESSON_TURNS) * (turn + reply)
        players = spec.n_agents
        talks = 0 if policy.talk is None else -(-steps // policy.talk.every) * n
        heard = 0 if policy.talk is None else policy.talk.length // 4 + MESSAGE_TOKENS
        calls = (decisions * n + lessons + talks) * players
        # A message is read by the others with the question that follows, and in the turns that are shown later.
        prompts = (episode * n + lesson * lessons + talks * (episode // decisions + players * heard)) * players
        replies = (decisions * n * reply + lessons * LESSON_TOKENS + talks * heard) * players
        quoted = (shown * n + min(decisions, LESSON_TURNS) * lessons) * players
        shares = {model: policy.models.count(model) / players for model in dict.fromkeys(policy.models)}
        return CallEstimate(calls, calls * (1 + policy.asker.repair_turns), prompts, replies, quoted, shares)

    def _shown(self, decided: int) -> int:
        """Return the number of earlier turns shown with the question after `decided` decisions."""
        history, sliding = self.policy.settings.history, self.policy.settings.sliding_history
        if history == 0 or sliding or decided < 2 * history:
            return min(decided, history) if sliding or history == 0 else decided
        return history + (decided - history) % history

    def _turn_tokens(self, steps: int, frames: int) -> int:
        """Estimate the tokens of a question with `frames` observations and all that can accompany them."""
        policy = self.policy
        seat = PlayerConversation(steps=steps, total=-float(steps) - 0.1, reward=-float(steps) - 0.1)
        masked = "action_mask" in policy.channels
        legal = policy.answers.legal_answers([True] * policy.spec.n_actions) if masked else None
        for _ in range(frames):
            seat.add_observation(
                (policy.text.example or EXAMPLE) if policy.settings.show_text else None, legal, policy.settings.show
            )
        return estimate_tokens(seat.question()) + MESSAGE_TOKENS

    def describe(self) -> dict[str, Any]:
        policy, settings = self.policy, self.policy.settings
        several = [f"{policy.models.count(m)} x {policy.llm.label_of(m)}" for m in dict.fromkeys(policy.models)]
        return {
            "policy": f"{', '.join(several) if settings.models else policy.llm.label_of()}, zero-shot",
            "history": f"{settings.history} turns"
            if settings.sliding_history
            else f"{settings.history} to {max(2 * settings.history - 1, 0)} turns",
            "action every": f"{settings.action_every} steps",
            "pictures": f"the newest {settings.show_frames}" if settings.show_frames else "none",
            "lessons": settings.lessons or "none",
            **({"talk": f"every {settings.talk_every} steps, to {settings.talk_to}"} if settings.talk_every else {}),
            **({"personas": len(settings.personas)} if settings.personas else {}),
            "examples": f"{len(settings.examples)} episodes of {settings.examples_by}" if settings.examples else "none",
            "from episode to episode": ", ".join(self.carried) or "nothing",
            "system prompt": f"about {estimate_tokens(policy.system[0].text):,} tokens",
        }

    def state_dict(self) -> State:
        return self.policy.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.policy.load_state_dict(state)


def read_personas(path: Path) -> tuple[str, ...]:
    """Return the texts of a YAML file with a list of personas.

    Raises:
        ConfigError: the file cannot be read, or is no list of texts.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"agent.personas={path} cannot be read: {error}") from error
    if not isinstance(content, list) or not content or not all(isinstance(x, str) and x.strip() for x in content):
        raise ConfigError(
            f"agent.personas={path}: a list of texts is needed, e.g. `- You are a fisher who thinks of next year.`"
        )
    return tuple(" ".join(text.split()) for text in content)


def _slots(players: dict[str, int] | list[str] | None, spec: EnvSpec) -> tuple[str, ...]:
    """Return the model of each player; () if all are the chosen one.

    Raises:
        ConfigError: the number of models is not the number of players.
    """
    if players is None:
        return ()
    names = [name for name, n in players.items() for _ in range(n)] if isinstance(players, dict) else players
    if len(names) != spec.n_agents:
        raise ConfigError(
            f"agent.players names the models of {len(names)} players, and env={spec.name} has {spec.n_agents}: "
            f"{', '.join(spec.player_names)}"
        )
    return tuple(names)
