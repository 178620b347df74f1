"""The report of a fit: one page that says whether it can be trusted, what it found and how it was made."""

from bernflow.report.page import write_page, write_report

__all__ = ["write_page", "write_report"]
