// Log earnings on height, sex and the product of both; flat priors.
data {
  int<lower=1> N;
  vector<lower=0>[N] earn;
  vector[N] height;
  vector[N] male;
}
transformed data {
  vector[N] log_earn = log(earn);
  vector[N] both = height .* male;
}
parameters {
  vector[4] beta;
  real<lower=0> sigma;
}
model {
  log_earn ~ normal(beta[1] + beta[2] * height + beta[3] * male + beta[4] * both, sigma);
}
