# %% [markdown]
# # Classification before and after fusion
#
# Does fusion help those who use the image? Indian Pines comes with a map of its crops (16 classes). Each image below is
# classified by nearest neighbours in spectral space, trained on half of the labelled pixels and tested on the others.

# %%
import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import maximum_filter, minimum_filter
from scipy.spatial import KDTree
from tensorly.datasets import load_indian_pines

import hyperfuse
from hyperfuse.data.datasets import load_scenes
from hyperfuse.progress import show_progress

show_progress(False)
scene = load_scenes("demo")[0]
everything = slice(0, 144), slice(0, 144)
reference = hyperfuse.make_cube(scene.patch(*everything), wavelength_nm=scene.wavelength_nm)
pair = hyperfuse.simulate(reference, scale=4, srf="Sentinel-2A:B2,B3,B4,B8")
crops = np.asarray(load_indian_pines()["ticks"][0]).astype(int)[everything]
print(f"{(crops > 0).sum()} labelled pixels of {len(np.unique(crops)) - 1} classes")

# %% [markdown]
# Training and test pixels lie in alternating squares of 12 pixels, so that few test pixels have a training pixel of the
# same field beside them.

# %%
rows, columns = np.indices(crops.shape) // 12
is_training = (crops > 0) & ((rows + columns) % 2 == 0)
is_test = (crops > 0) & ~is_training
at_edge = maximum_filter(crops, 5) != minimum_filter(crops, 5)


def classified(image, components=20, neighbours=5):
    """Classify every pixel by the majority of its nearest training pixels, in principal components of the spectra."""
    spectra = image.values.reshape(len(image), -1).T.astype(float)
    spectra -= spectra.mean(axis=0)
    axes = np.linalg.svd(spectra[:: max(1, len(spectra) // 5000)], full_matrices=False)[2][:components]
    points = spectra @ axes.T
    nearest = KDTree(points[is_training.ravel()]).query(points, neighbours)[1]
    votes = crops[is_training][nearest]
    counts = np.stack([(votes == label).sum(axis=1) for label in range(crops.max() + 1)])
    return counts.argmax(axis=0).reshape(crops.shape)


# %% [markdown]
# ## Share of the test pixels in the right class
# Of all of them, and of those within two pixels of the edge of a field.

# %%
images = {"MSI alone": pair.msi}
for method in ("bicubic", "gsa", "universal"):
    images[method] = hyperfuse.fuse(pair.hsi, pair.msi, method=method)
images["reference"] = pair.reference
maps = {name: classified(image) for name, image in images.items()}
print(f"{'':<12}{'all':>6}{'edges':>8}")
for name, classes in maps.items():
    is_right = classes == crops
    print(f"{name:<12}{is_right[is_test].mean():6.1%}{is_right[is_test & at_edge].mean():8.1%}")

# %%
figure, axes = plt.subplots(1, 4, figsize=(12, 3.2))
shown = {"crops": crops, **{name: maps[name] for name in ("MSI alone", "bicubic", "universal")}}
for axis, (title, classes) in zip(axes, shown.items(), strict=True):
    masked = np.ma.masked_where(crops == 0, classes)
    axis.imshow(masked, cmap="tab20", vmin=0, vmax=19, interpolation="nearest")
    axis.set_title(title)
    axis.axis("off")
plt.show()

# %% [markdown]
# Fusion helps at the edges of fields, where interpolation mixes neighbouring crops. Within fields, interpolation
# is as good, and both beat the reference: the HSI averages over the noise of single fine pixels, and fusion keeps that.
# Indian Pines is one of the training scenes of `universal`, whose network never sees an HSI band or a label.
