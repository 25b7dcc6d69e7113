"""Small language models for the environment of a run: made when they are first needed, and kept beside the runs."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.seeding import Seeds
from llmrl.llms.local.small import SmallModel

if TYPE_CHECKING:
    from llmrl.core.protocols import VecEnv
    from llmrl.llms.local.loading import Kind

log = logging.getLogger(__name__)

Config = Mapping[str, Any]

_GAMES, _STEPS = 16, 100
"""Games, and steps of each, whose texts a tokenizer is made of."""


@dataclass(frozen=True)
class SmallModelReport:
    """What was made.

    Attributes:
        parameters: of the model.
        texts: different ones of the environment, of which the tokenizer was made.
        losses: on stories that were held out, before reading and after, nats a token; None: it has read nothing.
    """

    parameters: int
    texts: int
    losses: tuple[float, float] | None


class SmallModels:
    """Those of one config, in `<output_root>/models`.

    Args:
        config: resolved, plain containers.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def folder(self, kind: Kind, model: SmallModel) -> Path:
        """Where the model is, or would be: a function of its settings and the environment's."""
        said = json.dumps([kind, asdict(self._seeded(model)), _env(self._config)], sort_keys=True, default=str)
        return Path(self._config["output_root"]) / "models" / f"small-{hashlib.sha256(said.encode()).hexdigest()[:12]}"

    def make(self, kind: Kind, model: SmallModel) -> None:
        """Make the model, if it is not there; of several who make one at once, one is kept.

        Raises:
            ConfigError: as `make_for_env`.
        """
        folder = self.folder(kind, model)
        if folder.is_dir():
            return
        log.info("making a small model that %s: %s", model.told, folder)
        # With the permissions that other folders of runs have, which those of `tempfile` have not.
        scratch = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}")
        scratch.mkdir(parents=True)
        try:
            made = make_for_env(scratch, self._config, kind, self._seeded(model))
            if not folder.is_dir():
                scratch.replace(folder)
        except OSError:
            if not folder.is_dir():  # not somebody else's, who was sooner
                raise
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        if made.losses is not None:
            log.info("loss on stories it has not read: %.3g, then %.3g nats a token", *made.losses)

    def _seeded(self, model: SmallModel) -> SmallModel:
        return replace(model, seed=self._config["seed"]) if model.seed is None else model


def make_for_env(folder: Path, config: Config, kind: Kind, model: SmallModel) -> SmallModelReport:
    """Write a small model for the environment of a config.

    Args:
        folder: to write; missing or empty.
        config: `env` and `trusted_modules` of a resolved config.
        kind: its architecture.
        model: what it is like; without a seed it has that of 0.

    Raises:
        ConfigError: the environment has no such texts, or the numbers do not fit each other.
    """
    from llmrl.envs.babyai.pretraining_texts import stories
    from llmrl.experiment.build_env import build_env
    from llmrl.llms.local.small import make_small_model

    if model.reads != "nothing" and kind != "causal":
        raise ConfigError("stories are read by the next token, which only causal models are trained by")
    # Models of one environment that differ in their seed, or in whether stories mean anything, spell alike: weights of
    # one fit the other.
    shared, seeds = Seeds(0).child("small models"), Seeds(model.seed or 0).child("small model")
    env = build_env(_env(config), {"seeds": shared.child("env"), "device": "cpu"}, config["trusted_modules"])
    try:
        texts = _texts(env, model.channel, shared)
    finally:
        env.close()
    reads = model.reads != "nothing"
    read = stories(model.stories if reads else 0, seeds.integer("stories"), informative=model.reads == "stories")
    # Words of the game and of the stories are cut alike: a model that reads has one spelling of each.
    spelled = [*texts, *stories(len(texts) if reads else 0, shared.integer("stories"))]
    shape = (model.width, model.layers, model.heads, model.vocabulary, model.tokens, model.longest)
    parameters = make_small_model(folder, spelled, kind, *shape, seed=seeds.integer("weights"))
    losses = None
    if read:
        from llmrl.llms.local.next_token import read_texts

        losses = read_texts(folder, read, model.story_steps, seeds.integer("reading"))
    return SmallModelReport(parameters, len(texts), losses)


def _env(config: Config) -> dict[str, Any]:
    """The environment whose texts are read: the config's, with a number of games of its own."""
    node = dict(config["env"])
    return {**node, "n_envs": _GAMES} if "n_envs" in node else node


def _texts(env: VecEnv, channel: str, seeds: Seeds) -> list[str]:
    """Different texts that random play meets, and the names of the actions."""
    from llmrl.core.protocols import ChannelsOnRequest

    shown = env.spec.observation.get(channel)
    if shown is None or shown.dtype != "object":
        lacks = f"env={env.spec.name} has no text channel {channel!r}"
        texts = [name for name, each in env.spec.observation.items() if each.dtype == "object"]
        if texts:
            raise ConfigError(f"{lacks}, but {', '.join(texts)}: set llm.make.channel={texts[0]}")
        raise Incompatible(Misfit.INTERFACE, f"{lacks}; use an environment of texts, e.g. env=babyai_text")
    if isinstance(env, ChannelsOnRequest):
        env.provide((channel,))
    rng = seeds.numpy("actions")
    n_actions = env.spec.need_discrete("a small model that scores actions")
    met: dict[str, None] = {}
    observation = env.reset(seed=seeds.integer("games"))
    for _ in range(_STEPS):
        met |= dict.fromkeys(str(text) for text in np.asarray(observation[channel], dtype=object).ravel())
        step = env.step(rng.integers(n_actions, size=(env.spec.n_envs, env.spec.n_agents)))
        ended = np.asarray(step.terminated) | np.asarray(step.truncated)
        observation = env.reset(mask=ended) if ended.any() else step.observation
    # Actions as a model is to score them, by themselves and at the end of a text: as often as a word of the texts.
    scored = env.spec.continuations(channel)
    ends = [text.rpartition("\n")[2] for text in met]
    return [*met, *(text for name in scored for end in ends for text in (name.strip(), f"{end}{name}"))]
