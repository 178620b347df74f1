"""How well draws agree with reference draws; see `bernflow.diagnostics.agreement`."""

from bernflow.diagnostics.agreement import NUM_ERRORS, Agreement, compare, moments

__all__ = ["NUM_ERRORS", "Agreement", "compare", "moments"]
