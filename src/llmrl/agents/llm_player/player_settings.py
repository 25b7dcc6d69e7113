"""Settings of a language player."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrl.agents.llm_player.answer_format import AnswerWith
from llmrl.agents.llm_player.conversation import Show
from llmrl.agents.llm_player.episode_examples import RecordedEpisode
from llmrl.agents.llm_player.talk import TalkTo


@dataclass(frozen=True)
class PlayerSettings:
    """How a player is told of its game, and how it may answer.

    Attributes:
        history: earlier turns (what was told, what was answered) that are shown at least, as soon as there are so many;
            >= 0.
        sliding_history: exactly the newest `history` turns are shown, so that each question begins otherwise; else
            they grow to less than twice as many and are cut back.
        action_every: steps an action is taken for, as long as it is legal; >= 1.
        reflection: whether replies begin with a reflection.
        require_reflection: whether a reply without the reflection that was asked for is invalid.
        plan: whether a reply may hold a plan for later turns, which the player is shown as long as it has no other.
        show_frames: the newest frames of the game that are shown with a question; 0: none. Their longer side has
            `frame_size` pixels at most.
        show_text: whether observations are told in words.
        models: the model that each player is, by the name that the run has for it; (): all are the chosen one.
        examples: episodes of others that are shown, `example_steps` of each, played by `examples_by`, in words.
        show: what an observation is accompanied by.
        lessons: lessons of earlier episodes that are kept; 0: none is drawn.
        answer_with: whether choices are answered by name or by number.
        legal_only: whether an answer must be legal, where the environment tells which actions are.
        decimals: digits after the point of the numbers of an action.
        repair_turns: chances to correct an invalid reply.
        talk_every: steps between rounds in which players say something before they act; 0: they are silent.
        talk_to: who hears a message.
        talk_length: most characters of a message.
        personas: who players are, in words, player by player and from the first again; (): nobody in particular.
        prompt_folder: the user's own prompts, `player/<name>.j2` in it; None: there are none.
    """

    history: int
    action_every: int
    reflection: bool
    require_reflection: bool
    show: Sequence[Show]
    lessons: int
    answer_with: AnswerWith
    legal_only: bool
    decimals: int
    repair_turns: int
    prompt_folder: Path | None
    sliding_history: bool = False
    plan: bool = False
    show_frames: int = 0
    frame_size: int = 336
    show_text: bool = True
    models: Sequence[str] = ()
    examples: Sequence[RecordedEpisode] = ()
    example_steps: int = 50
    examples_by: str = "another player"
    talk_every: int = 0
    talk_to: TalkTo = "all"
    talk_length: int = 300
    personas: Sequence[str] = ()
