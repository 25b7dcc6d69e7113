"""Range-checked number types for the arguments of parts.

They are plain `int` and `float` to Python and mypy. The builder of parts (`llmrl.config.builder`) checks the range of a
value and names the option in its error.
"""

from typing import Annotated

from annotated_types import Ge, Gt, Interval

PositiveInt = Annotated[int, Gt(0)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]
UnitInterval = Annotated[float, Interval(ge=0, le=1)]
SpendingCost = Annotated[float, Interval(ge=0, le=1e6)]
"""Loss of welfare for each unit that a mechanism spends; the bound keeps objectives finite."""
