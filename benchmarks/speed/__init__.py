"""How fast is a fit? Ratios, measured side by side in one run.

`bernflow benchmark speed` runs it. Every part (`catalogue`) names its cases and measures one subject of one case at a
time in a process of its own; `suite` runs what is missing, `page` and `picture` show what was found.
"""
