"""Small language models with vocabularies of an environment, created on first use and stored in the output folder."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import uuid
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.config.builder import Builder, Config
from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.processes import ProcessGroup
from llmrl.core.seeding import Seeds
from llmrl.core.services import AgentServices, EnvServices, PrincipalServices
from llmrl.llms.local.small import SmallChatSettings, SmallModelSettings

if TYPE_CHECKING:
    from llmrl.chat_learning.format_training import Exchange, RandomLegalChat
    from llmrl.core.protocols import VecEnv
    from llmrl.llms.local.loading import ModelKind
    from llmrl.llms.local.small import SmallKind
    from llmrl.principals.llm_search import LLMSearch

log = logging.getLogger(__name__)

_N_COLLECTION_ENVS, _MAX_COLLECTION_STEPS = 16, 100
"""Number of parallel copies of the environment whose texts are collected, and maximum number of steps in each."""
_MIN_EXCHANGES = 2000
"""Number of exchanges (a request with its reply) after which collection of training samples for a chat model ends."""
_MAX_LATER_ITERATIONS = 7
"""Maximum number of iterations of a simulated search, after the first, in which the proposer requests proposals."""


class SmallModels:
    """Factory of the small models of a config, which are stored in `<output_root>/models`.

    Args:
        config: resolved config as a dictionary.
    """

    def __init__(self, config: Config) -> None:
        self._config = config

    def folder(self, kind: SmallKind, model: SmallModelSettings | SmallChatSettings) -> Path:
        """Return the folder of a model with the settings `model`, whether or not the folder exists.

        The name contains a digest of the settings of the model and the environment. For a chat model, the digest also
        includes the agent, the prompts and, if a proposer queries the model, the principal and the size of the search.
        """
        identity_fields: list[Any] = [kind, asdict(self._with_seed(model)), _get_env_options(self._config)]
        if kind == "chat":
            identity_fields += [self._config.get("agent"), self._config.get("prompts")]
            if not _is_queried_by_agent(self._config):
                identity_fields += [self._config.get("principal"), _get_search_size(self._config)]
        digest = hashlib.sha256(json.dumps(identity_fields, sort_keys=True, default=str).encode()).hexdigest()[:12]
        return Path(self._config["output_root"]) / "models" / f"small-{digest}"

    def make(self, kind: SmallKind, model: SmallModelSettings | SmallChatSettings) -> None:
        """Create a model with the settings `model` unless it exists.

        The first process of a run creates it, and the other processes wait. If several runs create it at the same time,
        one copy is kept.

        Raises:
            ConfigError, Incompatible: see `create_model_for_env` and `create_chat_model_for_env`.
        """
        folder, processes = self.folder(kind, model), ProcessGroup.get_joined()
        if processes.is_main and not folder.is_dir():
            self._create(folder, kind, model)
        processes.barrier()

    def _create(self, folder: Path, kind: SmallKind, model: SmallModelSettings | SmallChatSettings) -> None:
        """Create the model in a temporary folder and move it to `folder`."""
        log.info("creating %s: %s", model.label, folder)
        # Folders of `tempfile` can be read by one user only, unlike folders of runs.
        temporary_folder = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}")
        temporary_folder.mkdir(parents=True)
        try:
            seeded_model = self._with_seed(model)
            if isinstance(seeded_model, SmallChatSettings):
                create_chat_model_for_env(temporary_folder, self._config, seeded_model)
            else:
                create_model_for_env(temporary_folder, self._config, kind, seeded_model)  # type: ignore[arg-type]
            if not folder.is_dir():
                temporary_folder.replace(folder)
        except OSError:
            if not folder.is_dir():  # no other run has created it meanwhile
                raise
        finally:
            shutil.rmtree(temporary_folder, ignore_errors=True)

    def _with_seed(self, model: SmallModelSettings | SmallChatSettings) -> SmallModelSettings | SmallChatSettings:
        """Return the settings of the model; a missing seed is replaced by the seed of the run."""
        return replace(model, seed=self._config["seed"]) if model.seed is None else model


def create_model_for_env(folder: Path, config: Config, kind: ModelKind, settings: SmallModelSettings) -> None:
    """Write a small model for the environment of a config.

    Args:
        folder: folder to write to; missing or empty.
        config: `env` and `trusted_modules` of a resolved config.
        kind: architecture.
        settings: settings of the model; without a seed, 0 is used.

    Raises:
        ConfigError: the channel contains no text, `kind` cannot be pretrained, or sizes of layers do not fit together.
        Incompatible: the environment has no text channel at all.
    """
    from llmrl.envs.babyai.pretraining_texts import sample_stories
    from llmrl.experiment.build_env import build_env
    from llmrl.llms.local.small import make_small_model

    if settings.reads != "nothing" and kind != "causal":
        raise ConfigError(
            f"llm.make.reads={settings.reads} needs a causal model, which is trained by next-token prediction; "
            "set llm.make.reads=nothing"
        )
    # The tokenizer does not depend on the run's seed, so weights fit every small model of the same environment.
    tokenizer_seeds, model_seeds = Seeds(0).child("small models"), Seeds(settings.seed or 0).child("small model")
    builder = Builder(EnvServices(tokenizer_seeds.child("env")), config["trusted_modules"])
    with closing(build_env(_get_env_options(config), builder)) as env:
        env_texts = _collect_texts(env, settings.channel, tokenizer_seeds)
    reads_stories = settings.reads != "nothing"
    n_stories, is_informative = (settings.stories if reads_stories else 0), settings.reads == "stories"
    training_stories = sample_stories(n_stories, model_seeds.integer("stories"), informative=is_informative)
    # The tokenizer is built from texts of the environment and from stories, so a word has the same tokens in both.
    tokenizer_stories = sample_stories(len(env_texts) if reads_stories else 0, tokenizer_seeds.integer("stories"))
    make_small_model(folder, [*env_texts, *tokenizer_stories], kind, settings, model_seeds.integer("weights"))
    if training_stories:
        from llmrl.llms.local.small import train_on_texts

        training_seed = model_seeds.integer("reading")
        loss_before, loss_after = train_on_texts(folder, training_stories, settings.pretraining_steps, training_seed)
        log.info("loss on held-out stories: %.3g nats per token, before training %.3g", loss_after, loss_before)


def create_chat_model_for_env(folder: Path, config: Config, settings: SmallChatSettings) -> None:
    """Write a small chat model, trained on valid replies to requests of an agent or of a policy-search proposer.

    Args:
        folder: folder to write to; missing or empty.
        config: `env`, `agent`, `principal`, `prompts`, `search` or `dataset`, and `trusted_modules` of a resolved
            config.
        settings: settings of the model; without a seed, 0 is used.

    Raises:
        Incompatible: neither the agent nor the proposer of a policy search queries a chat model.
        ConfigError: the sizes of the model do not fit each other.
    """
    from llmrl.chat_learning.format_training import train_format
    from llmrl.experiment.build_env import build_env
    from llmrl.llms.local.small import make_small_model

    exchange_seeds, model_seeds = Seeds(0).child("small models"), Seeds(settings.seed or 0).child("small model")
    builder = Builder(trusted=config["trusted_modules"])
    env_builder = builder.replace_services(EnvServices(exchange_seeds.child("env")))
    collect_exchanges = _collect_agent_exchanges if _is_queried_by_agent(config) else _collect_proposer_exchanges
    with closing(build_env(_get_env_options(config), env_builder)) as env:
        exchanges = collect_exchanges(config, env, builder, exchange_seeds)
    texts = [text for messages, reply in exchanges for text in (messages[-1]["content"], reply)]
    make_small_model(folder, texts, "chat", settings, model_seeds.integer("weights"))
    steps, learning_rate = settings.format_steps, settings.format_learning_rate
    loss = train_format(folder, exchanges, steps, learning_rate, model_seeds.integer("reading"))
    log.info("the model has learned the format of replies: loss of %.3g nats per token", loss)


def _is_queried_by_agent(config: Config) -> bool:
    """Return whether the agent queries the chat model; true for a config without an agent."""
    agent = config.get("agent")
    return agent is None or Builder(trusted=config.get("trusted_modules", ())).needs(agent, "llm", "agent")


def _collect_agent_exchanges(config: Config, env: VecEnv, builder: Builder, seeds: Seeds) -> list[Exchange]:
    """Return requests of the agent, each with a random legal reply."""
    import torch

    from llmrl.chat_learning.format_training import RandomLegalChat
    from llmrl.rollout.collector import Collector

    chat = RandomLegalChat()
    agent = builder.replace_services(_build_agent_services(config, env, seeds, chat)).build(config["agent"], "agent")
    collector = Collector(env, agent.policy, "cpu")
    collector.reset(seeds.integer("games"))
    generator = torch.Generator().manual_seed(seeds.integer("actions"))
    for _ in range(_MAX_COLLECTION_STEPS):
        collector.collect(n_steps=1, generator=generator, learn=False)
        if len(chat.exchanges) >= _MIN_EXCHANGES:
            break
    return chat.exchanges


def _collect_proposer_exchanges(config: Config, env: VecEnv, builder: Builder, seeds: Seeds) -> list[Exchange]:
    """Return requests of a policy-search proposer with valid replies; the proposals in both, and returns, are random.

    Raises:
        Incompatible: the principal queries no chat model, or the agent has no parameters to propose.
    """
    from llmrl.chat_learning.format_training import RandomProposalChat

    services = _build_agent_services(config, env, seeds, chat=None)
    controller = None
    if config["principal"]["_target_"] is not None and builder.needs(config["principal"], "llm", "principal"):
        controller = getattr(builder.replace_services(services).build(config["agent"], "agent"), "controller", None)
    if controller is None:
        raise Incompatible(
            IncompatibilityReason.MODEL,
            "llm=small_chat learns the format of replies from the agent or principal that queries it; use "
            "agent=llm_player, or principal=llm with an agent whose parameters it can search, such as agent=linear",
        )
    space, rng, search_size = controller.space, seeds.numpy("proposals"), _get_search_size(config)
    chat = RandomProposalChat(space, rng)
    principal_services = PrincipalServices.from_agent(services, llm=chat, space=space, controller=controller)
    principal = builder.replace_services(principal_services).build(config["principal"], "principal")
    principal.on_search_start(search_size["iterations"], search_size["episodes"])
    initial_state = principal.state_dict()
    while len(chat.exchanges) < _MIN_EXCHANGES:
        principal.load_state_dict(initial_state)
        simulate_search(principal, **search_size, max_return=env.spec.max_return, rng=rng)
    return chat.exchanges


def simulate_search(
    principal: LLMSearch,
    iterations: int,
    candidates: int,
    episodes: int,
    max_return: float | None,
    rng: np.random.Generator,
) -> None:
    """Request proposals in the first and in randomly chosen iterations of a search; other proposals are random vectors.

    Returns are random numbers. Fallbacks replace some requested proposals, as they do in a run after invalid replies.

    Args:
        principal: proposer without a history.
        iterations: number of iterations of the search, >= 1.
        candidates: number of proposals in each iteration, >= 1.
        episodes: number of episodes of each proposal, each with one return, >= 1.
        max_return: greatest possible return; None: unknown, and 100 is used.
        rng: generator of returns, of the chosen iterations and of the random vectors.
    """
    from llmrl.core.records import Outcome
    from llmrl.core.unit_cube import from_unit
    from llmrl.principals.llm_principal import FALLBACK_NOTE
    from llmrl.statistics.estimators import standard_error_of_mean

    space, greatest_return = principal.space, 100.0 if max_return is None else max_return

    def tell_random_returns(vectors: np.ndarray) -> None:
        # Clipping gives some proposals a quality of 1 in every episode: the greatest return, as late in a search.
        mean_qualities = rng.uniform(-0.2, 1.2, (len(vectors), 1))
        qualities = np.clip(rng.normal(mean_qualities, 0.1, (len(vectors), episodes)), 0.0, 1.0)
        returns = (greatest_return - (abs(greatest_return) or 1.0) * (1.0 - qualities**2)).round()
        pairs = zip(vectors, returns, strict=True)
        principal.tell(
            [Outcome(vector, float(scores.mean()), scores, standard_error_of_mean(scores)) for vector, scores in pairs]
        )

    for iteration in sorted({0, *rng.integers(iterations, size=_MAX_LATER_ITERATIONS).tolist()}):
        n_missing = candidates * iteration - len(principal.history.records)
        tell_random_returns(from_unit(space, rng.random((n_missing, space.dim))))
        principal.iteration = iteration
        vectors = principal.ask(n=candidates)
        # No fallbacks in half of the iterations, some in a quarter, and only fallbacks in a quarter.
        is_fallback = rng.random(candidates) < rng.choice([0.0, 0.0, 0.5, 1.0])
        vectors[is_fallback] = principal.choose_fallback(None)
        principal.notes = [FALLBACK_NOTE if replaced else "" for replaced in is_fallback]
        tell_random_returns(vectors)


def _get_search_size(config: Config) -> dict[str, Any]:
    """Return the iterations, candidates and episodes of the policy search or, for `llmrl-finetune`, of the dataset."""
    section = {"candidates": 1} | (config.get("dataset") or {}) | (config.get("search") or {})
    return {name: section.get(name) for name in ("iterations", "candidates", "episodes")}


def _build_agent_services(config: Config, env: VecEnv, seeds: Seeds, chat: RandomLegalChat | None) -> AgentServices:
    return AgentServices(
        spec=env.spec,
        seeds=seeds.child("agent"),
        env_factory=getattr(env, "env_factory", None),
        llm=chat,
        prompt_folder=None if config.get("prompts") is None else Path(config["prompts"]).expanduser(),
    )


def _get_env_options(config: Config) -> dict[str, Any]:
    """Return the options of the environment, with `n_envs`, if it is one of them, set to `_N_COLLECTION_ENVS`."""
    options = dict(config["env"])
    return {**options, "n_envs": _N_COLLECTION_ENVS} if "n_envs" in options else options


def _collect_texts(env: VecEnv, channel: str, seeds: Seeds) -> list[str]:
    """Return the different texts of a channel under random actions, and the texts of the actions."""
    from llmrl.core.protocols import ChannelsOnRequest

    channel_space = env.spec.observation.get(channel)
    if channel_space is None or channel_space.dtype != "object":
        problem = f"env={env.spec.name} has no text channel {channel!r}"
        texts = [name for name, space in env.spec.observation.items() if space.dtype == "object"]
        if texts:
            raise ConfigError(f"{problem}, but {', '.join(texts)}: set llm.make.channel={texts[0]}")
        raise Incompatible(IncompatibilityReason.INTERFACE, f"{problem}; use a text environment, e.g. env=babyai_text")
    if isinstance(env, ChannelsOnRequest):
        env.provide((channel,))
    rng = seeds.numpy("actions")
    n_actions = env.spec.require_discrete_actions("a small model that scores actions")
    unique_texts: dict[str, None] = {}
    observation = env.reset(seed=seeds.integer("games"))
    for _ in range(_MAX_COLLECTION_STEPS):
        unique_texts |= dict.fromkeys(str(text) for text in np.asarray(observation[channel], dtype=object).ravel())
        step = env.step(rng.integers(n_actions, size=(env.spec.n_envs, env.spec.n_agents)))
        is_done = np.asarray(step.terminated) | np.asarray(step.truncated)
        observation = env.reset(mask=is_done) if is_done.any() else step.observation
    # The tokenizer needs each action's text alone and as the continuation of a text, because models score actions so.
    action_texts = env.spec.continuations(channel)
    last_lines = [text.rpartition("\n")[2] for text in unique_texts]
    scored_texts = (text for name in action_texts for line in last_lines for text in (name.strip(), f"{line}{name}"))
    return [*unique_texts, *scored_texts]
