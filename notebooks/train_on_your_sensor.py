# %% [markdown]
# # Train SSA on your own sensor
#
# How to train a network, at a size that takes seconds: your own scenes, an experiment file, a run, and how to use its
# weights.
# A network that is worth using needs thousands of steps.

# %%
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

import hyperfuse
from hyperfuse.data.synthetic import synthetic_scene
from hyperfuse.progress import show_progress
from hyperfuse.training.experiment import read_experiment
from hyperfuse.training.train import train

show_progress(False)
folder = Path(mkdtemp())

# %% [markdown]
# ## Fine hyperspectral images of the sensor
# They are the references; pairs are simulated from them while training. Put your own files into the folder instead.

# %%
wavelength_nm = np.linspace(420, 940, 24)
for seed in range(3):
    scene = hyperfuse.make_cube(synthetic_scene(seed, wavelength_nm, 64, 64), wavelength_nm=wavelength_nm)
    hyperfuse.write_cube(scene, folder / f"scene{seed}.tif")

# %% [markdown]
# ## An experiment
# The same keys as in `experiments/small_cpu.toml`, with a tiny network.

# %%
(folder / "mine.toml").write_text(
    """
name = "mine"
seed = 0

[network]
preset = "ssa-small"
width = 16
msi_kernel = "own"
standardise = "correlated"
equalise_inputs = true
initialisation = "he"
residual_factor = 0.1

[[scenes]]
source = "scene*.tif"

[split]
patch_size = 24

[simulation]
scale = 4
srfs = ["rgb", "random"]

[optimiser]
learning_rate = 2e-3

[length]
steps = 40

[loop]
batch_size = 4
workers = 0
loss = "relative"

[validation]
every = 40
srf = "rgb"
"""
)
experiment = read_experiment(folder / "mine.toml")
outcome = train(experiment, folder / "run", scenes_folder=folder)
print(sorted(path.name for path in (folder / "run").iterdir()))

# %% [markdown]
# ## Use the weights

# %%
scene = hyperfuse.make_cube(synthetic_scene(9, wavelength_nm, 64, 64), wavelength_nm=wavelength_nm)
pair = hyperfuse.simulate(scene, scale=4, srf="rgb")
for name, options in {"bicubic": {"method": "bicubic"}, "trained": {"weights": folder / "run" / "weights"}}.items():
    scores = hyperfuse.evaluate(hyperfuse.fuse(pair.hsi, pair.msi, **options), pair.reference, scale=4)
    print(f"{name:<10}{scores.psnr_db:.2f} dB")
