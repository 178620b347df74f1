"""What the importance weights of a fit cannot tell: checks that look where no draw of it goes.

`run` lists them in the order in which they are made, `evidence` says what a check is given and what it returns, and
`effort` how hard they look. Every other module is one way to look.
"""
