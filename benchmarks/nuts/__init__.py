"""NUTS with and without a fitted flow: what an effective draw costs, and whether it is right.

Run `bernflow benchmark nuts --help` in a checkout.
"""
