"""Write the page and the table: `python -m benchmarks.points`."""

from benchmarks.points.page import main

main()
