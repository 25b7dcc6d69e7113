"""An experiment as an object: composed, checked, planned, built once and run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from llmrl.core.privacy import kept_private
from llmrl.core.processes import Processes
from llmrl.experiment.application import Application, Rows
from llmrl.experiment.loggers import build_loggers
from llmrl.experiment.means import Means
from llmrl.loops.requests import Seat
from llmrl.run.folder import config_hash, find_folder
from llmrl.run.run import Run
from llmrl.run.sinks.sink import Sink


class Experiment:
    """What one run is computed from: a resolved config and the seed in it, and the words it was typed in.

    >>> Experiment.compose("env=escape_room", "principal=ucb", "seed=1").config["seed"]
    1

    Attributes:
        config: resolved, plain containers, with digests of the files that decide results.
        overrides: what was typed for it; the run's folder is named after these.
        application: what is asked of it, training or fine-tuning.
        means: what it is computed with, made when it is first needed.

    Args:
        config: resolved, plain containers; digests in it, if any, are held against the files as they are now.
        overrides: what was typed for it.
        seat: where its requests to play and to update are answered, of a run beside others in one process; None: in
            its own thread.

    Raises:
        ConfigError: a file that decides results is not there, or has changed since the digests were taken.
    """

    def __init__(self, config: Mapping[str, Any], overrides: Iterable[str] = (), seat: Seat | None = None) -> None:
        self.application = application_of(config)
        self.config = self.application.with_digests(dict(config))
        self.overrides = list(overrides)
        self.means = Means(self.config, self.application.make_model, seat)

    @classmethod
    def compose(cls, *overrides: str, primary: str = "train", config_dirs: Sequence[str | Path] = ()) -> Experiment:
        """Compose the experiment of a command line, in any process, without Hydra's command line.

        Args:
            overrides: as they are typed after `llmrl-train`.
            primary: `train`, or `finetune` for those of `llmrl-finetune`.
            config_dirs: folders of own options (`--config-dir`).

        Raises:
            ConfigError: there is no such option, key or value, or one holds a secret or code that is not trusted.
        """
        from llmrl.experiment.composition import composed

        with composed(primary, overrides, config_dirs) as config:
            return cls.of_hydra(config)

    @classmethod
    def of_hydra(cls, config: DictConfig) -> Experiment:
        """Resolve what Hydra has composed; Hydra's own config must be set.

        Raises:
            ConfigError: a value is missing, a part cannot be found, a file says which code is to be trusted, or the
                treatment is none of the study's.
        """
        from hydra.core.hydra_config import HydraConfig

        from llmrl.config.treatments import check_treatment
        from llmrl.config.trusting import only_typed
        from llmrl.experiment.composition import plain_config

        hydra_config = HydraConfig.get()
        overrides = list(hydra_config.overrides.task)
        folders = [Path(source.path) for source in hydra_config.runtime.config_sources if source.schema == "file"]
        check_treatment(hydra_config.runtime.choices, folders)
        plain = only_typed(plain_config(config), overrides)
        typed = {override.lstrip("+~").partition("=")[0] for override in overrides}
        choices = hydra_config.runtime.choices
        named = [f"{group}={choices[group]}" for group in application_of(plain).named(plain) if group not in typed]
        return cls(plain, [*overrides, *named])

    @property
    def command(self) -> str:
        """The console script that it belongs to."""
        return self.application.command

    @property
    def seed(self) -> int:
        """Root of every random number of the run."""
        return int(self.config["seed"])

    @cached_property
    def hash(self) -> str:
        """8 hexadecimal digits that tell experiments apart, whatever their seed (`run.folder.config_hash`)."""
        return config_hash(self.config)

    @property
    def folder(self) -> Path:
        """Where the run is, or would be.

        Raises:
            RunFolderError: there can be no such folder.
        """
        root, name = Path(self.config["output_root"]), self.config["name"]
        return find_folder(root, name, self.hash, self.overrides, self.seed)

    @cached_property
    def sinks(self) -> dict[str, Sink]:
        """Where the run's metrics go beside `metrics.jsonl`, by the names of their options; none is open.

        Raises:
            ConfigError: one needs a library that is not installed, or a key.
        """
        return build_loggers(self.config)

    def check(self) -> None:
        """Refuse what can be refused before a folder is made: values, and for a run that is to begin here its device
        and language model. What is wrong with the means of a run that has a folder is recorded there.

        Raises:
            ConfigError, LLMError, RunFolderError: what is wrong, and what would work.
        """
        self.application.check_values(self.config, self.means)
        if not self.config["dry_run"] and not self.folder.exists():
            _ = self.sinks  # what they need is there
            self.means.check()

    def plan(self) -> Rows:
        """Build every part, and return what a run would do: shapes, steps, calls of a language model, and their cost.

        Raises:
            LlmrlError: the parts cannot work together.
        """
        try:
            return self.application.plan(self.config, self.means)
        finally:
            self.means.close()

    def run(self) -> Run:
        """Run it, go on with it, or find it finished, in its folder; returns the run, which is closed.

        Whether an earlier attempt had finished it is `run.finished`; its number is `run.result`.

        Raises:
            LlmrlError: it failed; the folder says why.
            Stopped: a signal asked to stop; everything is saved.
        """
        try:
            with ExitStack() as until_it_is_written:
                until_it_is_written.enter_context(kept_private(self.config.get("private", True)))
                with self._open() as run:
                    try:
                        if not run.finished:
                            self.application.compute(self.config, self.means, run, self._compute_needed)
                    finally:
                        until_it_is_written.enter_context(self.means.away())
        finally:
            self.means.close()
        return run

    def _compute_needed(self, config: Mapping[str, Any], overrides: Sequence[str]) -> None:
        """Compute a run that this one needs, which waits meanwhile."""
        seat = self.means.seat
        with nullcontext() if seat is None else seat.apart():
            Experiment(config, overrides, seat).run()

    def _open(self) -> Run:
        """Open the run's folder, or follow the process of this run that does."""
        from llmrl.run.joint import open_run

        def first() -> Run:
            return Run.open(
                Path(config["output_root"]),
                config["name"],
                config,
                self.overrides,
                self.seed,
                resume=config["resume"],
                rerun=config["rerun"],
                checkpoint_every_s=config["checkpoint_seconds"],
                digest=self.hash,
                sinks=lambda: self.sinks,
            )

        config = self.config
        return open_run(Processes.join(), config, self.seed, first)


def application_of(config: Mapping[Any, Any]) -> Application:
    """Return the application of a config, composed or resolved: what has a method of training fine-tunes."""
    if "method" in config:
        from llmrl.experiment.finetuning import FineTuning

        return FineTuning()
    from llmrl.experiment.training import Training

    return Training()
