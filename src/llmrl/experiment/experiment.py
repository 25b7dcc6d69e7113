"""The class `Experiment`: composes the config of a run, checks it, plans it and runs it."""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from llmrl.config.builder import Config
from llmrl.config.debugging import apply_debug_sizes
from llmrl.config.overrides import get_override_key
from llmrl.config.permissions import check_permissions, with_permissions
from llmrl.config.run_options import check_run_options
from llmrl.config.treatments import check_treatment
from llmrl.core.privacy import create_files_privately
from llmrl.core.processes import ProcessGroup
from llmrl.core.secrets import check_no_secrets
from llmrl.experiment.application import Application, PlanRows
from llmrl.experiment.resources import RunResources
from llmrl.run.config_hash import config_hash
from llmrl.run.distributed import open_run
from llmrl.run.folder import find_run_folder
from llmrl.run.run import Run

if TYPE_CHECKING:
    from llmrl.loops.batched_executor import RunConnection


class Experiment:
    """A resolved config with a seed, and the overrides from which it was composed.

    >>> Experiment.compose("env=escape_room", "principal=ucb", "seed=1").config["seed"]
    1

    Attributes:
        config: resolved config in plain containers, with digests of the files that results depend on.
        overrides: Hydra overrides as typed; they determine the label of the run folder.
        application: training of agents, or fine-tuning of a language model.
        environment: environment variables to set in the process of the run.
        resources: device, cores and language model of the run, each created on first use.

    Args:
        config: resolved config in plain containers; digests in it, if any, are compared with the current files.
        overrides: Hydra overrides as typed.
        connection: connection to an executor that several runs of this process share; None: the run answers its own
            requests.
        environment: environment variables to set in the process of the run.

    Raises:
        ConfigError: an option of the run has the wrong type or is out of range, a file that results depend on is
            missing, or has changed since its digest was taken, or the config lacks a permission that it needs
            (`llmrl.config.permissions`).
    """

    def __init__(
        self,
        config: Config,
        overrides: Iterable[str] = (),
        connection: RunConnection | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        check_run_options(config)
        self.application = get_application(config)
        self.config = self.application.complete_config(dict(config))
        check_permissions(self.config)
        self.overrides = list(overrides)
        self.environment = dict(environment or {})
        self.resources = RunResources(self.config, self.application.make_model, connection)

    @classmethod
    def compose(cls, *overrides: str, primary: str = "train", config_dirs: Sequence[str | Path] = ()) -> Experiment:
        """Compose an experiment from overrides, without Hydra's command line.

        Args:
            overrides: Hydra overrides, as typed after `llmrl-train`.
            primary: name of the primary config: `train`, or `finetune` for the overrides of `llmrl-finetune`.
            config_dirs: folders with option files of the user (`--config-dir`).

        Raises:
            ConfigError: an unknown option, key or value, or a secret in the config.
        """
        from llmrl.experiment.composition import compose_config

        with compose_config(primary, overrides, config_dirs) as config:
            return cls.from_hydra(config)

    @classmethod
    def from_hydra(cls, config: DictConfig) -> Experiment:
        """Create the experiment of a config that Hydra has composed; `HydraConfig` must be set.

        Raises:
            ConfigError: a value is missing, a part cannot be found, the treatment was not made for the study, or an
                environment variable of the job is a secret.
        """
        from hydra.core.hydra_config import HydraConfig

        from llmrl.experiment.composition import to_plain

        hydra_config = HydraConfig.get()
        choices = hydra_config.runtime.choices
        config_dirs = [Path(source.path) for source in hydra_config.runtime.config_sources if source.schema == "file"]
        check_treatment(choices, config_dirs)
        plain_config = with_permissions(to_plain(config))
        overrides = list(hydra_config.overrides.task)
        override_keys = set(map(get_override_key, overrides))
        overrides += [
            f"{group}={choices[group]}"
            for group in get_application(plain_config).list_label_groups(plain_config)
            if group not in override_keys
        ]
        environment = {str(name): str(value) for name, value in hydra_config.job.env_set.items()}
        check_no_secrets({"hydra": {"job": {"env_set": environment}}})
        return cls(apply_debug_sizes(plain_config, override_keys), overrides, environment=environment)

    def with_seed(self, seed: int) -> Experiment:
        """Return a copy with another seed, without composing and checking the config again.

        Args:
            seed: whole number >= 0. No other value of the config may depend on it.
        """
        _ = self.hash  # compute the cached property, which does not depend on the seed, before it is copied
        experiment = copy.copy(self)
        experiment.config = {**self.config, "seed": seed}
        experiment.overrides = [f"seed={seed}" if get_override_key(x) == "seed" else x for x in self.overrides]
        experiment.resources = RunResources(experiment.config, self.application.make_model, self.resources.connection)
        return experiment

    @property
    def seed(self) -> int:
        """Seed of the run, the root of all its random numbers."""
        return int(self.config["seed"])

    @functools.cached_property
    def hash(self) -> str:
        """Hash of the config without the seed, 8 hexadecimal digits (`run.config_hash`)."""
        return config_hash(self.config)

    @property
    def folder(self) -> Path:
        """The run folder, whether or not it exists.

        Raises:
            RunFolderError: `name` leaves `output_root`, or `output_root` cannot be read.
        """
        return find_run_folder(
            Path(self.config["output_root"]), self.config["name"], self.hash, self.overrides, self.seed
        )

    def check(self) -> None:
        """Check all values of the config and, unless the run folder exists, its sinks, device and language model.

        The latter are not checked for a dry run. If the folder exists, their errors are recorded in it at the start.

        Raises:
            ConfigError, LLMError, RunFolderError: a check failed.
        """
        self.application.check_values(self.config, self.resources)
        if not self.config["dry_run"] and not self.folder.exists():
            # Each property raises an error if a library, a key, the device or the language model is missing.
            _ = self.resources.sinks, self.resources.device, self.resources.checked_model

    def plan(self) -> PlanRows:
        """Build every part and return the plan of the run: shapes, steps, language-model calls and their cost.

        Raises:
            LlmrlError: the parts cannot work together.
        """
        with closing(self.resources):
            return self.application.plan(self.config, self.resources)

    def run(self) -> Run:
        """Start or resume the run in its folder, unless it is finished; return the closed run.

        `run.finished` is true if an earlier attempt finished the run; `run.result` is its scalar result.

        Raises:
            LlmrlError: the run failed; the error is recorded in the folder.
            Stopped: a signal stopped the run; the message contains the progress that was saved.
        """
        with closing(self.resources), ExitStack() as stack:
            stack.enter_context(create_files_privately(self.config.get("private", True)))
            with self._open() as run:
                try:
                    if not run.finished:
                        self.application.compute(self.config, self.resources, run, self._compute_prerequisite)
                finally:
                    stack.enter_context(self.resources.detached())
        return run

    def _compute_prerequisite(self, config: Config, overrides: Sequence[str]) -> None:
        """Compute a run that this run needs, in this thread, without batching it with other runs of the process."""
        connection = self.resources.connection
        with nullcontext() if connection is None else connection.suspend_batching():
            Experiment(config, overrides, connection).run()

    def _open(self) -> Run:
        """Open the run folder in the first process of the run; the other processes get a `WorkerRun` (`open_run`)."""
        config = self.config
        open_in_main_process = functools.partial(
            Run.open,
            Path(config["output_root"]),
            config["name"],
            config,
            self.overrides,
            self.seed,
            config_digest=self.hash,
            make_sinks=lambda: self.resources.sinks,
        )
        return open_run(ProcessGroup.join(), config, self.seed, open_in_main_process)


def get_application(config: Mapping[Any, Any]) -> Application:
    """Return the application of a composed or resolved config: fine-tuning if it has a key `method`, else training."""
    if "method" in config:
        return importlib.import_module("llmrl.finetuning.application").FinetuneApplication()
    from llmrl.experiment.train_application import TrainApplication

    return TrainApplication()
