// Two hidden states with normal emissions of known scale; the states are summed out by the forward algorithm.
data {
  int<lower=1> N;
  int<lower=2, upper=2> K;
  vector[N] y;
}
parameters {
  simplex[K] theta1;
  simplex[K] theta2;
  positive_ordered[K] mu;
}
model {
  vector[K] log_to_first = log([theta1[1], theta2[1]]');
  vector[K] log_to_second = log([theta1[2], theta2[2]]');
  vector[K] forward;
  mu[1] ~ normal(3, 1);
  mu[2] ~ normal(10, 1);
  for (k in 1 : K) {
    forward[k] = normal_lpdf(y[1] | mu[k], 1);
  }
  for (n in 2 : N) {
    forward = [log_sum_exp(forward + log_to_first) + normal_lpdf(y[n] | mu[1], 1),
               log_sum_exp(forward + log_to_second) + normal_lpdf(y[n] | mu[2], 1)]';
  }
  target += log_sum_exp(forward);
}
