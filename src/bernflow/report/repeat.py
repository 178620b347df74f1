"""How to cite a fit and how to repeat it: references, versions, random key and call."""

from collections.abc import Mapping
from typing import Any

from bernflow.fit.settings import default_tolerance
from bernflow.report.material import Material
from bernflow.versions import version_of

PAPER = (
    'Dürr, O., Hörling, S., Dold, D., Kovylov, I. and Sick, B. (2022). "Bernstein Flows for Flexible Posteriors in '
    'Variational Bayes." doi:10.48550/arXiv.2202.05650'
)
# Arguments of a call, in its order; those that have their default are left out.
DEFAULTS: Mapping[str, Any] = {
    "family": "bernstein",
    "time_limit": None,
    "restarts": 1,
    "components": None,
    "checks": "default",
}


def citations(material: Material) -> list[str]:
    """Return the references of the method and of the software, with the version that made the fit."""
    version = _versions(material).get("bernflow", version_of("bernflow"))
    return [PAPER, f"The bernflow authors. bernflow {version}: Bayesian inference with Bernstein flows [software]."]


def call_of(material: Material) -> str:
    """Return the call that makes the fit again, or an empty text if the random key is unknown.

    The number of steps is part of it only if the training did not end by itself.
    """
    settings = material.settings
    if "key" not in settings:
        return ""
    key = settings["key"]
    given = [f"key={key}" if isinstance(key, int) else f"key=jax.random.wrap_key_data(jnp.uint32({key}))"]
    defaults = {**DEFAULTS, "tolerance": _default_tolerance(material)}
    given += [
        f"{name}={settings[name]!r}"
        for name, default in defaults.items()
        if settings.get(name) is not None and settings[name] != default
    ]
    if settings.get("interrupted") or settings.get("out_of_time"):
        given.append(f"steps={settings['steps']}")
    return f"post = bf.fit(model, *data, {', '.join(given)})"


def conditions(material: Material) -> list[str]:
    """Return sentences about what a repetition needs and what it gives."""
    versions = ", ".join(f"{name} {version}" for name, version in _versions(material).items())
    found = [f"The fit was made with {versions}."] if versions else []
    if material.settings.get("precision"):
        found.append(f"It was trained in {material.settings['precision']}.")
    found.append(
        "The same versions, data and key give the same result on the same kind of machine; other machines differ by "
        "rounding, which training amplifies to differences within the Monte Carlo error of a good fit."
    )
    return found


def _default_tolerance(material: Material) -> float | None:
    structure = material.structure
    return None if structure is None else default_tolerance(len(structure.globals) + sum(map(len, structure.blocks)))


def _versions(material: Material) -> dict[str, str]:
    return {str(name): str(version) for name, version in (material.settings.get("versions") or {}).items()}
