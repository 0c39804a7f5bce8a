"""View cubes in a browser on this machine: pan, compare, plot spectra, compute scores, fuse."""
