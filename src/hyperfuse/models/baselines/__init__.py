"""Published networks for the same task, to be trained and measured beside SSA: DSPNet, MIMO-SST, DCINN, PSTUN.

docs/baselines.md says how the number of parameters of each was reproduced and what had to be guessed. Each takes the
bands of one pair of sensors; `models/catalogue.py` lists them all.
"""
