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
    """A class without a constructor."""


class Vague(ABC):
    @abstractmethod
    def speak(self): ...


PART = {"_target_": f"{__name__}.Part", "size": 3, "rate": 0.5, "names": ["a"]}


@pytest.fixture
def builder():
    return Builder({"seeds": Seeds(7)}, trusted=[__name__])


def test_build_injects_and_nests(builder):
    part = builder.build({**PART, "child": {"_target_": f"{__name__}.Record", "n": 2, "low": 1}}, "part")
    assert part.seeds.seed == 7 and part.size == 3 and part.child == Record(2, 1.0)
    assert builder.build({"_target_": None}, "part") is None
    assert builder.needs(PART, "seeds", "part") and not builder.needs(PART, "llm", "part")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sise": 3}, "'sise'"),
        ({"size": "three"}, "part.size='three'"),
        ({"size": 2.5}, "part.size=2.5"),
        ({"size": 0}, "part.size=0.*0"),
        ({"rate": 1.5}, "part.rate=1.5.*1"),
        ({"names": ["a", 3]}, r"part.names\[1\]=3"),
        ({"child": {"_target_": f"{__name__}.Vague"}}, "part.child"),
        ({"seeds": 3}, "'seeds'"),
        ({"child": {"_target_": f"{__name__}.Record", "n": -1}}, "part.child.n=-1"),
        ({"_target_": "os.system"}, "os.*trusted"),
        ({"_target_": f"{__name__}.Missing"}, r"Missing .*imported"),
    ],
)
def test_errors_give_location_and_remedy(builder, change, message):
    with pytest.raises(ConfigError, match=message):
        builder.build({**PART, **change}, "part")


def test_class_with_no_constructor(builder):
    assert isinstance(builder.build({**PART, "child": {"_target_": f"{__name__}.Bare"}}, "part").child, Bare)
    builder.validate({"_target_": f"{__name__}.Bare"}, "part")


def test_missing_argument(builder):
    with pytest.raises(ConfigError, match="'rate'"):
        builder.build({k: v for k, v in PART.items() if k != "rate"}, "part")


def test_integers_are_accepted_as_floats(builder):
    assert builder.build({**PART, "rate": 1}, "part").rate == 1.0
