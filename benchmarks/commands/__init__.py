"""The commands of `bernflow` that run experiments and suites; the installed library finds them here."""

from benchmarks.commands import benchmark, data, reproduce

COMMANDS = (reproduce.COMMAND, benchmark.COMMAND, data.COMMAND)
