// Every kind of parameter, in shapes that tell rows from columns.
data {
  int<lower=0> N;
  int<lower=0> empty;
  vector[N] y;
  real edge;
}
parameters {
  real<lower=1> above;
  vector<lower=0>[3] scales;
  real<upper=2> below;
  real<lower=0, upper=1> share;
  simplex[4] parts;
  ordered[3] steps;
  matrix[2, 3] matrix_;
  array[2] matrix[2, 3] matrices;
  array[2, 3] vector<lower=0>[2] vectors;
  cholesky_factor_corr[3] factor;
  cov_matrix[2] spread;
  vector[empty] nothing;
  real<lower=above> higher;
  complex wave;
  tuple(real, vector<lower=0>[2]) pair;
}
transformed parameters {
  matrix[2, 2] product_ = matrix_ * matrix_';
  complex turned = wave * to_complex(0, 1);
}
model {
  if (share > edge) {
    reject("share is ", share);
  }
  above ~ normal(0, 1);
  scales ~ normal(0, 1);
  below ~ normal(0, 1);
  parts ~ dirichlet(rep_vector(2, 4));
  steps ~ normal(0, 1);
  to_vector(matrix_) ~ normal(0, 1);
  for (i in 1 : 2) {
    to_vector(matrices[i]) ~ normal(0, 1);
    for (j in 1 : 3) {
      vectors[i, j] ~ exponential(1);
    }
  }
  factor ~ lkj_corr_cholesky(2);
  spread ~ wishart(4, identity_matrix(2));
  nothing ~ normal(0, 1);
  higher ~ normal(0, 3);
  get_real(wave) ~ normal(0, 1);
  get_imag(wave) ~ normal(0, 1);
  pair.1 ~ normal(0, 1);
  pair.2 ~ exponential(2);
  y ~ normal(below, above);
}
generated quantities {
  array[2, 3] int counts;
  vector[N] log_lik;
  vector[N] y_rep;
  tuple(real, vector[2]) sums = (sum(parts), pair.2 + 1);
  array[2] tuple(real, real) pairs = {(share, above), (below, higher)};
  for (i in 1 : 2) {
    for (j in 1 : 3) {
      counts[i, j] = 10 * i + j;
    }
  }
  for (n in 1 : N) {
    log_lik[n] = normal_lpdf(y[n] | below, above);
    y_rep[n] = normal_rng(below, above);
  }
}
