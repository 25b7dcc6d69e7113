"""The builder checks arguments before it constructs anything."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import pytest

from llmrl.config.builder import Builder
from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt, UnitInterval
from llmrl.core.seeding import Seeds


class Part:
    def __init__(self, seeds: Seeds, size: PositiveInt, rate: UnitInterval, names: list[str], child: object = None):
        self.seeds, self.size, self.rate, self.names, self.child = seeds, size, rate, names, child


@dataclass(frozen=True)
class Record:
    n: PositiveInt
    low: float = 0.0


class Bare:
    """A class without a constructor of its own."""


class Vague(ABC):
    @abstractmethod
    def speak(self): ...


PART = {"_target_": f"{__name__}.Part", "size": 3, "rate": 0.5, "names": ["a"]}


@pytest.fixture
def builder():
    return Builder({"seeds": Seeds(7)}, trusted=[__name__])


def test_builds_injects_and_nests(builder):
    part = builder.build({**PART, "child": {"_target_": f"{__name__}.Record", "n": 2, "low": 1}}, "part")
    assert part.seeds.seed == 7 and part.size == 3 and part.child == Record(2, 1.0)
    assert builder.build({"_target_": None}, "part") is None
    assert builder.needs(PART, "seeds", "part") and not builder.needs(PART, "llm", "part")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sise": 3}, "part has no option 'sise'; it has: size, rate, names, child"),
        ({"size": "three"}, "part.size='three': input should be a valid integer"),
        ({"size": 2.5}, "part.size=2.5"),
        ({"size": 0}, "part.size=0: input should be greater than 0"),
        ({"rate": 1.5}, "part.rate=1.5: input should be less than or equal to 1"),
        ({"names": ["a", 3]}, r"part.names\[1\]=3: input should be a valid string, got int"),
        ({"child": {"_target_": f"{__name__}.Vague"}}, r"part.child.*Vague is abstract: it must define speak"),
        ({"seeds": 3}, "part has no option 'seeds'"),
        ({"child": {"_target_": f"{__name__}.Record", "n": -1}}, "part.child.n=-1"),
        ({"_target_": "os.system"}, "outside the trusted modules"),
        ({"_target_": f"{__name__}.Missing"}, "cannot be imported"),
    ],
)
def test_refusals_name_the_place_and_the_cure(builder, change, message):
    with pytest.raises(ConfigError, match=message):
        builder.build({**PART, **change}, "part")


def test_a_class_without_a_constructor(builder):
    assert isinstance(builder.build({**PART, "child": {"_target_": f"{__name__}.Bare"}}, "part").child, Bare)
    builder.check({"_target_": f"{__name__}.Bare"}, "part")


def test_missing_argument(builder):
    with pytest.raises(ConfigError, match="part needs the option 'rate'"):
        builder.build({k: v for k, v in PART.items() if k != "rate"}, "part")


def test_integers_are_fine_where_floats_are_asked(builder):
    assert builder.build({**PART, "rate": 1}, "part").rate == 1.0
