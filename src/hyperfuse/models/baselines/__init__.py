"""Four published networks for the same task, to be trained and measured beside ours: DSPNet, MIMO-SST, DCINN, PSTUN.

Start at `catalogue.py`. Where each comes from, how its number of parameters was found and what we had to guess:
docs/rivals.md.
"""
