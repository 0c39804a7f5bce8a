"""The metadata files of products: XML without document types and entities, and the GROUP = ... texts of USGS.

A product that was opened: its cube, and what a person wants to know about it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import Element, ParseError

import numpy as np
import xarray as xr
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError
from hyperfuse.io.products.delivery import DeliveredFile

MOST_NAMED = 16


@dataclass(frozen=True)
class Product:
    cube: xr.DataArray
    notes: dict[str, str] = field(default_factory=dict)
    """Label -> sentence, in the order in which to show them."""


def identity(product: str, sensor: str, acquired: str | None, quantity: str) -> dict[str, str]:
    """What a cube of a product carries wherever it goes; `sensor` is a name that responses are found by, where there
    are any.
    """
    facts = {"product": product, "sensor": sensor, "acquired": acquired or "", "quantity": quantity}
    return {key: text for key, text in facts.items() if text}


def detector_note(detectors: Sequence[str], wavelength_nm: NDArray[np.float64]) -> str:
    """ "VNIR 91 bands, 418-993 nm; SWIR 133 bands, 902-2445 nm; both see 902-993 nm" """
    of = np.array(detectors)
    ranges, parts = [], []
    for name in dict.fromkeys(detectors):
        centres = wavelength_nm[of == name]
        ranges.append((centres.min(), centres.max()))
        parts.append(f"{name} {centres.size} bands, {centres.min():.0f}-{centres.max():.0f} nm")
    low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
    if len(ranges) > 1 and low < high:
        parts.append(f"both see {low:.0f}-{high:.0f} nm")
    return "; ".join(parts)


def flag_note(good: NDArray[np.bool_], why: str) -> str:
    bad = int((~good).sum())
    return f"{bad} of {good.size} bands are flagged bad: {why}" if bad else "no band is flagged bad"


def formula(scale: float, offset: float) -> str:
    """ "stored * 0.0001 - 0.1" """
    added = f" {'-' if offset < 0 else '+'} {abs(offset):g}" if offset else ""
    return f"stored * {scale:g}{added}"


def listed(names: Iterable[str]) -> str:
    names = list(names)
    return " | ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def selection_note(others: Iterable[str]) -> str:
    """How to get at the rest; in `fuse` the option is called --hsi-variable or --msi-variable."""
    names = listed(others)
    return f"--variable {names} (in fuse --hsi-variable or --msi-variable)" if names else "nothing"


AS_DELIVERED = "the metadata as delivered"
ODL_LINE = re.compile(r"^\s*(\w+)\s*=\s*(.*?)\s*$")

Groups = Mapping[str, Mapping[str, str]]


class XmlMetadata:
    """A document whose names are looked up without their name spaces; what is missing or no number becomes one clear
    error.
    """

    def __init__(self, file: DeliveredFile) -> None:
        self.file = file
        try:
            self.root: Element = fromstring(file.content(), forbid_dtd=True)
        except DefusedXmlException as error:
            raise CubeFileError(
                f"{file.shown} holds a document type or entities, which no product does", AS_DELIVERED, "fetch it again"
            ) from error
        except (ParseError, ValueError, LookupError) as error:
            raise CubeFileError(f"{file.shown} is no whole XML: {error}", AS_DELIVERED, "fetch it again") from error
        for element in self.root.iter():
            if isinstance(element.tag, str):
                element.tag = element.tag.rpartition("}")[2]

    def all(self, path: str) -> list[Element]:
        return self.root.findall(path)

    def text(self, *paths: str) -> str | None:
        """The text at the first of these paths that has any."""
        texts = ((self.root.findtext(path) or "").strip() for path in paths)
        return next((text for text in texts if text), None)

    def require(self, *paths: str) -> str:
        text = self.text(*paths)
        if text is None:
            raise CubeFileError(f"{self.file.shown} has no {paths[0]}", AS_DELIVERED, "fetch it again")
        return text

    def number(self, *paths: str) -> float:
        return self.to_number(self.require(*paths), paths[0])

    def child_number(self, element: Element, name: str) -> float:
        return self.to_number((element.findtext(name) or "").strip(), f"{element.tag}/{name}")

    def to_number(self, text: str, name: str) -> float:
        return number_of(text, name, self.file)


def number_of(text: str, name: str, file: DeliveredFile) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise CubeFileError(f"{file.shown}: {name} is {text[:40]!r}", "a number", "fetch it again")
    return number


def read_groups(file: DeliveredFile) -> Groups:
    """The groups of an MTL file, as text (.txt), JSON or XML, each a table of texts."""
    suffix = file.base_name.rpartition(".")[2].lower()
    if suffix == "xml":
        return {
            group.tag: {entry.tag: (entry.text or "").strip() for entry in group} for group in XmlMetadata(file).root
        }
    text = file.content().decode("utf-8", "replace")
    return _json_groups(text, file) if suffix == "json" else _odl_groups(text, file)


def _odl_groups(text: str, file: DeliveredFile) -> Groups:
    groups: dict[str, dict[str, str]] = {}
    open_groups: list[str] = []
    ended = False
    for line in text.splitlines():
        ended = ended or line.strip() == "END"
        found = ODL_LINE.match(line)
        if not found:
            continue
        name, value = found[1], found[2].strip('"')
        if name == "GROUP":
            open_groups.append(value)
            groups[value] = {}
        elif name == "END_GROUP":
            open_groups = open_groups[:-1]
        elif open_groups:
            groups[open_groups[-1]][name] = value
    if not groups or open_groups or not ended:
        raise CubeFileError(f"{file.shown} is no whole list of GROUP = ... END", AS_DELIVERED, "fetch it again")
    return groups


def _json_groups(text: str, file: DeliveredFile) -> Groups:
    try:
        document: Any = json.loads(text)
        root = next(iter(document.values()))
        return {name: {key: str(value) for key, value in group.items()} for name, group in root.items()}
    except (ValueError, AttributeError, StopIteration, RecursionError) as error:
        raise CubeFileError(f"{file.shown} is no JSON of groups: {error}", AS_DELIVERED, "fetch it again") from error


def entry(groups: Groups, group: str, key: str, file: DeliveredFile) -> str:
    text = groups.get(group, {}).get(key)
    if text is None:
        raise CubeFileError(f"{file.shown} has no {key} in {group}", AS_DELIVERED, "fetch it again")
    return text
