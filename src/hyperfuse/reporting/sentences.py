"""Scores in words: what each says, which way is better, and when it misleads."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hyperfuse.reporting.findings import OnceMore, QualityFindings

ABSENT = "-"


@dataclass(frozen=True)
class ScoreRow:
    name: str
    value: str
    best: str
    meaning: str
    misleads: str


@dataclass(frozen=True)
class ScoreGroup:
    title: str
    introduction: str
    rows: tuple[ScoreRow, ...]


def score_groups(findings: QualityFindings) -> list[ScoreGroup]:
    groups = [_against_reference(findings)] if findings.against_reference is not None else []
    groups += [_consistency(findings), _reduced_resolution(findings.reduced_resolution), _indices(findings)]
    return groups if findings.has_angles else [_without_angles(group) for group in groups]


def _without_angles(group: ScoreGroup) -> ScoreGroup:
    return replace(group, rows=tuple(row for row in group.rows if not row.name.endswith("SAM")))


def _against_reference(findings: QualityFindings) -> ScoreGroup:
    assert findings.against_reference is not None
    scores = findings.against_reference.scores
    return ScoreGroup(
        "Against the reference",
        f"The truth is known here; nothing else on this page weighs as much. Peak of the signal: {scores.peak:.6g}.",
        (
            ScoreRow(
                "PSNR",
                _shown(scores.psnr_db, 2, " dB"),
                "high",
                "How small the squared error is beside the peak, over all values.",
                "A bright peak, or a scene that is mostly dark, raises it. Compare only with the same peak.",
            ),
            ScoreRow(
                "PSNR, mean over bands",
                _shown(scores.mean_band_psnr_db, 2, " dB"),
                "high",
                "The same for each band, then averaged: weak bands count as much as strong ones.",
                "Bands of noise pull it down whatever the method does.",
            ),
            ScoreRow(
                "SAM",
                _shown(scores.spectral_angle_degrees, 3, "°"),
                "low",
                "The mean angle between fused and true spectra: are materials told apart?",
                "It does not see brightness, and dark pixels have large angles from noise alone.",
            ),
            ScoreRow(
                "ERGAS",
                _shown(scores.ergas, 3, ""),
                "low",
                "Error of each band as a share of its mean, over the scale.",
                "Some tables keep the factor of scale 4 at every scale.",
            ),
            ScoreRow(
                "SSIM",
                _shown(scores.ssim, 4, ""),
                "1",
                "Likeness of edges and texture in windows of 11 x 11 pixels.",
                "Flat areas look alike whatever their colour.",
            ),
            ScoreRow(
                "RMSE",
                f"{scores.rmse:.4g}",
                "0",
                "Root mean square error, in the unit of the values.",
                "It says nothing of where.",
            ),
        ),
    )


def _consistency(findings: QualityFindings) -> ScoreGroup:
    hsi, msi = findings.consistency.with_hsi, findings.consistency.with_msi
    noise = _relative_noise(findings)
    return ScoreGroup(
        "Consistency with both inputs",
        "A true image, degraded, gives both inputs back up to their noise. That is necessary, not sufficient: details that both "
        "inputs are blind to may be wrong all the same."
        + ("" if noise is None else f" The HSI's own noise is estimated at {100 * noise:.2g} % of its signal."),
        (
            ScoreRow(
                "HSI: error",
                _percent(hsi.relative),
                "as the noise",
                "The fused image, blurred and decimated as the HSI's pixels do it, against the HSI: error over signal.",
                "Bicubic interpolation scores well here and adds no detail. A wrong point spread or shift raises it.",
            ),
            ScoreRow(
                "HSI: SAM",
                _shown(hsi.spectral_angle_degrees, 3, "°"),
                "low",
                "The angle between these spectra and the HSI's: have materials kept their spectra?",
                "Errors that cancel within a coarse pixel do not show.",
            ),
            ScoreRow(
                "MSI: error",
                _percent(msi.relative),
                "as the noise",
                "The fused image seen through the MSI's bands, against the MSI: error over signal. It sees missing detail.",
                "The response is estimated unless it was given; what it cannot explain counts as error.",
            ),
        ),
    )


def _reduced_resolution(judged: OnceMore) -> ScoreGroup:
    introduction = (
        "Both inputs are degraded by the same scale again and fused as before: then the HSI itself is the truth. It judges what "
        "made the image rather than the image, and one scale coarser: there the scene has other details than at its own scale, "
        "so the ranking of two methods carries over better than the numbers do."
    )
    scores = judged.scores
    if scores is None:
        return ScoreGroup("Degraded once more", f"{introduction} Not done: {judged.why_not}", ())
    rows, columns = scores.coarser_size
    return ScoreGroup(
        f"Degraded once more: {judged.fused_by}",
        f"{introduction} Here from {rows} x {columns} coarser pixels, x{scores.scale[0]:.3g}, peak {scores.peak:.6g}.",
        (
            ScoreRow(
                "PSNR",
                _shown(scores.psnr_db, 2, " dB"),
                "high",
                f"Bicubic interpolation reaches {scores.bicubic_psnr_db:.2f} dB.",
                "A method that was tuned at one scale may fall behind at another.",
            ),
            ScoreRow(
                "SAM",
                _shown(scores.spectral_angle_degrees, 3, "°"),
                "low",
                f"Bicubic interpolation reaches {scores.bicubic_angle_degrees:.3f}°.",
                "Coarser pixels are more mixed, which makes spectra easier than at the image's own scale.",
            ),
        ),
    )


def _indices(findings: QualityFindings) -> ScoreGroup:
    found = findings.without_reference
    missing = None in (found.spectral_distortion, found.spatial_distortion, found.khan_distortion)
    return ScoreGroup(
        "Indices without a reference",
        "They compare relations within the inputs with the same relations within the fused image, in blocks of 32 x 32 fine and "
        f"{found.coarse_block} x {found.coarse_block} coarse pixels. Use them to compare results of one pair, not across scenes."
        + (
            f" {ABSENT}: no block is whole, without holes and without pixels that look beyond the edge."
            if missing
            else ""
        ),
        (
            ScoreRow(
                "D_lambda",
                _shown(found.spectral_distortion, 4, ""),
                "0",
                "How much the likeness of every two bands has changed from the HSI to the fused image.",
                "Real detail changes it, too: bands that are alike when blurred may differ when sharp. Bicubic is near 0.",
            ),
            ScoreRow(
                "D_s",
                _shown(found.spatial_distortion, 4, ""),
                "0",
                "How much the likeness of each band to the MSI band that follows it best has changed between the scales.",
                "It takes the likeness for the same at both scales; a shift between the images or a band far from the MSI's "
                "own breaks that.",
            ),
            ScoreRow(
                "QNR",
                _shown(found.qnr, 4, ""),
                "1",
                "(1 - D_lambda)(1 - D_s).",
                "It inherits both weaknesses; interpolation may win it.",
            ),
            ScoreRow(
                "D_lambda, Khan",
                _shown(found.khan_distortion, 4, ""),
                "0",
                "1 - Q2n of the degraded fused image against the HSI: consistency as an index of whole spectra.",
                "As consistency: blind to details within a coarse pixel.",
            ),
            ScoreRow(
                "HQNR",
                _shown(found.hqnr, 4, ""),
                "1",
                "(1 - D_lambda, Khan)(1 - D_s): the steadier of the two.",
                "It leans on the point spread, which is estimated unless it was given.",
            ),
        ),
    )


def _relative_noise(findings: QualityFindings) -> float | None:
    """The HSI's noise as a share of its signal, both root mean square."""
    import numpy as np

    values = findings.part.hsi_values
    signal = float(np.sqrt(np.nanmean(np.square(values.astype(np.float64))))) if np.isfinite(values).any() else 0.0
    noise = float(findings.part.observation.hsi_noise.square().mean().sqrt())
    return noise / signal if signal > 0 else None


def _shown(value: float | None, digits: int, unit: str) -> str:
    return ABSENT if value is None else f"{value:.{digits}f}{unit}"


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{100 * share:.3g} %"
