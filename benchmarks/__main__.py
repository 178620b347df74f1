"""`python -m benchmarks`: the same as `bernflow`, with the experiments and suites of this checkout."""

import sys

from bernflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
