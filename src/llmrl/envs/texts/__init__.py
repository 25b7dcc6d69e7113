"""Text interfaces of Gymnasium's environments, for language-model players."""

from llmrl.envs.texts.describers import build_describer as build_describer
