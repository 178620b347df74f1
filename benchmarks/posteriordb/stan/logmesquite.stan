// Log weight of mesquite bushes on the logs of five measurements and their group; flat priors.
data {
  int<lower=1> N;
  vector<lower=0>[N] weight;
  vector<lower=0>[N] diam1;
  vector<lower=0>[N] diam2;
  vector<lower=0>[N] canopy_height;
  vector<lower=0>[N] total_height;
  vector<lower=0>[N] density;
  vector[N] group;
}
transformed data {
  vector[N] log_weight = log(weight);
  matrix[N, 6] x;
  x[ : , 1] = log(diam1);
  x[ : , 2] = log(diam2);
  x[ : , 3] = log(canopy_height);
  x[ : , 4] = log(total_height);
  x[ : , 5] = log(density);
  x[ : , 6] = group;
}
parameters {
  vector[7] beta;
  real<lower=0> sigma;
}
model {
  log_weight ~ normal(beta[1] + x * beta[2 : 7], sigma);
}
