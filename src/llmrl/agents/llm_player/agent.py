"""`agent=llm_player`: a chat model plays, without being trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.agents.llm_player.answers import LESSON_TURNS, AnswerWith
from llmrl.agents.llm_player.conversation import SHOWN, Conversation, Show
from llmrl.agents.llm_player.examples import RULE, Recorded, of_rule, of_run
from llmrl.agents.llm_player.policy import LLMPolicy, PlayerSettings
from llmrl.core.errors import ConfigError
from llmrl.core.only_plays import OnlyPlays
from llmrl.core.protocols import ChatModel
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import CallEstimate, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.llms.client import ChatClient
from llmrl.llms.images import image_tokens
from llmrl.llms.provider import MESSAGE_TOKENS, estimate_tokens

if TYPE_CHECKING:
    from llmrl.envs.gym.games import GameMaker
    from llmrl.envs.gym.vec_env import GymnasiumEnv

EXAMPLE = "?" * 200
"""Stands for an observation where none is at hand."""
REPLY_TOKENS = 80
"""Tokens of a reply with a reflection, about."""
PLAN_TOKENS = 40
"""Tokens of a plan, about."""
LESSON_TOKENS = 80
"""Tokens of a lesson, about."""


class LLMPlayer(OnlyPlays):
    """Plays a game that has been put into words, by reflection and action (`LLMPolicy`).

    Args:
        spec: of the environment.
        llm: who is asked.
        prompt_folder, history, action_every, reflection, require_reflection, lessons, answer_with, legal_only,
            decimals, repair_turns, sliding_history, plan, show_frames, frame_size, show_text: as in `PlayerSettings`.
        show: the same; None: `SHOWN`.
        examples: episodes of others that are shown.
        examples_from: whose: `heuristic`, the rule for the environment, which plays them now, or the folder of a run of
            another seed that has written them down.
        example_steps: steps shown of each of them, the first ones.
        seeds: episodes of a rule begin from `examples/k`.
        maker, one_game: make games of the environment, where they can be played apart.

    Attributes:
        carried: what goes from an episode to the next one of the same game: "last_episode", "lessons", or nothing. If
            anything does, the episodes depend on one another, and on how many games there are at once.

    Raises:
        ConfigError: the environment has not been put into words, a prompt is wrong, an episode might never end and
            there is no budget, there are no such examples, or the model takes no pictures.
    """

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
        examples: NonNegativeInt = 0,
        examples_from: str | None = None,
        example_steps: PositiveInt = 50,
        seeds: Seeds | None = None,
        maker: GameMaker | None = None,
        one_game: Callable[[], GymnasiumEnv] | None = None,
    ) -> None:
        limited = isinstance(llm, ChatClient) and llm.budget.limited
        if spec.endless and not limited:
            raise ConfigError(
                f"nothing is known to end an episode of env={spec.name}, so a player that is paid for might play for "
                "ever: set env.horizon (steps an episode), or a budget (llm.budget.usd, llm.budget.calls or "
                "llm.budget.tokens)"
            )
        if show_frames and not getattr(llm, "sees", False):
            raise ConfigError(
                f"agent.show_frames={show_frames}: {llm.label} takes no pictures; choose another llm, or 0"
            )
        if not show_text and not show_frames:
            raise ConfigError("agent.show_text=false: the player would see nothing; set agent.show_frames to 1 or more")
        recorded: list[Recorded] = []
        if examples and examples_from is None:
            raise ConfigError(
                f"agent.examples={examples}, and agent.examples_from=null says not whose: {RULE}, run:<hash>, "
                "latest:<name>, or the folder of a run"
            )
        if examples and examples_from == RULE:
            recorded = of_rule(one_game, maker, (seeds or Seeds(0)).child("examples"), examples)
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
            examples=tuple(recorded),
            example_steps=example_steps,
            examples_by="a simple rule" if examples_from == RULE else "another player",
        )
        self.policy = LLMPolicy(spec, llm, settings)
        self.carried = self.policy.carried

    def metrics(self) -> dict[str, float]:
        """See `LLMPolicy.metrics`."""
        return self.policy.metrics()

    def estimate(self, steps: int, n: int) -> CallEstimate:
        """For `n` episodes of `steps` steps, as many games of them at once as the environment has.

        Where the environment tells legal actions, an action may become illegal at any step, and is asked for again: so
        there is a call for each step. Prompts are estimated from an observation of the environment.
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
        calls = (decisions * n + lessons) * players
        prompts = (episode * n + lesson * lessons) * players
        replies = (decisions * n * reply + lessons * LESSON_TOKENS) * players
        quoted = (shown * n + min(decisions, LESSON_TURNS) * lessons) * players
        return CallEstimate(calls, calls * (1 + policy.asker.repair_turns), prompts, replies, quoted)

    def _shown(self, decided: int) -> int:
        """Earlier turns that are shown with a question after so many."""
        history, sliding = self.policy.settings.history, self.policy.settings.sliding_history
        if history == 0 or sliding or decided < 2 * history:
            return min(decided, history) if sliding or history == 0 else decided
        return history + (decided - history) % history

    def _turn_tokens(self, steps: int, frames: int) -> int:
        """Tokens of a question that tells so many observations, with all that can accompany them."""
        policy = self.policy
        seat = Conversation(steps=steps, total=-float(steps) - 0.1, reward=-float(steps) - 0.1)
        legal = [name for name, _ in policy.answers.told] if "action_mask" in policy.channels else None
        for _ in range(frames):
            seat.see(
                (policy.text.example or EXAMPLE) if policy.settings.show_text else None, legal, policy.settings.show
            )
        return estimate_tokens(seat.question()) + MESSAGE_TOKENS

    def describe(self) -> dict[str, Any]:
        policy, settings = self.policy, self.policy.settings
        return {
            "policy": f"{policy.llm.label}, zero-shot",
            "history": f"{settings.history} turns"
            if settings.sliding_history
            else f"{settings.history} to {max(2 * settings.history - 1, 0)} turns",
            "action every": f"{settings.action_every} steps",
            "pictures": f"the newest {settings.show_frames}" if settings.show_frames else "none",
            "lessons": settings.lessons or "none",
            "examples": f"{len(settings.examples)} episodes of {settings.examples_by}" if settings.examples else "none",
            "from episode to episode": ", ".join(self.carried) or "nothing",
            "system prompt": f"about {estimate_tokens(policy.system[0].text):,} tokens",
        }

    def state_dict(self) -> State:
        return self.policy.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.policy.load_state_dict(state)
