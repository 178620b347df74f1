"""`python -m benchmarks.stopping`: the same as `bernflow benchmark stopping`."""

import sys

from bernflow.cli import main

if __name__ == "__main__":
    sys.exit(main(["benchmark", "stopping", *sys.argv[1:]]))
