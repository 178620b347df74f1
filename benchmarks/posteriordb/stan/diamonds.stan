// Log prices of diamonds on centered, nearly collinear predictors; the first column of X is the intercept.
data {
  int<lower=1> N;
  int<lower=2> K;
  matrix[N, K] X;
  vector[N] Y;
}
transformed data {
  matrix[N, K - 1] centered;
  for (k in 2 : K) {
    centered[ : , k - 1] = X[ : , k] - mean(X[ : , k]);
  }
}
parameters {
  vector[K - 1] b;
  real Intercept;
  real<lower=0> sigma;
}
model {
  b ~ std_normal();
  Intercept ~ student_t(3, 8, 10);
  sigma ~ student_t(3, 0, 10);
  Y ~ normal_id_glm(centered, Intercept, b, sigma);
}
