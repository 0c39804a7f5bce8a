# %% [markdown]
# # Classification before and after fusion
#
# Does fusion help those who use the image? Each pixel of Indian Pines is assigned to one of eight spectral classes.
# Because the scene comes without its ground truth, the classes are clusters of the reference's spectra; the question is
# how many pixels are assigned the same class as in the reference.

# %%
import matplotlib.pyplot as plt
import numpy as np
from scipy.cluster.vq import kmeans2, vq

import hyperfuse
from hyperfuse.data.datasets import load_scenes
from hyperfuse.progress import show_progress

show_progress(False)
scene = load_scenes("demo")[0]
reference = hyperfuse.make_cube(scene.patch(slice(0, 96), slice(0, 96)), wavelength_nm=scene.wavelength_nm)
pair = hyperfuse.simulate(reference, scale=4, srf="Sentinel-2A:B2,B3,B4,B8")


# %%
def spectra(image):
    return image.values.reshape(len(image), -1).T.astype(float)


centres, _ = kmeans2(spectra(pair.reference), 8, seed=0, minit="++")
truth = vq(spectra(pair.reference), centres)[0]

# %% [markdown]
# ## Agreement with the reference

# %%
maps = {"reference": truth}
for method in ("bicubic", "gsa", "universal"):
    classes = vq(spectra(hyperfuse.fuse(pair.hsi, pair.msi, method=method)), centres)[0]
    maps[method] = classes
    print(f"{method:<10} {np.mean(classes == truth):6.1%} of the pixels in the class of the reference")

# %%
figure, axes = plt.subplots(1, 4, figsize=(12, 3.2))
for axis, (title, classes) in zip(axes, maps.items(), strict=True):
    axis.imshow(classes.reshape(pair.reference.shape[1:]), cmap="tab10", vmin=0, vmax=9, interpolation="nearest")
    axis.set_title(title)
    axis.axis("off")
plt.show()

# %% [markdown]
# Indian Pines is one of the training scenes of `universal`; the benchmarks have scenes that are not.
