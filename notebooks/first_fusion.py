# %% [markdown]
# # First fusion
#
# A real scene, degraded to the pair that two sensors would have recorded, is fused and compared with the original.
# Indian Pines (AVIRIS, 200 bands) comes with the extra `demo`.

# %%
import matplotlib.pyplot as plt

import hyperfuse
from hyperfuse.data.datasets import load_scenes
from hyperfuse.progress import show_progress

show_progress(False)

# %% [markdown]
# ## The pair
# The HSI keeps all bands on pixels four times as large; the MSI has the four 10 m bands of Sentinel-2.

# %%
scene = load_scenes("demo")[0]
values = scene.patch(slice(0, 96), slice(0, 96))
reference = hyperfuse.make_cube(values, wavelength_nm=scene.wavelength_nm)
pair = hyperfuse.simulate(reference, scale=4, srf="Sentinel-2A:B2,B3,B4,B8")
print("HSI", pair.hsi.shape, "MSI", pair.msi.shape)

# %% [markdown]
# ## What the pair says about itself
# Shift, PSF, SRF and noise are estimated from the two images.

# %%
observation = hyperfuse.estimate(pair.hsi, pair.msi)
for name, text in observation.described().items():
    print(f"{name:<12}{text}")

# %% [markdown]
# ## Fuse and score
# The default method, and plain interpolation for comparison.

# %%
fused = hyperfuse.fuse(pair.hsi, pair.msi, observation=observation)
interpolated = hyperfuse.fuse(pair.hsi, pair.msi, method="bicubic", observation=observation)
for name, image in (("bicubic", interpolated), ("universal", fused)):
    scores = hyperfuse.evaluate(image, pair.reference, scale=4)
    print(f"{name:<10} {scores.psnr_db:.2f} dB  {scores.spectral_angle_degrees:.2f} degrees")

# %% [markdown]
# ## Look at it

# %%
figure, axes = plt.subplots(1, 4, figsize=(12, 3.2))
images = {"HSI": pair.hsi, "interpolated": interpolated, "fused": fused, "reference": pair.reference}
for axis, (title, image) in zip(axes, images.items(), strict=True):
    axis.imshow(image.hyperfuse.rgb())
    axis.set_title(title)
    axis.axis("off")
plt.show()

# %% [markdown]
# ## How sure is it?
# The expected error of each value, beside the true one.

# %%
error = hyperfuse.uncertainty(pair.hsi, pair.msi, observation=observation)
true_error = abs(fused.values - pair.reference.values)
print(f"expected {error.values.mean():.4f}, true {true_error.mean():.4f} (mean over all values)")
