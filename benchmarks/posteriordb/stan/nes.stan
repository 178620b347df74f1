// Party identification on eight properties of a voter, age in four groups; flat priors.
data {
  int<lower=1> N;
  vector[N] partyid7;
  vector[N] real_ideo;
  vector[N] race_adj;
  array[N] int<lower=1, upper=4> age_discrete;
  vector[N] educ1;
  vector[N] gender;
  vector[N] income;
}
transformed data {
  matrix[N, 8] x;
  x[ : , 1] = real_ideo;
  x[ : , 2] = race_adj;
  for (n in 1 : N) {
    for (group in 2 : 4) {
      x[n, group + 1] = age_discrete[n] == group;
    }
  }
  x[ : , 6] = educ1;
  x[ : , 7] = gender;
  x[ : , 8] = income;
}
parameters {
  vector[9] beta;
  real<lower=0> sigma;
}
model {
  partyid7 ~ normal(beta[1] + x * beta[2 : 9], sigma);
}
