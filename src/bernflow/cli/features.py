"""Required packages, and the optional features with their packages."""

from typing import NamedTuple

# Dependencies whose versions are relevant for problem reports.
BASE = (
    "jax",
    "jaxlib",
    "numpyro",
    "equinox",
    "optax",
    "numpy",
    "scipy",
    "arviz-base",
    "arviz-stats",
    "arviz-plots",
    "xarray",
    "matplotlib",
    "h5netcdf",
)


class Feature(NamedTuple):
    """An optional feature.

    Attributes:
        extra: name of the extra that installs its packages.
        name: description of the feature.
        use: how to use it.
        packages: required packages.
        more: what else to install.
    """

    extra: str
    name: str
    use: str
    packages: tuple[str, ...]
    more: str = ""

    @property
    def install(self) -> str:
        """The command to run."""
        return f"pip install 'bernflow[{self.extra}]'{self.more}"


FEATURES = (
    Feature(
        "stan",
        "Stan programs",
        "bf.from_stan, bernflow fit MODEL.stan",
        ("httpstan",),
        ", and a C++ compiler (apt-get install g++, dnf install gcc-c++, xcode-select --install)",
    ),
    Feature("pymc", "PyMC models", "bf.from_pymc", ("pymc",)),
    Feature("bambi", "formulas with random effects", "bf.fit(bambi_model)", ("bambi",)),
    Feature(
        "peers", "other flows and samplers", "family='planar' or 'realnvp', sampler='blackjax'", ("flowjax", "blackjax")
    ),
    Feature("semistructured", "formulas", "bf.SemiStructured(formula=...)", ("formulaic",)),
    Feature("networks", "Flax networks", "bf.Model(network=...)", ("flax",)),
    Feature("images", "images of the melanoma experiment", "bernflow data melanoma", ("pyarrow", "pillow")),
    Feature(
        "speed",
        "the paper's flow in TensorFlow Probability",
        "bernflow benchmark speed",
        ("tensorflow-cpu", "tensorflow-probability", "tf-keras"),
    ),
    Feature("interactive", "interactive figures", "bf.plots.use('plotly')", ("plotly", "webcolors")),
    Feature(
        "notebooks", "tutorials as notebooks", "make notebooks", ("jupytext", "nbclient", "ipykernel", "ipywidgets")
    ),
    Feature("zarr", "draws as Zarr", "bernflow fit --format zarr", ("zarr", "numcodecs")),
)
