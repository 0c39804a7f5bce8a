"""Networks in torch: SSA (`ssa.py`), the prior of the method `universal`, and published baselines.

Start at `catalogue.load_model` and `ssa.SSA`.
"""
