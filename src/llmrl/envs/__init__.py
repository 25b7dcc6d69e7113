"""Environments: adapters of other packages, environments of this package, and mechanisms that change rewards."""
