"""Methods and networks scored on the same pairs: cases, runs, tables, figures, efficiency, the paper's numbers."""
