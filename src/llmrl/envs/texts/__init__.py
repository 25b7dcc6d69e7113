"""Text interfaces of Gymnasium environments, for language-model players."""

from llmrl.envs.texts.describers import build_describer as build_describer
