// Hares and lynxes by the differential equations of prey and predator. On the log scale each rate depends on the other
// population alone, so that the two are moved in turn, exactly, with the coefficients of a symplectic method of fourth
// order (Blanes and Moan, 2002): three steps between two observations keep the log populations exact to 1e-5.
functions {
  vector advance(vector log_z, real span, vector theta) {
    int num_steps = 3;
    real h = span / num_steps;
    vector[7] a = h * [0.0792036964311957, 0.353172906049774, -0.0420650803577195, 0.21937695575349958,
                       -0.0420650803577195, 0.353172906049774, 0.0792036964311957]';
    vector[6] b = h * [0.209515106613362, -0.143851773179818, 0.434336666566456, 0.434336666566456,
                       -0.143851773179818, 0.209515106613362]';
    vector[7] growth = a * theta[1];
    vector[7] prey_loss = -a * theta[2];
    vector[6] decline = -b * theta[3];
    vector[6] predation = b * theta[4];
    real u = log_z[1];
    real v = log_z[2];
    for (i in 1 : num_steps) {
      for (j in 1 : 6) {
        u = fma(prey_loss[j], exp(v), u + growth[j]);
        v = fma(predation[j], exp(u), v + decline[j]);
      }
      u = fma(prey_loss[7], exp(v), u + growth[7]);
    }
    return [u, v]';
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
  vector[2] log_z = log(z_init);
  real time = 0;
  theta[{1, 3}] ~ normal(1, 0.5);
  theta[{2, 4}] ~ normal(0.05, 0.05);
  sigma ~ lognormal(-1, 1);
  z_init ~ lognormal(log(10), 1);
  y_init ~ lognormal(log_z, sigma);
  for (n in 1 : N) {
    log_z = advance(log_z, ts[n] - time, theta);
    time = ts[n];
    y[n] ~ lognormal(log_z, sigma);
  }
}
