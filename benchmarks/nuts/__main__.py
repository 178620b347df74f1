"""`python -m benchmarks.nuts`: the same as `bernflow benchmark nuts`."""

import sys

from bernflow.cli import main

if __name__ == "__main__":
    sys.exit(main(["benchmark", "nuts", *sys.argv[1:]]))
