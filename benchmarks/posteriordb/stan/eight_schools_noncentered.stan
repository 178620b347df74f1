// Effects of coaching in eight schools, standardized: theta = mu + tau * theta_trans.
data {
  int<lower=1> J;
  vector[J] y;
  vector<lower=0>[J] sigma;
}
parameters {
  real mu;
  real<lower=0> tau;
  vector[J] theta_trans;
}
transformed parameters {
  vector[J] theta = mu + tau * theta_trans;
}
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  theta_trans ~ std_normal();
  y ~ normal(theta, sigma);
}
