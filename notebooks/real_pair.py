# %% [markdown]
# # A real pair: misregistered and changed
#
# Two sensors rarely record the same thing. To know the truth, we simulate a pair and add what real pairs have: a shift,
# and an area that changed between two dates.

# %%
import warnings

import matplotlib.pyplot as plt
import numpy as np

import hyperfuse
from hyperfuse.data.datasets import load_scenes
from hyperfuse.progress import show_progress

show_progress(False)
warnings.simplefilter("ignore")  # what was corrected is shown below
scene = load_scenes("demo")[0]
reference = hyperfuse.make_cube(scene.patch(slice(0, 96), slice(0, 96)), wavelength_nm=scene.wavelength_nm)

# %% [markdown]
# ## A shifted HSI, and an MSI of another date
# The HSI lies 2 fine pixels too low and 1 too far left. In the MSI a field has been replaced by a part of another one.

# %%
pair = hyperfuse.simulate(reference, scale=4, srf="Sentinel-2A:B2,B3,B4,B8", shift=(2.0, -1.0))
msi = pair.msi.copy(deep=True)
changed = np.zeros(msi.shape[1:], dtype=bool)
changed[24:40, 48:68] = True
msi.values[:, changed] = msi.values[:, 70:86, 10:30].reshape(len(msi), -1)

# %% [markdown]
# ## Register
# The shift is found in spite of the change.

# %%
observation = hyperfuse.estimate(pair.hsi, msi)
print("\n".join(f"{name:<12}{text}" for name, text in list(observation.described().items())[:7]))

# %% [markdown]
# ## Fuse
# `harmonise` compares the MSI with what the HSI predicts of it and takes less detail where they disagree.

# %%
results = {
    "as georeferenced": hyperfuse.fuse(pair.hsi, msi, estimate=False, harmonise="off"),
    "shift estimated": hyperfuse.fuse(pair.hsi, msi, harmonise="off"),
    "default": hyperfuse.fuse(pair.hsi, msi),
}
for name, image in results.items():
    scores = hyperfuse.evaluate(image, pair.reference, scale=4)
    inside = np.abs(image.values - pair.reference.values)[:, changed].mean()
    print(f"{name:<18}{scores.psnr_db:6.2f} dB   mean error in the changed field {inside:.4f}")

# %%
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4))
for axis, (title, image) in zip(axes, results.items(), strict=True):
    axis.imshow(np.abs(image.values - pair.reference.values).mean(0), vmax=0.03)
    axis.set_title(f"error, {title}")
    axis.axis("off")
plt.show()
