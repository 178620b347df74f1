"""`python -m benchmarks.adversarial`: the same as `bernflow benchmark adversarial`.

It needs only what a fit needs, and so runs where what draws and saves is not installed.
"""

import argparse

from benchmarks.adversarial import arguments

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adversarial", description=arguments.__doc__)
    arguments.add_arguments(parser)
    arguments.run(parser.parse_args())
