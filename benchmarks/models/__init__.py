"""Hierarchical models as they occur in practice: `bernflow.fit` beside NUTS, in seconds, gradients and errors.

`bernflow benchmark models` runs it. `catalogue` lists the models, `references` holds long NUTS runs, `measure` fits one
model by one method, `suite` runs what is missing, `page` shows what was found.
"""
