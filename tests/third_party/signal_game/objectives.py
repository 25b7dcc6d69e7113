"""An objective of one's own: all that has to be said of it, in one place."""

import numpy as np

from llmrl.core.welfare_measures import Objective, SocietyEpisodes


def _gap(collected: SocietyEpisodes) -> np.ndarray:
    return collected.base.min(-1) - collected.base.max(-1)


def smallest_gap() -> Objective:
    """Return how close the poorest agent comes to the richest: `design.objective={_target_: ...}`."""
    return Objective(
        name="smallest_gap",
        of=_gap,
        formula="the smallest x_i less the largest",
        payoff="Your payoff is what the poorest of the {n_agents} agents collects less what the richest collects.",
    )


def misnamed() -> Objective:
    """One that would be reported under the name of another measure."""
    return Objective(name="gini", of=_gap, formula="none", payoff="Your payoff is something else.")


def flat() -> Objective:
    """One that gives a number for all episodes together."""
    return Objective(name="flat", of=lambda collected: collected.base.mean(), formula="none", payoff="Your payoff is.")
