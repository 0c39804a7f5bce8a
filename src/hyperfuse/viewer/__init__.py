"""The page: look at cubes, compare them, read spectra, and fuse, in a browser on this machine."""
