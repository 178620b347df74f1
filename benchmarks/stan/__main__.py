"""`python -m benchmarks.stan`: the same as `bernflow benchmark stan`."""

import sys

from bernflow.cli import main

if __name__ == "__main__":
    sys.exit(main(["benchmark", "stan", *sys.argv[1:]]))
