"""The paper's printed tables as data, to stand beside measured ones: see `printed.py`."""
