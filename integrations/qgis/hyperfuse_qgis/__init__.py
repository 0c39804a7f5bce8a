"""QGIS plug-in: hyperfuse in the Processing toolbox."""


def classFactory(iface):  # noqa: N802
    """What QGIS calls to load the plug-in; `iface` is None in `qgis_process`."""
    from .provider import Plugin

    return Plugin()
