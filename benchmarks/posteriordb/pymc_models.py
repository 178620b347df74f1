"""Eight of the posteriors as PyMC models; each function builds the model of one data set."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

Data = Mapping[str, Any]


def eight_schools_noncentered(data: Data) -> Any:
    """Build eight schools with standardized effects; theta = mu + tau * theta_trans is derived."""
    import pymc as pm

    with pm.Model(coords={"school": np.arange(1, data["J"] + 1)}) as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        theta_trans = pm.Normal("theta_trans", 0.0, 1.0, dims="school")
        theta = pm.Deterministic("theta", mu + tau * theta_trans, dims="school")
        pm.Normal("y", theta, data["sigma"], observed=data["y"], dims="school")
    return model


def diamonds(data: Data) -> Any:
    """Build the regression of log prices of diamonds on 24 centered, nearly collinear predictors."""
    import pymc as pm

    x = data["X"][:, 1:]
    with pm.Model(coords={"predictor": np.arange(2, data["K"] + 1)}) as model:
        b = pm.Normal("b", 0.0, 1.0, dims="predictor")
        intercept = pm.StudentT("Intercept", nu=3.0, mu=8.0, sigma=10.0)
        sigma = pm.HalfStudentT("sigma", nu=3.0, sigma=10.0)
        pm.Normal("Y", (x - x.mean(axis=0)) @ b + intercept, sigma, observed=data["Y"])
    return model


def ark(data: Data) -> Any:
    """Build the regression of a time series on its K values before, given the first K."""
    import pymc as pm

    y, num_lags = data["y"], data["K"]
    lagged = np.stack([y[num_lags - k : len(y) - k] for k in range(1, num_lags + 1)], axis=1)
    with pm.Model(coords={"lag": np.arange(1, num_lags + 1)}) as model:
        alpha = pm.Normal("alpha", 0.0, 10.0)
        beta = pm.Normal("beta", 0.0, 10.0, dims="lag")
        sigma = pm.HalfCauchy("sigma", 2.5)
        pm.Normal("y", alpha + lagged @ beta, sigma, observed=y[num_lags:])
    return model


def kidscore_interaction(data: Data) -> Any:
    """Build the regression of a test score of children on their mother's school, her score and the product of both."""
    import pymc as pm

    school, score = data["mom_hs"], data["mom_iq"]
    predictors = {"intercept": np.ones(data["N"]), "mom_hs": school, "mom_iq": score, "mom_hs:mom_iq": school * score}
    with pm.Model(coords={"predictor": list(predictors)}) as model:
        beta = pm.Flat("beta", dims="predictor")
        sigma = pm.HalfCauchy("sigma", 2.5)
        pm.Normal("kid_score", _design(predictors) @ beta, sigma, observed=data["kid_score"])
    return model


def logearn_interaction(data: Data) -> Any:
    """Build the regression of log earnings on height, sex and the product of both, with flat priors."""
    height, male = data["height"], data["male"]
    predictors = {"intercept": np.ones(data["N"]), "height": height, "male": male, "height:male": height * male}
    return _flat_regression(predictors, "log_earn", np.log(data["earn"]))


def logmesquite(data: Data) -> Any:
    """Build the regression of the log weight of mesquite bushes on five log measurements and their group."""
    measured = ("diam1", "diam2", "canopy_height", "total_height", "density")
    logs = {f"log_{name}": np.log(data[name]) for name in measured}
    predictors = {"intercept": np.ones(data["N"]), **logs, "group": data["group"]}
    return _flat_regression(predictors, "log_weight", np.log(data["weight"]))


def nes(data: Data) -> Any:
    """Build the regression of party identification on eight properties of a voter, with flat priors."""
    ages = {f"age_{group}": data["age_discrete"] == group for group in (2, 3, 4)}
    before = {name: data[name] for name in ("real_ideo", "race_adj")}
    after = {name: data[name] for name in ("educ1", "gender", "income")}
    predictors = {"intercept": np.ones(data["N"]), **before, **ages, **after}
    return _flat_regression(predictors, "partyid7", data["partyid7"])


def blr(data: Data) -> Any:
    """Build the regression of an outcome on five strongly correlated predictors without an intercept."""
    import pymc as pm

    with pm.Model(coords={"predictor": np.arange(1, data["D"] + 1)}) as model:
        beta = pm.Normal("beta", 0.0, 10.0, dims="predictor")
        sigma = pm.HalfNormal("sigma", 10.0)
        pm.Normal("y", data["X"] @ beta, sigma, observed=data["y"])
    return model


def _flat_regression(predictors: Mapping[str, np.ndarray], name: str, outcome: np.ndarray) -> Any:
    """Build a regression with flat priors on the coefficients and on the scale."""
    import pymc as pm

    with pm.Model(coords={"predictor": list(predictors)}) as model:
        beta = pm.Flat("beta", dims="predictor")
        sigma = pm.HalfFlat("sigma")
        pm.Normal(name, _design(predictors) @ beta, sigma, observed=outcome)
    return model


def _design(predictors: Mapping[str, np.ndarray]) -> Float[np.ndarray, "n k"]:
    return np.stack([np.asarray(values, np.float64) for values in predictors.values()], axis=1)
