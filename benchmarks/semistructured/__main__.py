"""`python -m benchmarks.semistructured`: the same as `bernflow benchmark semistructured`."""

import sys

from bernflow.cli import main

if __name__ == "__main__":
    sys.exit(main(["benchmark", "semistructured", *sys.argv[1:]]))
