"""The Processing provider: one algorithm per command, its parameters made from what the installed command offers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processing.core.ProcessingConfig import ProcessingConfig, Setting
from qgis.core import (
    Qgis,
    QgsApplication,
    QgsMessageLog,
    QgsProcessingAlgorithm,
    QgsProcessingException,
    QgsProcessingParameterBoolean,
    QgsProcessingParameterDefinition,
    QgsProcessingParameterEnum,
    QgsProcessingParameterExtent,
    QgsProcessingParameterFile,
    QgsProcessingParameterFileDestination,
    QgsProcessingParameterNumber,
    QgsProcessingParameterRasterDestination,
    QgsProcessingParameterRasterLayer,
    QgsProcessingParameterString,
    QgsProcessingProvider,
    QgsProviderRegistry,
    QgsSettings,
)
from qgis.PyQt.QtGui import QIcon

from .command import COMMANDS, CommandError, arguments_for, describe, find_command, run

SETTING = "HYPERFUSE_COMMAND"
CACHE = "hyperfuse/options"
ICON = str(Path(__file__).with_name("icon.svg"))
# QGIS asks before it replaces a file, and an extent carries its CRS.
NOT_ASKED = ("overwrite", "bounds_crs")


@dataclass(frozen=True)
class File:
    """A file that a command takes; without a flag it is positional. `written` is its suffix where it is an output."""

    name: str
    label: str
    flag: str = ""
    optional: bool = False
    written: str = ""


HSI = File("HSI", "Coarse hyperspectral image (HSI)")
MSI = File("MSI", "Fine multispectral image (MSI) of the same place")
FUSED = File("FUSED", "Fused image")
TITLES = {
    "fuse": "Fuse a hyperspectral with a multispectral image",
    "estimate": "Estimate how a pair was observed",
    "evaluate": "Evaluate a fused image against a reference",
    "report": "Write a quality report of a fused image",
}
# An output without a flag is what the command prints with --json; without that file, a table is shown instead.
FILES = {
    "fuse": (HSI, MSI, File("REPORT", "Quality report", "--report-to", True, "html"),
             File("OUTPUT", "Fused image", "-o", False, "tif")),
    "estimate": (HSI, MSI, File("OUTPUT", "Shift, PSF, SRF and noise", "", True, "json")),
    "evaluate": (FUSED, File("REFERENCE", "Reference: the same bands on the same grid"),
                 File("OUTPUT", "Scores", "", True, "json")),
    "report": (FUSED, File("HSI", HSI.label, "--hsi"), File("MSI", MSI.label, "--msi"),
               File("REFERENCE", "Reference, if known", "--reference", True),
               File("OUTPUT", "Quality report", "-o", False, "html")),
}  # fmt: skip


class Plugin:
    """What QGIS loads and unloads."""

    def __init__(self) -> None:
        self.provider = Provider()

    def initProcessing(self) -> None:  # noqa: N802
        QgsApplication.processingRegistry().addProvider(self.provider)

    def initGui(self) -> None:  # noqa: N802
        self.initProcessing()

    def unload(self) -> None:
        QgsApplication.processingRegistry().removeProvider(self.provider)


class Provider(QgsProcessingProvider):
    def id(self) -> str:
        return "hyperfuse"

    def name(self) -> str:
        return "hyperfuse"

    def icon(self) -> QIcon:
        return QIcon(ICON)

    def load(self) -> bool:
        ProcessingConfig.settingIcons["hyperfuse"] = self.icon()
        label = "hyperfuse command (found on the PATH if empty)"
        ProcessingConfig.addSetting(Setting("hyperfuse", SETTING, label, "", valuetype=Setting.FILE))
        ProcessingConfig.readSettings()
        self.refreshAlgorithms()
        return True

    def unload(self) -> None:
        ProcessingConfig.removeSetting(SETTING)

    def loadAlgorithms(self) -> None:  # noqa: N802
        try:
            described, problem = offered_options(configured_command()), ""
        except CommandError as error:
            described, problem = {}, str(error)
            QgsMessageLog.logMessage(problem, "hyperfuse", Qgis.Warning)
        for name in COMMANDS:
            self.addAlgorithm(Algorithm(name, described.get(name, {"summary": "", "options": []}), problem))


class Algorithm(QgsProcessingAlgorithm):
    """One command."""

    def __init__(self, command: str, described: dict[str, Any], problem: str) -> None:
        super().__init__()
        self.command, self.described, self.problem = command, described, problem
        self.options = [option for option in described["options"] if option["name"] not in NOT_ASKED]

    def createInstance(self) -> Algorithm:  # noqa: N802
        return Algorithm(self.command, self.described, self.problem)

    def name(self) -> str:
        return self.command

    def displayName(self) -> str:  # noqa: N802
        return TITLES[self.command]

    def shortHelpString(self) -> str:  # noqa: N802
        return self.described["summary"]

    def icon(self) -> QIcon:
        return QIcon(ICON)

    def canExecute(self) -> tuple[bool, str]:  # noqa: N802
        return not self.problem, self.problem

    def initAlgorithm(self, configuration: Any = None) -> None:  # noqa: N802
        files = FILES[self.command]
        for file in files:
            if not file.written:
                self.addParameter(QgsProcessingParameterRasterLayer(file.name, file.label, optional=file.optional))
        for option in self.options:
            parameter = option_parameter(option)
            parameter.setHelp(option["help"])
            # Options without a group are those that most people want to see.
            if option["group"] is not None:
                parameter.setFlags(parameter.flags() | QgsProcessingParameterDefinition.FlagAdvanced)
            self.addParameter(parameter)
        for file in files:
            if file.written == "tif":
                self.addParameter(QgsProcessingParameterRasterDestination(file.name, file.label))
            elif file.written:
                pattern = f"{file.written.upper()} (*.{file.written})"
                self.addParameter(
                    QgsProcessingParameterFileDestination(
                        file.name, file.label, pattern, optional=file.optional, createByDefault=not file.optional
                    )
                )

    def checkParameterValues(self, parameters: dict[str, Any], context: Any) -> tuple[bool, str]:  # noqa: N802
        """Accept any existing path as input: hyperfuse reads more than QGIS, such as folders of satellite products."""
        inputs = [file.name for file in FILES[self.command] if not file.written]
        paths = [name for name in inputs if isinstance(parameters.get(name), str) and Path(parameters[name]).exists()]
        for definition in self.parameterDefinitions():
            value = parameters.get(definition.name())
            if definition.name() not in paths and not definition.checkValueIsAcceptable(value, context):
                return super().checkParameterValues(parameters, context)
        return True, ""

    def processAlgorithm(self, parameters: dict[str, Any], context: Any, feedback: Any) -> dict[str, Any]:  # noqa: N802
        results: dict[str, Any] = {}
        command_line = self.command_line(parameters, context, results)
        feedback.pushCommandInfo(" ".join(command_line))

        current = ""

        def report(step: str, percentage: float) -> None:
            nonlocal current
            if step != current:
                feedback.setProgressText(step)
            current = step
            feedback.setProgress(percentage)

        try:
            printed = run(command_line, report, feedback.pushInfo, feedback.isCanceled)
        except CommandError as error:
            raise QgsProcessingException(str(error)) from error
        if "--json" in command_line:
            Path(results["OUTPUT"]).write_text(printed, encoding="utf-8")
        else:
            feedback.pushConsoleInfo(printed)
        return results

    def command_line(self, parameters: dict[str, Any], context: Any, results: dict[str, Any]) -> list[str]:
        """The call that the parameters mean; `results` receives the files that it writes."""
        words = [find_command(configured_command()), self.command]
        for file in FILES[self.command]:
            if file.written:
                path = self.parameterAsOutputLayer(parameters, file.name, context)
                results |= {file.name: path} if path else {}
            else:
                path = self.source(parameters, file.name, context)
            if path and (file.flag or not file.written):
                words += [file.flag, path] if file.flag else [path]
        for option in self.options:
            words += self.option_words(option, parameters, context, results)
        offered = {option["name"] for option in self.described["options"]}
        words += ["--overwrite"] if "overwrite" in offered else []
        prints_numbers = self.command in ("estimate", "evaluate")
        return [*words, "--json"] if prints_numbers and "OUTPUT" in results else words

    def option_words(
        self, option: dict[str, Any], parameters: dict[str, Any], context: Any, results: dict[str, Any]
    ) -> list[str]:
        name = option["name"]
        if parameters.get(name) in (None, ""):
            return []
        if name == "bounds":
            extent = self.parameterAsExtent(parameters, name, context)
            corners = (extent.xMinimum(), extent.yMinimum(), extent.xMaximum(), extent.yMaximum())
            crs = self.parameterAsExtentCrs(parameters, name, context).authid()
            return [option["flag"], *map(repr, corners), *(["--bounds-crs", crs] if crs else [])]
        if option["input"] == "output":
            results[name] = self.parameterAsOutputLayer(parameters, name, context)
            return [option["flag"], results[name]]
        read = {
            "checkbox": self.parameterAsBool,
            "number": self.parameterAsDouble,
            "select": self.parameterAsEnumString,
        }.get(option["input"], self.parameterAsString)
        return arguments_for(option, read(parameters, name, context))

    def source(self, parameters: dict[str, Any], name: str, context: Any) -> str:
        """The path of an input: of a layer, or of what QGIS cannot show, such as a folder of a satellite product."""
        layer = self.parameterAsRasterLayer(parameters, name, context)
        if layer is None:
            return self.parameterAsString(parameters, name, context)
        decoded = QgsProviderRegistry.instance().decodeUri(layer.providerType(), layer.source())
        return decoded.get("path") or layer.source()


def option_parameter(option: dict[str, Any]) -> QgsProcessingParameterDefinition:
    """The parameter of an option."""
    name, label, default, kind = option["name"], option["label"], option["default"], option["input"]
    if name == "bounds":
        return QgsProcessingParameterExtent(name, label, optional=True)
    if kind == "checkbox":
        return QgsProcessingParameterBoolean(name, label, defaultValue=default)
    if kind == "number":
        kind_of_number = QgsProcessingParameterNumber.Double
        return QgsProcessingParameterNumber(name, label, kind_of_number, defaultValue=default, optional=True)
    if kind == "select":
        choices = [str(choice) for choice in option["choices"]]
        return QgsProcessingParameterEnum(
            name, label, options=choices, defaultValue=default, optional=True, usesStaticStrings=True
        )
    if kind == "file":
        folder = QgsProcessingParameterFile.Folder if option["placeholder"] == "FOLDER" else None
        behaviour = QgsProcessingParameterFile.File if folder is None else folder
        return QgsProcessingParameterFile(name, label, behavior=behaviour, optional=True)
    if kind == "output":
        return QgsProcessingParameterRasterDestination(name, label, optional=True, createByDefault=False)
    return QgsProcessingParameterString(name, f"{label} ({option['placeholder']})", optional=True)


def configured_command() -> str:
    return ProcessingConfig.getSetting(SETTING) or ""


def offered_options(configured: str) -> dict[str, Any]:
    """What the command offers; asked once per installed version, because the answer takes seconds."""
    command = find_command(configured)
    key = f"{command} {Path(command).stat().st_mtime_ns}"
    cached = json.loads(QgsSettings().value(CACHE, "{}"))
    if cached.get("key") != key:
        cached = {"key": key, "options": describe(command)}
        QgsSettings().setValue(CACHE, json.dumps(cached))
    return cached["options"]
