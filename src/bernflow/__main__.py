"""`python -m bernflow`: the command line."""

import sys

from bernflow.cli import main

if __name__ == "__main__":
    sys.exit(main())
