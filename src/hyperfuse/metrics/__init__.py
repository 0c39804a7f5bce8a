"""How good a fused cube is: metrics against a reference, as pure functions and streaming over whole files."""
