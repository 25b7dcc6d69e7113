"""Computation of several runs in one process, and the keys that are equal for runs that may share a process.

Each run has its own thread, while the main thread plays games and updates agents for all of them
(`llmrl.loops.batched_executor`). Either the games and updates of the runs are computed as one batch, or each run plays
and learns separately, which still saves the memory and start of a process. Keys are computed from a resolved config
and class attributes of its parts, before the parts are built.
"""

from __future__ import annotations

import contextvars
import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any

from llmrl.config.builder import Builder, Config
from llmrl.config.input_digests import SOURCES_DIGEST_KEY
from llmrl.config.loop_sections import get_loop_kind
from llmrl.core.errors import ConfigError
from llmrl.experiment.config_completion import OBJECTIVE_KEYS, groups_using_model
from llmrl.experiment.experiment import get_application
from llmrl.experiment.resources import RunResources
from llmrl.experiment.run_job import compute_job
from llmrl.loops.batched_executor import BatchedExecutor, RunConnection
from llmrl.run.command_exit import EXIT_FAILED
from llmrl.run.config_hash import EXCLUDED_KEYS, RESOLVED_RUNS_KEY
from llmrl.run.signals import MAX_STOP_S, StopFlag, WorkDiscarded
from llmrl.sweeps.backends.protocol import Hardware
from llmrl.sweeps.machine import Machine
from llmrl.sweeps.payload import RunExit, RunPayload

_PROCESS_KEYS = ("hardware", "loggers", "output_root", "private", "trusted_modules")
"""Keys of a config that affect its whole process: threads and precision of torch, environment variables that libraries
of loggers read, modes of files, and permission to import code."""


def compute_batch(payloads: Sequence[RunPayload]) -> list[RunExit]:
    """Compute runs together in this process; return the exit of each run, in order.

    An error of one run (an exception, an exhausted budget, weights that are not finite) ends that run only. After a
    signal, every run saves a checkpoint and stops. Call this in the main thread, after `RunPayload.prepare`.

    Args:
        payloads: runs with equal batch keys; no fine-tuning runs, and no runs that use global random generators.
    """
    if len(payloads) == 1:
        return [payloads[0].execute_and_capture_exit(compute_job)]
    with suppress(ConfigError):  # each run raises this error again, in its own thread
        _ = RunResources(payloads[0].config).device  # sets the number of torch's threads for the main thread

    def build_error() -> WorkDiscarded:
        assert stop.signal is not None
        return WorkDiscarded(stop.signal)

    stop = StopFlag(f"saving and stopping all runs, within {MAX_STOP_S} s; a second Ctrl-C stops at once", build_error)
    executor = BatchedExecutor()
    exits = [RunExit(payload.folder, EXIT_FAILED, "its thread has ended without a result") for payload in payloads]

    def compute_in_thread(index: int, payload: RunPayload, connection: RunConnection) -> None:
        try:
            label = f"{payload.folder.parent.name}/{payload.folder.name}"
            stop.lead_calling_thread()
            exits[index] = payload.execute_and_capture_exit(partial(compute_job, connection=connection, label=label))
        finally:
            connection.close()

    with stop:
        threads = []
        for index, payload in enumerate(payloads):
            context = contextvars.copy_context()
            run_in_thread = partial(compute_in_thread, index, payload, executor.connect(payload.batch_key))
            threads.append(threading.Thread(target=context.run, args=(run_in_thread,), name=payload.folder.name))
        _run_threads(executor, threads)
    return exits


def _run_threads(executor: BatchedExecutor, threads: Sequence[threading.Thread]) -> None:
    """Start the threads, answer their requests, and join them; raise an exception of this thread in every run."""
    error: BaseException | None = None
    while True:
        try:
            if error is not None:
                executor.fail_all_requests(error)
            for thread in threads:
                if thread.ident is None:
                    thread.start()
            # Also after an error: until Python 3.12, an exception of a signal handler during a join marks the running
            # thread as ended (bpo-45274).
            executor.run()
            for thread in threads:
                thread.join()
            return
        except BaseException as raised_error:  # noqa: BLE001 (it is raised in every run)
            error = raised_error


def compute_process_key(config: Mapping[str, Any]) -> str:
    """Return a text that is computed from a resolved config and is equal for all runs that may share a process.

    Their environment variables (`RunPayload.environment`) must be equal, too.
    """
    return json.dumps([get_application(config).command, *(config.get(key) for key in _PROCESS_KEYS)], sort_keys=True)


class SeparateProcessReason(StrEnum):
    """Reasons why a run does not share a process with other runs, as texts for a table."""

    LOOP = "only the loops design, learn and search can share a process"
    NO_GAIN = "it plays by itself, so sharing saves no time (hardware.rows=<n> or hardware.jobs=<n> share all the same)"
    META_GRADIENT = "its principal differentiates the agents' learning (principal=metagrad)"
    AGENT = "its agents do not learn by PPO alone"
    MEMORY = "its networks are recurrent (agent.memory)"
    TEACHER = "a teacher advises its agents"
    KL = "its updates stop by KL (agent.ppo.target_kl)"
    SCALED_REWARDS = "its rewards are scaled (agent.ppo.scale_rewards)"
    GAMES = "games of its environment are not batched"
    MODEL = "its language model is loaded into its process"
    PROCESSES = "several processes compute it together"
    GPU = "it has a GPU"
    THREADS = "it computes with several threads (hardware.threads), so its sums would depend on the other runs"


PER_RUN_SETTINGS = (
    *("learning_rate", "final_learning_rate", "decay_updates", "adam_eps", "gamma", "gae_lambda", "clip", "value_clip"),
    *("entropy_coefficient", "value_coefficient", "max_grad_norm", "advantage_eps"),
)
"""Settings of PPO that may differ between rows (the runs that share a process) if they are numbers in all rows."""

_PER_RUN_KEYS = (
    *(key for key in EXCLUDED_KEYS if "." not in key and key != "observers"),  # keys that are not part of a run's hash
    *("principal", "llm", "prompts_digest", "adapter_digest", SOURCES_DIGEST_KEY, RESOLVED_RUNS_KEY),
)
"""Keys that may differ between rows, because each row has its own proposer, language model, folder and seeds.
`_PROCESS_KEYS` are compared separately (`compute_process_key`)."""
_PER_RUN_DESIGN_KEYS = ("steps", *OBJECTIVE_KEYS)
"""Keys of `design` that may differ between rows: the number of principal steps, and the objective."""

_N_OBSERVATION_COPIES = 3
"""Number of copies of a rollout's observations in memory: the rollout, the minibatches, and inputs of networks."""
_AGENT_STEP_BYTES = 8 * 4
"""Bytes that a rollout holds for a step of an agent besides its observation: action, reward, value and so on."""
_FIXED_ROW_GB = 0.05
"""Other memory of a row, gigabytes: agents and their optimizers, a checkpoint during its writing, logs."""


def find_batch_key(config: Config, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the key of a run: runs with equal keys may be rows of one process. None if the run cannot be a row.

    `find_separate_process_reason` gives the reason for None. Keys of all runs depend on the kind of loop, on
    `_PROCESS_KEYS` and on environment variables; those of the loop `design` also depend on all other settings except
    `PER_RUN_SETTINGS`, `_PER_RUN_KEYS`, `_PER_RUN_DESIGN_KEYS` and initial weights.

    Args:
        config: resolved config as plain data, of `llmrl-train` or `llmrl-finetune`.
        environment: environment variables to set in the run's process.

    Raises:
        ConfigError: a part cannot be found.
    """
    if find_separate_process_reason(config) not in (None, SeparateProcessReason.NO_GAIN):
        return None
    kind = get_loop_kind(config)
    loop_settings = _select_batch_settings(config) if kind == "design" else {"loop": kind}
    settings = {**loop_settings, "process": compute_process_key(config), "environment": dict(environment or {})}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _select_batch_settings(config: Config) -> dict[str, Any]:
    """Return the settings that must be equal for runs whose games and updates are computed as one batch."""
    agent = {name: value for name, value in config["agent"].items() if name != "init_from_seed"}
    agent["init_from"] = agent.get("init_from") is not None
    [ppo_option] = _list_ppo_options(config)
    agent[ppo_option] = {
        name: "a number" if name in PER_RUN_SETTINGS and value is not None else value
        for name, value in agent[ppo_option].items()
    }
    design = {name: value for name, value in config["design"].items() if name not in _PER_RUN_DESIGN_KEYS}
    common = {name: value for name, value in config.items() if name not in _PER_RUN_KEYS}
    return {**common, "agent": agent, "design": design}


def find_separate_process_reason(config: Config) -> SeparateProcessReason | None:
    """Return the reason why a run has a process of its own; None if sharing a process with other runs saves time.

    With `SeparateProcessReason.NO_GAIN` it can share one, but that saves no time. For `config` see `find_batch_key`.

    Raises:
        ConfigError: a part cannot be found.
    """
    kind = None if "method" in config else get_loop_kind(config)
    if kind not in ("design", "learn", "search"):
        return SeparateProcessReason.LOOP
    builder = Builder(trusted=config["trusted_modules"])
    principal = config["principal"].get("_target_")
    if principal is not None and getattr(builder.locate(principal, "principal"), "needs_gradient", False):
        return SeparateProcessReason.META_GRADIENT
    if config["teacher"].get("_target_") is not None:
        return SeparateProcessReason.TEACHER
    reason = None if kind == "search" else _find_agent_separation_reason(config, builder, is_batched=kind == "design")
    if reason is not None:
        return reason
    # This optional attribute of environments returns None if games of several runs cannot be one batch.
    observation_bytes = getattr(builder.locate(config["env"]["_target_"], "env"), "observation_bytes", None)
    has_unbatchable_games = observation_bytes is not None and observation_bytes(config["env"]) is None
    if has_unbatchable_games or (kind == "design" and observation_bytes is None):
        return SeparateProcessReason.GAMES
    uses_model = groups_using_model(config)
    if uses_model and builder.needs(config["llm"], "device", "llm"):
        return SeparateProcessReason.MODEL
    hardware: Hardware = builder.build(config["hardware"], "hardware")
    if hardware.backend.processes > 1:
        return SeparateProcessReason.PROCESSES
    if (hardware.threads or hardware.cores or 0) != 1:
        return SeparateProcessReason.THREADS
    # For `hardware.device=auto`, a run has a GPU if this machine has one.
    if hardware.device not in ("auto", "cpu") or (
        hardware.device == "auto" and hardware.gpus > 0 and Machine.detect().gpu_ids
    ):
        return SeparateProcessReason.GPU
    # The requests of several runs to a language model are answered concurrently, which saves time.
    return None if kind == "design" or uses_model else SeparateProcessReason.NO_GAIN


def estimate_row_gb(config: Config) -> float | None:
    """Return the approximate memory, in gigabytes, that a process needs for one more run (row).

    None if this run takes as much memory as a process, or if the size of an observation or a rollout is unknown.

    Args:
        config: resolved config of a run for which `find_batch_key` returns a key.
    """
    if get_loop_kind(config) != "design":
        return None
    env, design = config["env"], config["design"]
    builder = Builder(trusted=config["trusted_modules"])
    observation_bytes = getattr(builder.locate(env["_target_"], "env"), "observation_bytes", None)
    steps = design["rollout_steps"] or env.get("horizon")
    if observation_bytes is None or steps is None or not {"n_envs", "n_agents"} <= env.keys():
        return None
    agent_steps = env["n_envs"] * steps * env["n_agents"]
    rollout_bytes = _N_OBSERVATION_COPIES * agent_steps * (observation_bytes(env) + _AGENT_STEP_BYTES)
    return float(_FIXED_ROW_GB + rollout_bytes / 1e9)


def _find_agent_separation_reason(config: Config, builder: Builder, is_batched: bool) -> SeparateProcessReason | None:
    """Return why agents cannot learn in a shared process (if `is_batched`, in a batch of runs); None if they can."""
    from llmrl.algorithms.ppo import PPOSettings

    node = config["agent"]
    agent = builder.locate(node["_target_"], "agent")
    learner_class = next((base for base in getattr(agent, "__mro__", ()) if "learner" in vars(base)), None)
    options = _list_ppo_options(config)
    if learner_class is None or agent.update is not learner_class.update or len(options) != 1:
        return SeparateProcessReason.AGENT
    if not is_batched:
        return None
    memory_option = getattr(agent, "memory_option", None)
    if memory_option is not None and node.get(memory_option) is not None:
        return SeparateProcessReason.MEMORY
    settings: PPOSettings = builder.build(node[options[0]], f"agent.{options[0]}")
    if settings.target_kl is not None:
        return SeparateProcessReason.KL
    return SeparateProcessReason.SCALED_REWARDS if settings.scale_rewards else None


def _list_ppo_options(config: Config) -> list[str]:
    """Return the names of the agent's options that contain settings of PPO (`PPOSettings`)."""
    from llmrl.algorithms.ppo import PPOSettings

    builder = Builder(trusted=config["trusted_modules"])
    nodes = {name: node for name, node in config["agent"].items() if isinstance(node, Mapping) and node.get("_target_")}
    return [name for name, node in nodes.items() if builder.locate(node["_target_"], f"agent.{name}") is PPOSettings]
