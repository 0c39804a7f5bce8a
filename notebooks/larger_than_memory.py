# %% [markdown]
# # Larger than memory
#
# A scene is fused file to file in tiles, and the result is read lazily. The scene here is small; nothing changes
# for large ones.

# %%
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import xarray as xr
from distributed import LocalCluster

import hyperfuse
from hyperfuse.config import FuseConfig
from hyperfuse.data.synthetic import synthetic_scene
from hyperfuse.fusion.run import dry_run
from hyperfuse.progress import show_progress

show_progress(False)
folder = Path(mkdtemp())
wavelength_nm = np.linspace(410, 980, 40)
reference = hyperfuse.make_cube(synthetic_scene(1, wavelength_nm, 256, 256), wavelength_nm=wavelength_nm)
pair = hyperfuse.simulate(reference, scale=4, srf="rgb+nir")
for name in ("hsi", "msi"):
    hyperfuse.write_cube(getattr(pair, name), folder / f"{name}.tif")

# %% [markdown]
# ## What would happen
# `ram_gb` limits the peak memory of the process, which needs about 0.5 GB for itself.

# %%
config = FuseConfig(method="gsa", ram_gb=0.6)
plan = dry_run(folder / "hsi.tif", folder / "msi.tif", folder / "fused.zarr", config)
print("\n".join(f"{name:<10}{text}" for name, text in plan.items() if name != "disk"))

# %% [markdown]
# ## Fuse
# An interrupted run continues with `resume=True`.

# %%
path = hyperfuse.fuse(folder / "hsi.tif", folder / "msi.tif", folder / "fused.zarr", config=config)
print(path.name)

# %% [markdown]
# ## On a Dask cluster
# The workers compute the same tiles, with identical output. The cluster here is a thread of this process; give the
# address of any other in the same way (`cluster="tcp://scheduler:8786"`).

# %%
with LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
    on_cluster = hyperfuse.fuse(
        folder / "hsi.tif",
        folder / "msi.tif",
        folder / "on_cluster.zarr",
        config=config.replace(cluster=cluster.scheduler_address),
    )
print(np.array_equal(hyperfuse.open_cube(on_cluster).values, hyperfuse.open_cube(path).values))

# %% [markdown]
# ## Read it lazily
# hyperfuse opens any cube lazily; xarray and Dask read the Zarr store chunk by chunk.

# %%
store = xr.open_zarr(path)
name = max(store.data_vars, key=lambda each: store[each].ndim)
print(name, store[name].sizes, "chunks of", [sizes[0] for sizes in store[name].chunks])
print("mean of the first band:", float(store[name][0].mean()))
scores = hyperfuse.evaluate(hyperfuse.open_cube(path), pair.reference, scale=4)
print(f"{scores.psnr_db:.2f} dB")
