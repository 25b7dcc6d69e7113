"""Small language models for the environment of a run, made when they are first needed and kept in the output folder."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.config.builder import Builder, Config
from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.processes import ProcessGroup
from llmrl.core.seeding import Seeds
from llmrl.core.services import AgentServices, EnvServices, PrincipalServices
from llmrl.llms.local.small import SmallChat, SmallModel

if TYPE_CHECKING:
    from llmrl.chat_learning.format_training import Exchange, RandomLegalChat
    from llmrl.core.protocols import VecEnv
    from llmrl.llms.local.loading import ModelKind
    from llmrl.llms.local.small import SmallKind
    from llmrl.principals.llm_search import LLMSearch

log = logging.getLogger(__name__)

_N_GAMES, _N_STEPS = 16, 100
"""Number of games, and steps of each, whose texts the tokenizer is built from."""
_MAX_EXCHANGES = 2000
"""Number of replies from which a chat model learns their format."""
_LATER_ITERATIONS = 7
"""Number of iterations of a simulated search, besides the first, in which proposals are requested."""


class SmallModels:
    """The small models of a config, in `<output_root>/models`.

    Args:
        config: resolved config as plain data.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def folder(self, kind: SmallKind, model: SmallModel | SmallChat) -> Path:
        """Return the folder of a model, whether or not it exists.

        It is a function of the settings of the model and the environment, and for a chat model also of the part
        that asks it.
        """
        identity_fields: list[Any] = [kind, asdict(self._seeded(model)), _env_options(self._config)]
        if kind == "chat":
            identity_fields += [self._config.get("agent"), self._config.get("prompts")]
            if not _is_player(self._config):
                identity_fields += [self._config.get("principal"), _search_size(self._config)]
        identity = json.dumps(identity_fields, sort_keys=True, default=str)
        digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
        return Path(self._config["output_root"]) / "models" / f"small-{digest}"

    def make(self, kind: SmallKind, model: SmallModel | SmallChat) -> None:
        """Make the model unless it exists.

        The first process of a run makes it, and the others wait. If several runs make it at the same time, one copy is
        kept.

        Raises:
            ConfigError: as `make_for_env`.
        """
        folder, processes = self.folder(kind, model), ProcessGroup.get_joined()
        if processes.is_main and not folder.is_dir():
            self._make(folder, kind, model)
        processes.barrier()

    def _make(self, folder: Path, kind: SmallKind, model: SmallModel | SmallChat) -> None:
        """Make the model in a temporary folder and move it to `folder`."""
        log.info("making %s: %s", model.label, folder)
        # Not by `tempfile`, whose folders have other permissions than folders of runs.
        temporary_folder = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}")
        temporary_folder.mkdir(parents=True)
        try:
            seeded_model = self._seeded(model)
            if isinstance(seeded_model, SmallChat):
                make_chat_for_env(temporary_folder, self._config, seeded_model)
            else:
                make_for_env(temporary_folder, self._config, kind, seeded_model)  # type: ignore[arg-type]
            if not folder.is_dir():
                temporary_folder.replace(folder)
        except OSError:
            if not folder.is_dir():  # no other run has made it meanwhile
                raise
        finally:
            shutil.rmtree(temporary_folder, ignore_errors=True)

    def _seeded(self, model: SmallModel | SmallChat) -> SmallModel | SmallChat:
        return replace(model, seed=self._config["seed"]) if model.seed is None else model


def make_for_env(folder: Path, config: Config, kind: ModelKind, model: SmallModel) -> None:
    """Write a small model for the environment of a config.

    Args:
        folder: folder to write; missing or empty.
        config: `env` and `trusted_modules` of a resolved config.
        kind: architecture.
        model: settings of the model; without a seed, 0 is used.

    Raises:
        ConfigError: the environment has no such texts, or the numbers do not fit each other.
    """
    from llmrl.envs.babyai.pretraining_texts import stories
    from llmrl.experiment.build_env import build_env
    from llmrl.llms.local.small import make_small_model

    if model.reads != "nothing" and kind != "causal":
        raise ConfigError(
            f"llm.make.reads={model.reads} needs a causal model, which is trained by next-token prediction; "
            "set llm.make.reads=nothing"
        )
    # Models of one environment have the same tokenizer whatever their seeds and stories, so weights of one fit another.
    shared, seeds = Seeds(0).child("small models"), Seeds(model.seed or 0).child("small model")
    env = build_env(_env_options(config), Builder(EnvServices(shared.child("env")), config["trusted_modules"]))
    try:
        game_texts = _collect_texts(env, model.channel, shared)
    finally:
        env.close()
    reads_stories = model.reads != "nothing"
    n_stories = model.stories if reads_stories else 0
    story_texts = stories(n_stories, seeds.integer("stories"), informative=model.reads == "stories")
    # The tokenizer is built from texts of the game and of the stories, so a word has the same tokens in both.
    tokenizer_texts = [*game_texts, *stories(len(game_texts) if reads_stories else 0, shared.integer("stories"))]
    make_small_model(folder, tokenizer_texts, kind, model, seeds.integer("weights"))
    if story_texts:
        from llmrl.llms.local.small import train_on_texts

        losses = train_on_texts(folder, story_texts, model.pretraining_steps, seeds.integer("reading"))
        log.info("loss on held-out stories: %.3g nats per token before training, %.3g after", *losses)


def make_chat_for_env(folder: Path, config: Config, model: SmallChat) -> None:
    """Write a small chat model that knows the format of the replies of a player, or of a proposer of a policy search.

    Args:
        folder: folder to write; missing or empty.
        config: `env`, `agent`, `principal`, `prompts`, `search` or `dataset`, and `trusted_modules` of a resolved
            config.
        model: settings of the model; without a seed, 0 is used.

    Raises:
        Incompatible: neither the agent nor the proposer of a policy asks a chat model.
        ConfigError: the numbers do not fit each other.
    """
    from llmrl.chat_learning.format_training import train_format
    from llmrl.experiment.build_env import build_env
    from llmrl.llms.local.small import make_small_model

    shared, seeds = Seeds(0).child("small models"), Seeds(model.seed or 0).child("small model")
    builder = Builder(trusted=config["trusted_modules"])
    env = build_env(_env_options(config), builder.replace_services(EnvServices(shared.child("env"))))
    try:
        exchanges = (_player_exchanges if _is_player(config) else _proposer_exchanges)(config, env, builder, shared)
    finally:
        env.close()
    texts = [text for messages, reply in exchanges for text in (messages[-1]["content"], reply)]
    make_small_model(folder, texts, "chat", model, seeds.integer("weights"))
    steps, learning_rate = model.format_steps, model.format_learning_rate
    loss = train_format(folder, exchanges, steps, learning_rate, seeds.integer("reading"))
    log.info("the model has learned the format of replies: %.3g nats per token", loss)


def _is_player(config: Config) -> bool:
    """Return whether the agent asks the chat model."""
    agent = config.get("agent")
    return agent is None or Builder(trusted=config.get("trusted_modules", ())).needs(agent, "llm", "agent")


def _player_exchanges(config: Config, env: VecEnv, builder: Builder, seeds: Seeds) -> list[Exchange]:
    """Return exchanges of an agent with random legal replies."""
    import torch

    from llmrl.chat_learning.format_training import RandomLegalChat
    from llmrl.rollout.collector import Collector

    chat = RandomLegalChat()
    agent = builder.replace_services(_agent_services(config, env, seeds, chat)).build(config["agent"], "agent")
    collector = Collector(env, agent.policy, "cpu")
    collector.reset(seeds.integer("games"))
    generator = torch.Generator().manual_seed(seeds.integer("actions"))
    for _ in range(_N_STEPS):
        collector.collect(1, generator, learn=False)
        if len(chat.exchanges) >= _MAX_EXCHANGES:
            break
    return chat.exchanges


def _proposer_exchanges(config: Config, env: VecEnv, builder: Builder, seeds: Seeds) -> list[Exchange]:
    """Return exchanges of a proposer in searches whose proposals and returns are random numbers.

    Raises:
        Incompatible: the principal asks no chat model, or the agent has no parameters to propose.
    """
    from llmrl.chat_learning.format_training import RandomProposals

    services = _agent_services(config, env, seeds, None)
    controller = None
    if config["principal"]["_target_"] is not None and builder.needs(config["principal"], "llm", "principal"):
        agent = builder.replace_services(services).build(config["agent"], "agent")
        controller = getattr(agent, "controller", None)
    if controller is None:
        raise Incompatible(
            IncompatibilityReason.MODEL,
            "llm=small_chat learns the format of replies from the part that asks it; use agent=llm_player, or "
            "principal=llm with an agent whose parameters it can search, such as agent=linear",
        )
    space, rng, size = controller.space, seeds.numpy("proposals"), _search_size(config)
    chat = RandomProposals(space, rng)
    principal_services = PrincipalServices.from_agent(services, llm=chat, space=space, controller=controller)
    principal = builder.replace_services(principal_services).build(config["principal"], "principal")
    principal.on_search_start(size["iterations"], size["episodes"])
    initial = principal.state_dict()
    while len(chat.exchanges) < _MAX_EXCHANGES:
        principal.load_state_dict(initial)
        simulate_search(principal, **size, max_return=env.spec.max_return, rng=rng)
    return chat.exchanges


def simulate_search(
    principal: LLMSearch,
    iterations: int,
    candidates: int,
    episodes: int,
    max_return: float | None,
    rng: np.random.Generator,
) -> None:
    """Request proposals in some iterations of a search whose proposals and returns are random numbers.

    The first iteration is one of these. In some of them proposals are replaced by fallbacks, as after invalid replies.

    Args:
        principal: proposer without a history.
        iterations: number of iterations of the search, >= 1.
        candidates: number of proposals in each iteration, >= 1.
        episodes: number of returns of each proposal, >= 1.
        max_return: greatest possible return; None: it is unknown.
        rng: random numbers of returns, iterations and the proposals between them.
    """
    from llmrl.core.records import Outcome
    from llmrl.core.unit_cube import from_unit
    from llmrl.principals.llm_principal import FALLBACK_NOTE
    from llmrl.statistics.estimators import standard_error_of_mean

    space, best = principal.space, 100.0 if max_return is None else max_return

    def tell(vectors: np.ndarray) -> None:
        # Some proposals reach the greatest return in all episodes, as at the end of a search.
        levels = rng.uniform(-0.2, 1.2, (len(vectors), 1))
        shares = np.clip(rng.normal(levels, 0.1, (len(vectors), episodes)), 0.0, 1.0)
        returns = (best - (abs(best) or 1.0) * (1.0 - shares**2)).round()
        pairs = zip(vectors, returns, strict=True)
        principal.tell([Outcome(v, float(x.mean()), x, standard_error_of_mean(x)) for v, x in pairs])

    for iteration in sorted({0, *rng.integers(iterations, size=_LATER_ITERATIONS).tolist()}):
        n_missing = candidates * iteration - len(principal.history.records)
        tell(from_unit(space, rng.random((n_missing, space.dim))))
        principal.iteration = iteration
        vectors = principal.ask(n=candidates)
        is_fallback = rng.random(candidates) < rng.choice([0.0, 0.0, 0.5, 1.0])
        vectors[is_fallback] = principal.choose_fallback(None)
        principal.notes = [FALLBACK_NOTE if x else "" for x in is_fallback]
        tell(vectors)


def _search_size(config: Config) -> dict[str, Any]:
    """Return the size of the search that prompts state; for `llmrl-finetune`, that of the dataset."""
    section = {"candidates": 1} | (config.get("dataset") or {}) | (config.get("search") or {})
    return {name: section.get(name) for name in ("iterations", "candidates", "episodes")}


def _agent_services(config: Config, env: VecEnv, seeds: Seeds, chat: RandomLegalChat | None) -> AgentServices:
    return AgentServices(
        spec=env.spec,
        seeds=seeds.child("agent"),
        env_factory=getattr(env, "env_factory", None),
        llm=chat,
        prompt_folder=None if config.get("prompts") is None else Path(config["prompts"]).expanduser(),
    )


def _env_options(config: Config) -> dict[str, Any]:
    """Return the options of the environment whose texts are read, with `_N_GAMES` games."""
    node = dict(config["env"])
    return {**node, "n_envs": _N_GAMES} if "n_envs" in node else node


def _collect_texts(env: VecEnv, channel: str, seeds: Seeds) -> list[str]:
    """Return different texts that random play encounters, and the names of the actions."""
    from llmrl.core.protocols import ChannelsOnRequest

    channel_space = env.spec.observation.get(channel)
    if channel_space is None or channel_space.dtype != "object":
        problem = f"env={env.spec.name} has no text channel {channel!r}"
        texts = [name for name, space in env.spec.observation.items() if space.dtype == "object"]
        if texts:
            raise ConfigError(f"{problem}, but {', '.join(texts)}: set llm.make.channel={texts[0]}")
        raise Incompatible(
            IncompatibilityReason.INTERFACE, f"{problem}; use an environment of texts, e.g. env=babyai_text"
        )
    if isinstance(env, ChannelsOnRequest):
        env.provide((channel,))
    rng = seeds.numpy("actions")
    n_actions = env.spec.require_discrete_actions("a small model that scores actions")
    unique_texts: dict[str, None] = {}
    observation = env.reset(seed=seeds.integer("games"))
    for _ in range(_N_STEPS):
        unique_texts |= dict.fromkeys(str(text) for text in np.asarray(observation[channel], dtype=object).ravel())
        step = env.step(rng.integers(n_actions, size=(env.spec.n_envs, env.spec.n_agents)))
        is_done = np.asarray(step.terminated) | np.asarray(step.truncated)
        observation = env.reset(mask=is_done) if is_done.any() else step.observation
    # Actions in the form in which a model scores them, alone and at the end of a text.
    action_texts = env.spec.continuations(channel)
    last_lines = [text.rpartition("\n")[2] for text in unique_texts]
    scored_texts = (text for name in action_texts for line in last_lines for text in (name.strip(), f"{line}{name}"))
    return [*unique_texts, *scored_texts]
