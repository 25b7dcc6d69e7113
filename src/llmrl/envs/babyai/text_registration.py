"""The id under which Gymnasium makes levels in words: `llmrl/BabyAIText-v0`, `level=` any of MiniGrid or BabyAI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmrl.envs.babyai.language import LanguageName
    from llmrl.envs.babyai.text_wrapper import BabyAIText

ID = "llmrl/BabyAIText-v0"


def register() -> None:
    """Register the id with Gymnasium; calling it again does nothing."""
    import gymnasium

    if ID not in gymnasium.registry:
        gymnasium.register(ID, entry_point=f"{__name__}:make", order_enforce=False, disable_env_checker=True)


def make(level: str = "BabyAI-MixedTrainLocal-v0", language: LanguageName = "en", **kwargs: Any) -> BabyAIText:
    """Return a level with sentences about the agent's view in `info["descriptions"]`.

    Args:
        level: Gymnasium's id (docs/babyai_text.md).
        language: of the sentences, `en` or `fr`.
        kwargs: arguments of the level, such as `kind="goto"` or `render_mode="rgb_array"`.
    """
    import gymnasium

    from llmrl.envs.babyai import registration
    from llmrl.envs.babyai.text_wrapper import BabyAIText

    registration.register()
    return BabyAIText(gymnasium.make(level, **kwargs), language)
