"""Measurements that are for developers: accuracy and speed, each run with `python -m`."""
