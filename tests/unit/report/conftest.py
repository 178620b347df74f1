"""Posteriors that need no fit: a Gaussian q, with or without a model."""

import html.parser

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro import distributions as dist
from numpyro.distributions import constraints

import bernflow as bf
from bernflow.diagnostics import judge
from bernflow.flows.base import AbstractDistribution
from bernflow.models.base import Site
from bernflow.posterior import Posterior
from bernflow.report.material import gather
from bernflow.target import Layout, layout_of

HISTORY = {"step": np.arange(25, 1025, 25), "elbo": -5 - np.exp(-np.arange(40) / 4), "elbo_se": np.full(40, 0.01)}
SETTINGS = {
    "family": "bernstein",
    "restarts": 1,
    "components": 1,
    "precision": "float32",
    "steps": 1000,
    "wall_seconds": 2.5,
    "interrupted": False,
    "versions": {"bernflow": "0.0.9", "jax": "0.1"},
}
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Gaussian(AbstractDistribution):
    loc: jax.Array
    scale: jax.Array
    dim: int

    def sample_and_log_prob(self, key, num):
        x = self.loc + self.scale * jax.random.normal(key, (num, self.dim))
        return x, self.log_prob(x)

    def log_prob(self, x):
        return jax.scipy.stats.norm.logpdf(x, self.loc, self.scale).sum(axis=-1)

    def recipe(self):
        return {}


@pytest.fixture
def make():
    """Make a posterior of given sites without a model; log weights decide its verdict."""

    def posterior(sites=None, log_weights=None, **settings):
        sites = sites or {"tau": ((), constraints.positive), "b": ((3,), constraints.real)}
        layout = Layout(tuple(Site(name, *rest) for name, rest in sites.items()))
        q = Gaussian(jnp.zeros(layout.dim), jnp.ones(layout.dim), layout.dim)
        diagnostics = judge(np.zeros(2000) if log_weights is None else log_weights)
        return Posterior(q, layout, None, diagnostics, HISTORY, SETTINGS | settings)

    return posterior


@pytest.fixture
def with_model():
    """Make a posterior with its model: mu ~ N(0, 1), y ~ N(mu, 1), and the exact q."""

    def posterior(y=None, model=None):
        y = np.random.default_rng(0).normal(0.5, 1.0, 40) if y is None else y
        if model is None:
            model = bf.Model(prior={"mu": dist.Normal(0, 1)}, likelihood=lambda theta: dist.Normal(theta["mu"], 1), y=y)
        layout, num = layout_of(model), np.size(y)
        q = Gaussian(jnp.full(1, np.sum(y) / (num + 1)), jnp.full(1, (num + 1) ** -0.5), 1)
        post = Posterior(q, layout, model, judge(np.zeros(2000)), HISTORY, SETTINGS)
        return Posterior(q, layout, model, judge(post.log_weights(2000)), HISTORY, SETTINGS)

    return posterior


@pytest.fixture
def material(make):
    def gathered(post=None, num=200, weighted=False, **kwargs):
        return gather(post or make(**kwargs), num, 1, weighted)

    return gathered


class Page(html.parser.HTMLParser):
    """A page as a browser reads it: elements with attributes, texts by element, ids."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.texts, self._open = [], [], []
        self.source = text
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self._open[-1] if self._open else "", data.strip()))

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, *tags):
        return " ".join(data for tag, data in self.texts if not tags or tag in tags)


@pytest.fixture
def parse():
    return Page
