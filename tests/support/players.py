"""Language model players with the defaults of `agent=llm_player`."""

from __future__ import annotations

from llmrl.agents.llm_player.agent import LLMPlayer
from shipped import build_settings


def make_llm_player(spec, llm, prompt_folder=None, seeds=None, **options) -> LLMPlayer:
    """Return a player with the default settings, changed by `options`."""
    return LLMPlayer(spec, build_settings("agent/llm_player", **options), llm, prompt_folder, seeds)
