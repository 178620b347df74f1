// A time series on its K values before, given the first K.
data {
  int<lower=1> K;
  int<lower=K + 1> T;
  vector[T] y;
}
transformed data {
  matrix[T - K, K] lagged;
  for (k in 1 : K) {
    lagged[ : , k] = y[K + 1 - k : T - k];
  }
}
parameters {
  real alpha;
  vector[K] beta;
  real<lower=0> sigma;
}
model {
  alpha ~ normal(0, 10);
  beta ~ normal(0, 10);
  sigma ~ cauchy(0, 2.5);
  y[K + 1 : T] ~ normal(alpha + lagged * beta, sigma);
}
