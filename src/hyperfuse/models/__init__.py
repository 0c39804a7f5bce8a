"""Tensors in, tensor out, torch only: Matryoshka kernels, encoders, the implicit decoder, the fusion network and its
weights.

Nothing here imports the rest of hyperfuse. Start at `fusion_network.py`.
"""
