"""Training: the experiment file, the objective, the loop, checkpoints that lose nothing, fine-tuning."""
