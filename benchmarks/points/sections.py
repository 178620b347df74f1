"""Every equation, claim, figure and table of the paper, in its order."""

from benchmarks.points.comparisons import (
    bernoulli_over_order,
    best_of,
    better_than_gaussian,
    cauchy_ablation,
    gaussian_fails,
    khat,
    network_bands,
    outer_affine,
    score_of,
    steps_per_second,
    table_two,
)
from benchmarks.points.finding import Point, picture, stated
from benchmarks.targets import BENCHMARKS

SOURCE = "../../src/bernflow"
# KL of the five repetitions in the files of draws that the authors published, read from them by their log weights.
FILES = {
    "diamonds": "KL about 226 to 254",
    "eight-schools-centered": "KL 0.3 to 0.7",
    "eight-schools-noncentered": "",
    "toy-regression": "KL 0.12 to 0.28",
}


def _code(path: str, words: str = "") -> str:
    return f"[{words or path}]({SOURCE}/{path})"


def _page(name: str) -> str:
    return f"[{name}](../../results/{name}/README.md)"


SECTIONS: dict[str, tuple[Point, ...]] = {
    "The flow": (
        Point(
            "Eq. 1",
            "f_BP(z) = sum of Be_i(z) ϑ_i / (M + 1), the Bernstein polynomial",
            _code("flows/bernstein.py"),
            stated("the same; a test compares it with binomial probabilities"),
            files="the mean over the coefficients of Beta densities times coefficients: the same",
        ),
        Point(
            "Sec. II-A",
            "increasing coefficients by softplus make it monotone",
            _code("flows/bernstein.py", "increments"),
            stated("the same; strict monotonicity is a contract test of every flow"),
        ),
        Point(
            "Sec. II-A",
            "f = f_BP ∘ σ ∘ l with l(z) = αz + β, α = softplus(α')",
            _code("flows/paper.py"),
            stated("text: trained; recipe: as the files", "both, because text and files differ"),
            files="α' = β' = 0 are not among the trained parameters",
        ),
        Point(
            "Sec. II-A",
            "a polynomial of order M has M + 1 coefficients",
            _code("flows/families.py"),
            stated("text: order 50; recipe: 50 coefficients, order 49", "both, because text and files differ"),
            paper="M = 50",
            files="M = 50 is the number of coefficients, except with one parameter",
        ),
        Point(
            "(not said)",
            "where the coefficients start",
            _code("flows/paper.py", "published_start"),
            stated("as the files"),
            files="first dimension from 0 to 6.83 (20 Φ(u) - 10 on [0, 1]); the others where the network starts: 0, "
            "softplus(0), ...",
        ),
        Point(
            "(not said)",
            "how positive parameters are mapped to the reals",
            _code("flows/paper.py"),
            stated(
                "softplus; the order of the parameters is ours, scales first", "8 schools differ: softplus, not exp"
            ),
            files="softplus; exp(u / 10) for τ of the 8 schools",
        ),
        Point(
            "Eq. 2",
            "coefficients of dimension j are functions of z_1 to z_(j-1), by a MAF with two hidden layers of 10",
            _code("flows/conditioner.py"),
            stated("text: tanh layers on z within [0, 1]; recipe: as the files", "both, because text and files differ"),
            files="on the normal noise, and without activation: a linear function",
        ),
        Point(
            "Sec. II-A",
            "the error falls as 1/M, and larger orders do no harm",
            _page("bernoulli"),
            bernoulli_over_order,
        ),
        Point(
            "App. C",
            "an affine map behind the polynomial has no beneficial effect",
            _page("additions"),
            outer_affine,
        ),
    ),
    "The inference": (
        Point("Eq. 3", "KL = log evidence - ELBO", _code("objectives.py"), stated("the same")),
        Point("Eqs. 4, 5", "ELBO as a mean over S draws of q", _code("objectives.py"), stated("the same")),
        Point(
            "Eq. 6",
            "log q by the change of variables, a triangular Jacobian",
            _code("flows/base.py"),
            stated("the same; a contract test compares it with automatic differentiation"),
        ),
        Point(
            "Eq. 7",
            "importance ratios r = p(θ, D) / q(θ), and k-hat of their tail",
            _code("diagnostics"),
            stated("the same, with every Jacobian", "differs for positive parameters: the files leave a Jacobian out"),
            files="p at τ and σ without the log-Jacobian of their map: another posterior",
        ),
        Point(
            "Sec. II-C",
            "RMSprop of TensorFlow with its defaults",
            _code("fit/settings.py"),
            stated("rate 0.001, ρ = 0.9, ε = 1e-7"),
            files="the same",
        ),
        Point(
            "Sec. III",
            "10⁵ epochs, S = 10, five repetitions, k-hat of 50,000 draws with Rubin's rules",
            "[repetitions](../../benchmarks/paper/repetitions.py)",
            stated("the same: ten independent draws a step"),
            files="the same",
        ),
        Point(
            "Sec. III-B",
            "about 100 epochs per second on a laptop of 2023",
            _page("speed"),
            steps_per_second,
            paper="100",
        ),
    ),
    "Experiments with one parameter": (
        Point("Fig. 1", "the transformation and both densities", _page("overview"), picture("overview")),
        Point(
            "Fig. 2, left",
            "BF-VI fits a skewed posterior",
            _page("bernoulli"),
            better_than_gaussian("bernoulli", "KL at M = 50, median of 20 runs"),
        ),
        Point("Fig. 2, right", "KL over M, 20 runs", _page("bernoulli"), bernoulli_over_order),
        Point(
            "Sec. III-A", "Gaussian-VI is not flexible enough", _page("bernoulli"), gaussian_fails("bernoulli", 0.01)
        ),
        Point(
            "App. C",
            "the observations are 1 and 2",
            "[targets](../../benchmarks/targets.py)",
            stated("1 and 1", "differs because the posterior that is stated, Beta(3.1, 1.1), needs them"),
        ),
        Point(
            "Fig. 3",
            "BF-VI fits a bimodal posterior",
            _page("cauchy"),
            better_than_gaussian("cauchy", "KL at M = 50"),
        ),
        Point("Sec. III-A", "Gauss-VI fails as expected", _page("cauchy"), gaussian_fails("cauchy", 0.1)),
        Point(
            "App. C",
            "log evidence of the Cauchy example",
            "[targets](../../benchmarks/targets.py)",
            stated(f"{BENCHMARKS['cauchy'].log_evidence}, by quadrature"),
            paper="-21.43069",
        ),
        Point(
            "Fig. S3",
            "f1 needs fewer coefficients than f2 and f3",
            _page("cauchy"),
            cauchy_ablation,
            files="KL by order and seed",
        ),
        Point("Figs. S1, S2", "loss curves", _page("bernoulli") + ", " + _page("cauchy"), picture("cauchy")),
    ),
    "Experiments with several parameters": (
        Point(
            "Fig. 4, Sec. III-B",
            "toy regression: k-hat of BF-VI",
            _page("toy-regression"),
            khat("toy-regression", "toy-regression"),
            paper="0.68 (0.51, 0.86)",
            files=FILES["toy-regression"],
        ),
        Point(
            "Fig. S4",
            "the mean field has a larger k-hat, and no correlation",
            _page("toy-regression"),
            best_of("toy-regression", "toy-regression", "paper", ("gaussian",)),
            paper="0.90 (0.77, 1.01)",
        ),
        Point(
            "Sec. III-B, Fig. S5",
            "diamonds: k-hat of BF-VI",
            _page("diamonds"),
            khat("diamonds", "diamonds"),
            paper="5.34 (-2.52, 13.20)",
            files=FILES["diamonds"],
        ),
        Point(
            "Sec. III-B, Fig. S6",
            "8 schools, centered: k-hat of BF-VI",
            _page("eight-schools"),
            khat("eight-schools", "eight-schools-centered"),
            paper="0.53 (0.11, 0.95), of another posterior",
            files=FILES["eight-schools-centered"],
        ),
        Point(
            "Sec. III-B, Fig. S6",
            "8 schools, non-centered: k-hat of BF-VI",
            _page("eight-schools"),
            khat("eight-schools", "eight-schools-noncentered"),
            paper="0.36 (0.17, 0.55), of another posterior",
        ),
        Point(
            "Table II",
            "on diamonds the mean field has the smallest k-hat of five methods",
            _page("khat-table"),
            best_of("khat-table", "diamonds", "gaussian", ("student-t", "realnvp", "planar", "paper")),
        ),
        Point(
            "Table II",
            "on 8 schools, centered, BF-VI has the smallest k-hat of five methods",
            _page("khat-table"),
            best_of("khat-table", "eight-schools-centered", "paper", ("gaussian", "student-t", "realnvp", "planar")),
        ),
        Point(
            "Table II",
            "on 8 schools, non-centered, BF-VI has the smallest k-hat of five methods",
            _page("khat-table"),
            best_of("khat-table", "eight-schools-noncentered", "paper", ("gaussian", "student-t", "realnvp", "planar")),
        ),
        Point("Table II", "planar flow and RealNVP, figures of Dhaka et al.", _page("khat-table"), table_two),
        Point("Table I", "models, ground truth and best method", _page("overview"), picture("overview")),
        Point(
            "Fig. 5",
            "network regression: BF-VI is slightly better than the mean field",
            _page("nn-regression"),
            network_bands,
            paper="a figure without a number",
            files="quantiles of the MCMC, called 5 and 95 %; they are 2.5 and 97.5 %",
        ),
        Point("Fig. S7", "scaled loss curves", _page("loss-curves"), picture("loss-curves")),
        Point("Fig. 6", "the networks", _page("overview"), picture("overview")),
    ),
    "Melanoma": (
        Point(
            "Sec. III-C", "M1: log score", _page("melanoma"), score_of("M1: log score", -0.076, 0.002), paper="-0.076"
        ),
        Point(
            "Sec. III-C", "M2: log score", _page("melanoma"), score_of("M2: log score", -0.085, 0.002), paper="-0.085"
        ),
        Point(
            "Sec. III-C", "M3: log score", _page("melanoma"), score_of("M3: log score", -0.076, 0.002), paper="-0.076"
        ),
        Point(
            "Sec. III-C",
            "M1: AUC",
            _page("melanoma"),
            score_of("M1: AUC", 0.83, 0.04),
            paper="0.83 (0.79, 0.86)",
        ),
        Point(
            "Sec. III-C",
            "M3: AUC",
            _page("melanoma"),
            score_of("M3: AUC", 0.82, 0.03),
            paper="0.82 (0.79, 0.85)",
        ),
        Point(
            "Fig. 7",
            "the posterior of the age effect, M2 and M3: diminished beside the pictures",
            _page("melanoma"),
            picture("melanoma"),
            files="draws of the posterior of M3, and of the MCMC of M2",
        ),
        Point(
            "Sec. III-C",
            "33,126 patients",
            _page("melanoma"),
            stated("33,126 pictures; patients have several", "differs because the data count pictures"),
        ),
    ),
}
