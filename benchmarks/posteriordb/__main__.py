"""`python -m benchmarks.posteriordb`: the same as `bernflow benchmark posteriordb`."""

import sys

from bernflow.cli import main

if __name__ == "__main__":
    sys.exit(main(["benchmark", "posteriordb", *sys.argv[1:]]))
