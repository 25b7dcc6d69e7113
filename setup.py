"""Packages: everything under src/, and the top-level conf/ folder as `llmrl.conf` (pyproject.toml cannot say both)."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[*find_namespace_packages("src"), "llmrl.conf"],
    package_dir={"": "src", "llmrl.conf": "conf"},
)
