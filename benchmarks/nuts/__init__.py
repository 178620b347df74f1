"""NUTS with and without a fitted flow: what an effective draw costs, and whether it is right.

Run `python -m benchmarks.nuts --help` from the root of the repository.
"""
