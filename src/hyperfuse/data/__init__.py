"""Data of a training: scenes, splits, synthetic scenes, simulated pairs, batches."""
