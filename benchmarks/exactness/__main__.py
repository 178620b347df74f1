"""`python -m benchmarks.exactness`: the same as `bernflow benchmark exactness`."""

import sys

from bernflow.cli import main

if __name__ == "__main__":
    sys.exit(main(["benchmark", "exactness", *sys.argv[1:]]))
