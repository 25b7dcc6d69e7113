"""Custom objective of a principal."""

import numpy as np

from llmrl.core.welfare_measures import Objective, SocietyEpisodes


def _gap(collected: SocietyEpisodes) -> np.ndarray:
    return collected.base.min(-1) - collected.base.max(-1)


def smallest_gap() -> Objective:
    """Return the negative gap between the richest and the poorest agent: `design.objective={_target_: ...}`."""
    return Objective(
        name="smallest_gap",
        of=_gap,
        formula="the smallest x_i less the largest",
        payoff="Your payoff is what the poorest of the {n_agents} agents collects less what the richest collects.",
    )


def misnamed() -> Objective:
    """Return an invalid objective with the name of another measure."""
    return Objective(name="gini", of=_gap, formula="none", payoff="Your payoff is something else.")


def flat() -> Objective:
    """Return an invalid objective with a single value for all episodes."""
    return Objective(name="flat", of=lambda collected: collected.base.mean(), formula="none", payoff="Your payoff is.")
