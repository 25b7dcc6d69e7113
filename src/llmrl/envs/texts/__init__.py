"""Text interfaces of Gymnasium's environments, for language-model players."""

from llmrl.envs.texts.describers import describer, describer_of

__all__ = ["describer", "describer_of"]
