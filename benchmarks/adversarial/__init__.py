"""Posteriors of known answer whose mass lies where a fit may not look, to measure how often its verdict is wrong.

Example:
    >>> from benchmarks.adversarial.catalogue import CASES
    >>> sum(case.family == "concentric" for case in CASES.values()) >= 12
    True
"""
