"""Bayesian optimisation with a Gaussian process."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.records import Outcome, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.core.threads import exclusive
from llmrl.core.unit_cube import from_unit, to_unit

if TYPE_CHECKING:
    import torch
    from botorch.acquisition.acquisition import AcquisitionFunction
    from botorch.models.gp_regression import SingleTaskGP
    from gpytorch.kernels import Kernel

SAMPLES = 128
"""Joint posterior draws an acquisition value is averaged over (quasi-random)."""
STARTS, RAW_STARTS, ASCENT_STEPS = 4, 128, 50
"""Ascents of the acquisition function a proposal, the points their starts are chosen from, and their length."""

FIT = {"ftol": 1e-6}
"""Relative change of the model's log posterior density at which its ascent ends."""


class GaussianProcessPrincipal:
    """Fits a Gaussian process to all outcomes and proposes what promises most, maximising.

    The model is refitted at every `ask`, so nothing but the data is carried along: constant mean, a squared exponential
    kernel with a length scale a number, and noise of the same size everywhere, all by maximum a posteriori with the
    dimension-scaled prior of Hvarfner et al. 2024 (arXiv 2402.02229), which holds in tens of dimensions. Numbers are
    scaled to the unit cube, values standardised. The kernel of the numbers is multiplied by one of the contexts, 1 for
    the same and exp(-1 / l^2), with l learned, for different ones (Krause & Ong 2011, Contextual Gaussian Process
    Bandit Optimization, section 5), so contexts inform each other as far as they are alike.

    Proposals that are tried at once are chosen one after another, each with those before it taken into account
    (Wilson et al. 2018, Maximizing acquisition functions for Bayesian optimization, section 3.2).

    Args:
        space, seeds: what is proposed, and the source of randomness.
        initial: outcomes, over all contexts, before the first model; until then points of a scrambled Sobol sequence,
            one sequence a context. None is 2 (d + 1), at most 10.
        acquisition: `log_noisy_ei` is the expected improvement over the unknown best mean of the vectors tried in the
            context (Letham et al. 2019), in logarithms (Ament et al. 2023, arXiv 2310.20708); `ucb` is the upper
            confidence bound mean + sqrt(beta) std (Srinivas et al. 2010).
        beta: of `ucb`.

    Raises:
        ConfigError: BoTorch is missing.
    """

    parallel = True
    learns_from_others = True

    def __init__(
        self,
        space: ParameterSpace,
        seeds: Seeds,
        initial: PositiveInt | None = None,
        acquisition: Literal["log_noisy_ei", "ucb"] = "log_noisy_ei",
        beta: PositiveFloat = 4.0,
    ) -> None:
        try:
            import botorch  # noqa: F401
        except ModuleNotFoundError as error:
            raise ConfigError("principal=gp needs BoTorch: pip install 'llmrl[search]'") from error
        self.space, self.seeds = space, seeds.child("principal")
        self.initial = min(2 * (space.dim + 1), 10) if initial is None else initial
        self.acquisition, self.beta = acquisition, beta
        self.asked = [0] * space.n_rows
        self.rows: list[int] = []
        self.vectors: list[np.ndarray] = []  # in the unit cube
        self.values: list[float] = []
        self.facts: dict[str, float] = {}  # what the model of the last `ask` said, logged when its outcomes are told

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        row = self.space.row(context)
        if len(self.values) < self.initial:
            unit, self.facts = self._space_filling(row, n), {}
        else:
            unit, self.facts = self._promising(row, n)
        self.asked[row] += n
        return from_unit(self.space, unit)

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Metrics, once there is a model: predicted (its mean for the vectors, before they were tried), noise (its
        standard deviation of an outcome), both in units of the objective."""
        for outcome in outcomes:
            self.rows.append(self.space.row(outcome.context))
            self.vectors.append(to_unit(self.space, outcome.vector))
            self.values.append(outcome.value)
        return {f"principal/{name}": value for name, value in self.facts.items()}

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the measured vectors of a context with the highest posterior means, best first, [<= n, d].

        Before the first model, the order is that of the pooled estimates. No random number of the search is drawn, and
        its state stays as it is.

        Args:
            context: index of the context; None: there are no contexts.
            n: largest number of vectors, >= 1.
            estimates: pooled measurements so far.
        """
        vectors = np.array([each.vector for each in estimates.ranked(context)]).reshape(-1, self.space.dim)
        if len(vectors) and len(self.values) >= self.initial:
            # Stable, so that equal means keep the order of the estimates.
            vectors = vectors[np.argsort(-self._posterior_means(self.space.row(context), vectors), kind="stable")]
        return vectors[:n]

    def state_dict(self) -> State:
        return {
            "asked": list(self.asked),
            "rows": list(self.rows),
            "vectors": np.array(self.vectors).reshape(-1, self.space.dim),
            "values": np.array(self.values),
            "facts": dict(self.facts),
        }

    def load_state_dict(self, state: State) -> None:
        self.asked, self.rows, self.facts = list(state["asked"]), list(state["rows"]), dict(state["facts"])
        self.vectors, self.values = list(state["vectors"]), state["values"].tolist()

    def _space_filling(self, row: int, n: int) -> np.ndarray:
        """The next points of the context's sequence, [n, d]."""
        import torch
        from torch.quasirandom import SobolEngine

        seed = self.seeds.child("initial").integer(row)
        engine: Any = SobolEngine(self.space.dim, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
        engine.fast_forward(self.asked[row])
        points: np.ndarray = engine.draw(n, dtype=torch.float64).numpy()
        return points

    def _promising(self, row: int, n: int) -> tuple[np.ndarray, dict[str, float]]:
        """What maximises the acquisition function, [n, d], and facts to log."""
        import torch
        from botorch.exceptions.warnings import BotorchWarning
        from botorch.optim.optimize import optimize_acqf
        from botorch.utils.sampling import manual_seed

        seed = self.seeds.child("step").child(row).integer(self.asked[row])
        given = {self.space.dim + i: float(i == row) for i in range(len(self.space.contexts))}
        # BoTorch draws from torch's global stream, which `manual_seed` gives back as it was. Its warnings are of
        # ascents that end early where the acquisition function is flat to rounding: nothing is lost.
        with exclusive(), manual_seed(seed), warnings.catch_warnings():
            warnings.simplefilter("ignore", BotorchWarning)
            warnings.simplefilter("ignore", RuntimeWarning)
            model = self._fit()
            box = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, self.space.dim + len(given))
            found, _ = optimize_acqf(
                self._acquisition(model, row, seed),
                box,
                q=n,
                num_restarts=STARTS,
                raw_samples=RAW_STARTS,
                fixed_features=given or None,
                sequential=True,
                options={"maxiter": ASCENT_STEPS},
                retry_on_optimization_warning=False,
            )
            with torch.no_grad():
                predicted, noise = (
                    float(model.posterior(found).mean.mean()),
                    float(model.likelihood.noise.mean().sqrt()),
                )
        mean, scale = self._scale()
        facts = {"predicted": mean + scale * predicted, "noise": scale * noise}
        return found[:, : self.space.dim].numpy(), facts

    def _posterior_means(self, row: int, vectors: np.ndarray) -> np.ndarray:
        """Return the standardized posterior means, [n], of vectors [n, d] in a context."""
        import torch
        from botorch.utils.sampling import manual_seed

        seed = self.seeds.child("recommendation").integer(row)
        units = list(to_unit(self.space, vectors))
        # A fit that fails is repeated from random parameters, drawn from torch's global stream.
        with exclusive(), manual_seed(seed), torch.no_grad():
            with torch.enable_grad():
                model = self._fit()
            means: np.ndarray = model.posterior(self._inputs([row] * len(units), units)).mean[:, 0].numpy()
        return means

    def _kernel(self) -> Kernel:
        """A length scale for each number, and one that all contexts share: it is known for a context never seen."""
        from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
        from gpytorch.kernels import RBFKernel
        from gpytorch.priors import LogNormalPrior

        d, n_contexts = self.space.dim, len(self.space.contexts)
        numbers: Kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=d, active_dims=list(range(d)))
        if not n_contexts:
            return numbers
        # The same prior as that of one number.
        prior = LogNormalPrior(loc=2**0.5, scale=3**0.5)
        return numbers * RBFKernel(active_dims=list(range(d, d + n_contexts)), lengthscale_prior=prior)

    def _scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the values told; 1 for the latter where they are all the same."""
        values = np.array(self.values)
        spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        return float(values.mean()), spread if spread > 1e-12 * np.abs(values).max() else 1.0

    def _inputs(self, rows: list[int], units: list[np.ndarray]) -> torch.Tensor:
        """Return n points [d] of the unit cube and their contexts as inputs of the model, [n, d + contexts]."""
        import torch

        contexts = np.eye(len(self.space.contexts))[rows] if self.space.contexts else np.zeros((len(rows), 0))
        return torch.from_numpy(np.concatenate([np.array(units), contexts], axis=1))

    def _fit(self) -> SingleTaskGP:
        import torch
        from botorch.fit import fit_gpytorch_mll
        from botorch.models.gp_regression import SingleTaskGP
        from gpytorch.mlls import ExactMarginalLogLikelihood

        # Standardised here, not by the model: BoTorch's tolerances are absolute, in the units of its posterior.
        mean, scale = self._scale()
        values = torch.tensor((np.array(self.values) - mean) / scale)[:, None]
        model = SingleTaskGP(
            self._inputs(self.rows, self.vectors), values, covar_module=self._kernel(), outcome_transform=None
        )
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": FIT})
        return model

    def _acquisition(self, model: SingleTaskGP, row: int, seed: int) -> AcquisitionFunction:
        import torch
        from botorch.acquisition.logei import qLogNoisyExpectedImprovement
        from botorch.acquisition.monte_carlo import qUpperConfidenceBound
        from botorch.sampling.normal import SobolQMCNormalSampler

        sampler = SobolQMCNormalSampler(torch.Size([SAMPLES]), seed=seed)
        if self.acquisition == "ucb":
            return qUpperConfidenceBound(model, self.beta, sampler)
        # What was tried in the other contexts is no rival here, unless nothing was tried in this one.
        tried = self._inputs(self.rows, self.vectors)
        own = tried[torch.tensor(self.rows) == row]
        if not len(own):
            own = tried.clone()
            own[:, self.space.dim :] = torch.eye(len(self.space.contexts), dtype=torch.float64)[row]
        return qLogNoisyExpectedImprovement(model, own, sampler, prune_baseline=True)
