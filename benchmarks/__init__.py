"""The experiments of the paper and the benchmark suites; the installed library does without them.

Run `bernflow reproduce NAME` or `bernflow benchmark SUITE` in a checkout of the repository, or `python -m benchmarks`
with the same words.
"""
