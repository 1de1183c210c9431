"""A private run as an entry of a registry of deployments, and what NIST SP 800-226 asks of it.

The keys of `registry` are those of the Privacy Deployments Registry of OpenDP
(github.com/opendp/deployments-registry-data, its template of an entry); what a run cannot know of a
deployment is empty there. `registry.schema.json` is the JSON Schema of the whole.

Source: Near, Darais, Lefkovitz, Howarth 2025, "Guidelines for Evaluating Differential Privacy
Guarantees" (NIST SP 800-226); Nanayakkara, Ghazi, Vadhan 2025, "Practitioners' Perspectives on a
Differential Privacy Deployment Registry" (arXiv 2509.13509).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from clipnoise.errors import UserError
from clipnoise.privacy.claim import NEIGHBOURS, PrivacyStatement
from clipnoise.privacy.remarks import of_delta, of_epsilon
from clipnoise.run.results import Summary, read_run, verify_epsilon
from clipnoise.run.spec import from_mapping

if TYPE_CHECKING:
    from clipnoise.privacy.profile import PrivacyProfile
    from clipnoise.run.spec import RunSpec

SCHEMA = Path(__file__).with_name("registry.schema.json")
MECHANISM = (
    *("accountant", "sampler", "noise_multiplier", "sampling_rate", "steps", "groups"),
    *("clip_norm", "sensitivity", "microbatch_size", "noise", "randomness"),
)
GUARANTEE = (
    *("claim", "caveat", "epsilon", "delta", "adjacency", "unit", "examples", "release"),
    *("covers", "does_not_cover"),
)
Answer = Literal["addressed", "present", "not known"]


@dataclass(frozen=True, kw_only=True)
class Hazard:
    """What can make a guarantee weaker than it looks.

    Attributes:
        hazard: what it is about.
        answer: "addressed" or "present", as far as the run shows, or "not known".
        facts: what the run shows, in sentences.
    """

    hazard: str
    answer: Answer
    facts: str


def registry_entry(folder: Path) -> dict[str, object]:
    """Return a finished private run as an entry, plain data.

    Args:
        folder: of the run, with its summary.json.

    Raises:
        UserError: no run has finished there, its result is damaged or states a wrong ε, or it
            protects nothing.
    """
    files = read_run(folder)
    if files is None:
        raise UserError(f"{folder}: no run has finished here; it has no summary.json.")
    spec = from_mapping(files.summary["spec"])
    calibration = verify_epsilon(spec, files)
    if calibration is None:
        raise UserError(f"{folder}: the run is non-private, so there is no guarantee to register.")
    names = PrivacyStatement.__dataclass_fields__
    stated = {name: one for name, one in files.summary["privacy"].items() if name in names}
    return _entry(spec, stated, calibration.profile, files.summary)


def _entry(
    spec: RunSpec, stated: Mapping[str, Any], profile: PrivacyProfile, summary: Summary
) -> dict[str, object]:
    points = {"epsilons": list(profile.epsilons), "deltas": list(profile.deltas)}
    return {
        "registry": _deployment(spec, stated, summary),
        "mechanism": {
            "method": spec.method.id,
            **{name: stated.get(name) for name in MECHANISM},
        },
        "guarantee": {name: stated.get(name) for name in GUARANTEE},
        "comparable": {**profile.stated(), "profile": points},
        "tuning": _tuning(spec),
        "hazards": [asdict(one) for one in _hazards(spec, stated)],
    }


def _deployment(spec: RunSpec, stated: Mapping[str, Any], summary: Summary) -> dict[str, object]:
    """Return what the registry of OpenDP asks for."""
    neighbours, delta = NEIGHBOURS[stated["adjacency"]], stated["delta"]
    nominal = "" if stated["claim"] == "guarantee" else "Nominal, not guaranteed. "
    return {
        "url_slug": f"{spec.dataset.id}-{spec.method.id}-{spec.hash}",
        "deployment": {
            "basic": {
                "name": "",
                "description": f"{spec.model.id} trained on {spec.dataset.title}",
                "intended_use": "",
                "data_product_type": "Machine learning model",
                "publication_date": "",
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"Datasets in which {neighbours}.",
                "unprotected_quantities": stated.get("does_not_cover") or "not known",
            },
            "privacy_loss": {
                "privacy_unit": stated["unit"],
                "privacy_unit_details": f"Neighbouring datasets: {neighbours}.",
                "number_of_privacy_units": stated["examples"],
                "privacy_parameters": {"epsilon": stated["epsilon"], "delta": delta},
                "privacy_parameters_details": f"{nominal}Accountant: {stated['accountant']}.",
            },
            "deployment_model": {
                "model_name": "Central",
                "trust_assumptions": "Whoever trains sees all data and all noise-free sums.",
                "release_type": "One release",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": (
                    f"{spec.dataset.preprocessing}. {_charge(spec)}"
                ),
                "mechanisms": (
                    f"Gaussian noise on clipped sums, {stated['sampler']} sampling; clipnoise at "
                    f"commit {summary.get('git_commit') or 'not known'}."
                ),
                "composition": f"All {stated['steps']} steps, by {stated['accountant']}.",
                "post_processing": f"The update rule of {spec.method.id}.",
            },
        },
        "administrative": {"status": "Draft"},
    }


def _tuning(spec: RunSpec) -> dict[str, object]:
    """Return what was searched for, and what pays for it."""
    search = spec.tuning
    return {
        "parameters": [] if search is None else list(search.parameters),
        "configurations": None if search is None else search.configurations,
        "runs": None if search is None else search.runs,
        "charge": _charge(spec),
    }


def _charge(spec: RunSpec) -> str:
    if spec.tuning is None:
        return "No search of the suite chose settings; how they were chosen is not known."
    return "ε is that of the final run alone and does not include the search."


def _hazards(spec: RunSpec, stated: Mapping[str, Any]) -> Iterator[Hazard]:
    yield from _of_parameters(stated)
    yield from _of_mechanism(stated)
    yield from _of_data(spec, stated)


def _of_parameters(stated: Mapping[str, Any]) -> Iterator[Hazard]:
    weak, unit = of_epsilon(stated["epsilon"]), stated["unit"]
    yield _hazard("large epsilon", not weak, weak or f"ε = {stated['epsilon']:.6g}.")
    wide = of_delta(stated["delta"], stated["examples"], unit)
    yield _hazard("delta against 1/n", not wide, wide or f"δ = {stated['delta']:.3g}.")
    known: Answer = "not known" if unit == "example" else "addressed"
    facts = "Whether one person has several examples is not known." if unit == "example" else ""
    yield Hazard(hazard="unit of privacy", answer=known, facts=f"The unit is one {unit}. {facts}")


def _of_mechanism(stated: Mapping[str, Any]) -> Iterator[Hazard]:
    proved = stated["claim"] == "guarantee"
    reason = stated.get("caveat") or (
        f"the analysis of {stated['accountant']} does not cover {stated['sampler']} sampling"
    )
    yield _hazard(
        "proof of the mechanism",
        proved,
        "The accountant's analysis covers the batches and the noise covers the sensitivity."
        if proved
        else f"ε is nominal: {reason}.",
    )
    secure = stated["randomness"] == "secure"
    yield _hazard(
        "random numbers",
        secure,
        "Noise and batches came from a cryptographic source."
        if secure
        else "Noise and batches follow from a seed, and whoever knows it can compute the noise.",
    )
    yield _hazard(
        "floating-point numbers",
        False,
        "Noise is added in floating-point numbers; attacks by their lowest bits are not prevented.",
    )
    yield _hazard("side channels", False, "Time, memory, power and network are not protected.")


def _of_data(spec: RunSpec, stated: Mapping[str, Any]) -> Iterator[Hazard]:
    tuned = spec.tuning is not None
    yield Hazard(
        hazard="tuning on private data",
        answer="present" if tuned else "not known",
        facts=_charge(spec),
    )
    yield Hazard(
        hazard="preprocessing that depends on data",
        answer="not known",
        facts=f"Preprocessing: {spec.dataset.preprocessing}. ε does not cover it.",
    )
    yield Hazard(
        hazard="side information and public data",
        answer="not known",
        facts="That public examples, pretrained weights and vocabularies hold nothing private is "
        "trusted, not checked.",
    )
    strict = stated["release"] == "strict"
    yield _hazard(
        "unprotected outputs",
        strict,
        "No loss, accuracy or digest of private data was written."
        if strict
        else "Losses, accuracies and speeds were written beside the model, and no ε covers them.",
    )
    for hazard, facts in (
        ("several releases", "What else was or will be published of the same data is not known."),
        ("data collection and access", "How data were collected and are stored is not known."),
    ):
        yield Hazard(hazard=hazard, answer="not known", facts=facts)


def _hazard(hazard: str, addressed: bool, facts: str) -> Hazard:
    return Hazard(hazard=hazard, answer="addressed" if addressed else "present", facts=facts)
