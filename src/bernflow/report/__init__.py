"""HTML reports of fits: verdict, results and settings on one page."""

from bernflow.report.page import write_page, write_report

__all__ = ["write_page", "write_report"]
