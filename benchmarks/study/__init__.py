"""How an experiment is run, kept and shown: tasks, their results, tables, figures and pages."""
