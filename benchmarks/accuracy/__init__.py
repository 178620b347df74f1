"""How accurate are approximate posteriors? Every method on every target, judged against the truth.

`bernflow benchmark accuracy` runs it. `cases` lists the targets, `methods` fits them, `reference` knows the truth,
`judge` compares, `suite` runs what is missing, `page` and `picture` show what was found.
"""
