"""Settings of a language player."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrl.agents.llm_player.answer_format import AnswerWith
from llmrl.agents.llm_player.conversation import DEFAULT_EXTRAS, Show
from llmrl.agents.llm_player.talk import TalkTo
from llmrl.core.ranges import NonNegativeInt, PositiveInt


@dataclass(frozen=True)
class PlayerSettings:
    """Options of `LLMPlayer`: prompts and answers. Ranges are in `conf/agent/llm_player.yaml`.

    Attributes:
        history: minimum number of earlier turns (question and answer) in a prompt, once there are so many.
        sliding_history: whether exactly the newest `history` turns are shown, so that each prompt begins differently;
            otherwise their number grows to less than twice as many and is then cut to `history`.
        action_interval: number of steps for which an action is repeated, as long as it is legal.
        reflection: whether replies begin with a reflection.
        require_reflection: whether a reply without the requested reflection is invalid.
        show: additions to an observation; None: `DEFAULT_EXTRAS`.
        show_frames: number of newest frames in a prompt; 0: none.
        frame_size: maximum pixels of the longer side of a frame.
        players: model of each player: number of players by model name, in the order of players, or one name for each
            player; `llm` is the chosen model. None: the chosen model for all.
        show_text: whether observations are given in words.
        lessons: number of lessons from earlier episodes in a prompt; 0: none are drawn.
        action_format: whether choices are answered by name or by number.
        require_legal: whether an answer must be legal, where the environment reports legal actions.
        decimals: digits after the point of real-valued actions.
        repair_turns: maximum number of requests to correct an invalid reply.
        message_interval: number of steps between rounds in which players send a message before they act; 0: never.
        message_recipients: recipients of a message.
        max_message_length: maximum characters of a message.
        personas: YAML file with a list of texts that describe the players; player k has text k, modulo their number.
    """

    history: NonNegativeInt
    sliding_history: bool
    action_interval: PositiveInt
    reflection: bool
    require_reflection: bool
    show: list[Show] | None
    show_frames: NonNegativeInt
    frame_size: PositiveInt
    players: dict[str, PositiveInt] | list[str] | None
    show_text: bool
    lessons: NonNegativeInt
    action_format: AnswerWith
    require_legal: bool
    decimals: NonNegativeInt
    repair_turns: NonNegativeInt
    message_interval: NonNegativeInt
    message_recipients: TalkTo
    max_message_length: PositiveInt
    personas: str | None

    @property
    def observation_extras(self) -> Sequence[Show]:
        """Additions to an observation."""
        return DEFAULT_EXTRAS if self.show is None else self.show


@dataclass(frozen=True)
class PlayerContent:
    """Content of prompts that a player's settings name.

    Attributes:
        prompt_folder: folder of the user's prompts, `player/<name>.j2` in it; None: there are none.
        models: model of each player, by the run's name of the model; (): the chosen one for all.
        personas: texts that describe the players; (): there are none.
    """

    prompt_folder: Path | None = None
    models: Sequence[str] = ()
    personas: Sequence[str] = ()
