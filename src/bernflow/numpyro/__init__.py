"""Bernstein flows as a guide for `numpyro.infer.SVI`."""

from bernflow.numpyro.guide import AutoBernstein
from bernflow.numpyro.transform import FlowTransform

__all__ = ["AutoBernstein", "FlowTransform"]
