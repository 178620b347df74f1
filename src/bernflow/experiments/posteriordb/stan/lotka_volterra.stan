// Hares and lynxes by the differential equations of prey and predator, solved on the log scale.
functions {
  vector slope(real time, vector log_z, vector theta) {
    return [theta[1] - theta[2] * exp(log_z[2]), -theta[3] + theta[4] * exp(log_z[1])]';
  }
}
data {
  int<lower=1> N;
  array[N] real<lower=0> ts;
  vector<lower=0>[2] y_init;
  array[N] vector<lower=0>[2] y;
}
parameters {
  vector<lower=0>[4] theta;
  vector<lower=0>[2] z_init;
  vector<lower=0>[2] sigma;
}
model {
  array[N] vector[2] log_z = ode_rk45_tol(slope, log(z_init), 0.0, ts, 1e-8, 1e-8, 100000, theta);
  theta[{1, 3}] ~ normal(1, 0.5);
  theta[{2, 4}] ~ normal(0.05, 0.05);
  sigma ~ lognormal(-1, 1);
  z_init ~ lognormal(log(10), 1);
  y_init ~ lognormal(log(z_init), sigma);
  for (n in 1 : N) {
    y[n] ~ lognormal(log_z[n], sigma);
  }
}
