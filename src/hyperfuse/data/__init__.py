"""Scenes -> patches -> simulated pairs -> batches: what a training reads."""
