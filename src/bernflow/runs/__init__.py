"""Runs of the command line: model and data from files, results in a folder."""

from bernflow.runs.folder import Run, check_free, read_run, write_run
from bernflow.runs.source import Source, load_model

__all__ = ["Run", "Source", "check_free", "load_model", "read_run", "write_run"]
