"""Bayesian optimization with a Gaussian process."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.core.state_fields import StateFields
from llmrl.core.threads import hold_process_lock
from llmrl.core.unit_cube import from_unit, to_unit

if TYPE_CHECKING:
    import torch
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.models.gp_regression import SingleTaskGP
    from gpytorch.kernels import Kernel

N_POSTERIOR_SAMPLES = 128
"""Number of quasi-random joint posterior samples over which acquisition values are averaged."""
N_RESTARTS, N_RAW_SAMPLES, MAX_OPTIMIZER_ITERATIONS = 4, 128, 50
"""Gradient ascents of the acquisition function per proposal, points from which their starts are chosen, and maximum
number of iterations of an ascent."""
FIT_OPTIONS = {"ftol": 1e-6}
"""Options of the optimizer of hyperparameters: relative change of the log posterior density at which it stops."""


class GaussianProcessPrincipal(StateFields):
    """Principal that fits a Gaussian process to all outcomes and maximizes an acquisition function.

    The acquisition function is the log noisy expected improvement: over the highest mean, which is unknown, of the
    vectors measured in the context (Letham et al. 2019; logarithm by Ament et al. 2023, arXiv 2310.20708).

    The model is refitted at every `ask`, so the state contains no model. The model has a constant mean, a squared
    exponential kernel with one length scale per parameter, and homoscedastic noise. All hyperparameters are maximum a
    posteriori estimates under the dimension-scaled prior of Hvarfner et al. 2024 (arXiv 2402.02229), which works in
    tens of dimensions. Vectors are scaled to the unit cube, values standardized. The kernel is multiplied by a kernel
    of contexts, which is 1 for equal and exp(-1 / l^2) for different contexts, with l fitted (Krause & Ong 2011,
    Contextual Gaussian Process Bandit Optimization, section 5).

    The proposals of a step are chosen one after another, each given the previous ones (Wilson et al. 2018, Maximizing
    acquisition functions for Bayesian optimization, section 3.2).

    Args:
        space: parameter space of the proposals.
        seeds: seed tree.
        initial: number of outcomes, over all contexts, before the first fit; until then, points of a scrambled Sobol
            sequence are proposed, one sequence per context. None: 2 (d + 1), at most 10.

    Raises:
        ConfigError: BoTorch is missing.
    """

    _state_fields = ("n_proposed", "rows", "vectors", "values", "model_metrics")

    parallel = True
    learns_from_others = True

    def __init__(self, space: ParameterSpace, seeds: Seeds, initial: PositiveInt | None = None) -> None:
        try:
            import botorch  # noqa: F401
        except ModuleNotFoundError as error:
            raise ConfigError("principal=gp needs BoTorch: pip install 'llmrl[search]'") from error
        self.space, self.seeds = space, seeds.child("principal")
        self.n_initial = min(2 * (space.dim + 1), 10) if initial is None else initial
        self.n_proposed = [0] * space.n_context_rows
        self.rows: list[int] = []  # context row, vector [d] in the unit cube, and value of each outcome
        self.vectors: list[np.ndarray] = []
        self.values: list[float] = []
        self.model_metrics: dict[str, float] = {}  # predictions of the last `ask`, which `tell` returns

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        row = self.space.find_context_row(context)
        if len(self.values) < self.n_initial:
            unit_vectors, self.model_metrics = self._draw_sobol_points(row, n), {}
        else:
            unit_vectors, self.model_metrics = self._maximize_acquisition(row, n)
        self.n_proposed[row] += n
        return from_unit(self.space, unit_vectors)

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Add outcomes and return metrics with the prefix `principal/`; none before the first fit.

        They are predicted_objective (posterior mean of the proposals before their outcomes were added) and noise
        (standard deviation of an outcome), both in units of the objective.
        """
        for outcome in outcomes:
            self.rows.append(self.space.find_context_row(outcome.context))
            self.vectors.append(to_unit(self.space, outcome.vector))
            self.values.append(outcome.value)
        return {f"principal/{name}": value for name, value in self.model_metrics.items()}

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the measured vectors of a context with the highest posterior means, best first, [<= n, d].

        Before the first fit, the order is that of the pooled estimates. The state of the search does not change.

        Args:
            context: index of the context; None: there are no contexts.
            n: maximum number of vectors, >= 1.
            estimates: pooled measurements so far.
        """
        vectors = np.array([estimate.vector for estimate in estimates.ranked(context)]).reshape(-1, self.space.dim)
        if len(vectors) and len(self.values) >= self.n_initial:
            # A stable sort, so that equal means keep the order of the estimates.
            means = self._compute_posterior_means(self.space.find_context_row(context), vectors)
            vectors = vectors[np.argsort(-means, kind="stable")]
        return vectors[:n]

    def _draw_sobol_points(self, row: int, n: int) -> np.ndarray:
        """Return the next points of the Sobol sequence of a context, [n, d]."""
        import torch
        from torch.quasirandom import SobolEngine

        seed = self.seeds.child("initial").integer(row)
        engine: Any = SobolEngine(self.space.dim, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
        engine.fast_forward(self.n_proposed[row])
        return engine.draw(n, dtype=torch.float64).numpy()

    def _maximize_acquisition(self, row: int, n: int) -> tuple[np.ndarray, dict[str, float]]:
        """Return the maximizers of the acquisition function in the unit cube, [n, d], and the metrics of `tell`."""
        import torch
        from botorch.exceptions.warnings import BotorchWarning
        from botorch.optim.optimize import optimize_acqf
        from botorch.utils.sampling import manual_seed

        seed = self.seeds.child("step").child(row).integer(self.n_proposed[row])
        context_features = {self.space.dim + i: float(i == row) for i in range(len(self.space.contexts))}
        # BoTorch draws from torch's global generator, whose state `manual_seed` restores. The ignored warnings report
        # ascents that end early where the acquisition function is flat up to rounding; their results are usable.
        with hold_process_lock(), manual_seed(seed), warnings.catch_warnings():
            warnings.simplefilter("ignore", BotorchWarning)
            warnings.simplefilter("ignore", RuntimeWarning)
            model = self._fit_model()
            candidates, _ = optimize_acqf(
                self._build_acquisition(model, row, seed),
                torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, self.space.dim + len(context_features)),
                q=n,
                num_restarts=N_RESTARTS,
                raw_samples=N_RAW_SAMPLES,
                fixed_features=context_features or None,
                sequential=True,
                options={"maxiter": MAX_OPTIMIZER_ITERATIONS},
                retry_on_optimization_warning=False,
            )
            with torch.no_grad():
                predicted_value = float(model.posterior(candidates).mean.mean())
                noise = float(model.likelihood.noise.mean().sqrt())
        mean, scale = self._compute_value_moments()
        model_metrics = {"predicted_objective": mean + scale * predicted_value, "noise": scale * noise}
        return candidates[:, : self.space.dim].numpy(), model_metrics

    def _compute_posterior_means(self, row: int, vectors: np.ndarray) -> np.ndarray:
        """Return the posterior means, [n], of vectors [n, d] in a context, in units of standardized values."""
        import torch
        from botorch.utils.sampling import manual_seed

        unit_vectors = list(to_unit(self.space, vectors))
        inputs = self._build_inputs([row] * len(unit_vectors), unit_vectors)
        # BoTorch repeats a failed fit from random parameters, which it draws from torch's global generator.
        with hold_process_lock(), manual_seed(self.seeds.child("recommendation").integer(row)), torch.no_grad():
            with torch.enable_grad():
                model = self._fit_model()
            means: np.ndarray = model.posterior(inputs).mean[:, 0].numpy()
        return means

    def _build_kernel(self) -> Kernel:
        """Return the kernel: one length scale for each parameter, and one for the one-hot inputs of all contexts."""
        from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
        from gpytorch.kernels import RBFKernel
        from gpytorch.priors import LogNormalPrior

        d, n_contexts = self.space.dim, len(self.space.contexts)
        parameter_kernel: Kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=d, active_dims=list(range(d)))
        if not n_contexts:
            return parameter_kernel
        # The dimension-scaled prior for one dimension.
        prior = LogNormalPrior(loc=2**0.5, scale=3**0.5)
        return parameter_kernel * RBFKernel(active_dims=list(range(d, d + n_contexts)), lengthscale_prior=prior)

    def _compute_value_moments(self) -> tuple[float, float]:
        """Return mean and standard deviation of the observed values; the standard deviation of equal values is 1."""
        values = np.array(self.values)
        std = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        return float(values.mean()), std if std > 1e-12 * np.abs(values).max() else 1.0

    def _build_inputs(self, rows: list[int], unit_vectors: list[np.ndarray]) -> torch.Tensor:
        """Return n points [d] of the unit cube and their one-hot contexts as model inputs, [n, d + n_contexts]."""
        import torch

        contexts = np.eye(len(self.space.contexts))[rows] if self.space.contexts else np.zeros((len(rows), 0))
        return torch.from_numpy(np.concatenate([np.array(unit_vectors), contexts], axis=1))

    def _fit_model(self) -> SingleTaskGP:
        import torch
        from botorch.fit import fit_gpytorch_mll
        from botorch.models.gp_regression import SingleTaskGP
        from gpytorch.mlls import ExactMarginalLogLikelihood

        # Values are standardized here instead of by the model, because BoTorch's tolerances are absolute numbers in the
        # units of the model's posterior.
        mean, scale = self._compute_value_moments()
        model = SingleTaskGP(
            self._build_inputs(self.rows, self.vectors),
            torch.tensor((np.array(self.values) - mean) / scale)[:, None],
            covar_module=self._build_kernel(),
            outcome_transform=None,
        )
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": FIT_OPTIONS})
        return model

    def _build_acquisition(self, model: SingleTaskGP, row: int, seed: int) -> AcquisitionFunction:
        import torch
        from botorch.acquisition.logei import qLogNoisyExpectedImprovement
        from botorch.sampling.normal import SobolQMCNormalSampler

        sampler = SobolQMCNormalSampler(torch.Size([N_POSTERIOR_SAMPLES]), seed=seed)
        # Baseline points of the improvement: vectors measured in this context, or, if there are none, in any context.
        inputs = self._build_inputs(self.rows, self.vectors)
        baseline = inputs[torch.tensor(self.rows) == row]
        if not len(baseline):
            baseline = inputs.clone()
            baseline[:, self.space.dim :] = torch.eye(len(self.space.contexts), dtype=torch.float64)[row]
        return qLogNoisyExpectedImprovement(model, baseline, sampler, prune_baseline=True)
