// The C interface to one compiled Stan program, and its entry for XLA.
//
// Every quantity is a row-wise operation (handle, x) -> out, so that a vmapped call of JAX is one call here. The file
// knows Stan's virtual model interface only: it is compiled once and linked to the code of every program.

#include <stan/math/rev/core.hpp>
#include <stan/io/json/json_data.hpp>
#include <stan/model/model_base.hpp>
#include <stan/services/util/create_rng.hpp>

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

// Defined by the code that stanc generates.
stan::model::model_base& new_model(stan::io::var_context& data, unsigned int seed, std::ostream* messages);

namespace {

// The numbers are known to library.py.
enum Operation : int64_t {
  VALUE = 0,             // x -> log density with Jacobian
  GRADIENT = 1,          // x -> the same, followed by its gradient
  HESSIAN = 2,           // x -> the matrix of its second derivatives
  LOG_JACOBIAN = 3,      // x -> log |d theta / d x|, followed by its gradient if there is room
  CONSTRAIN = 4,         // x -> theta
  CONSTRAIN_SLOPES = 5,  // x -> the matrix d theta / d x
  UNCONSTRAIN = 6,       // theta -> x
  DERIVED = 7,           // x, key -> transformed parameters and generated quantities
};

constexpr double NAN_ = std::numeric_limits<double>::quiet_NaN();
constexpr double INFINITY_ = std::numeric_limits<double>::infinity();

struct Instance {
  std::unique_ptr<stan::model::model_base> model;
  Eigen::Index dim;
  Eigen::Index num_theta;
  std::mutex mutex;
  std::string message;  // what the last evaluation that failed said

  void remember(const char* what) {
    std::lock_guard<std::mutex> lock(mutex);
    message = what;
  }
};

// Handles are never used again: one that outlives its model is found missing and not taken for another.
std::mutex registry_mutex;
std::map<int32_t, std::shared_ptr<Instance>> registry;
int32_t last_handle = 0;

std::shared_ptr<Instance> find(int32_t handle) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  auto found = registry.find(handle);
  if (found == registry.end()) {
    throw std::invalid_argument(
        "The Stan model was freed together with its Python object: keep a reference to the model as long as functions use it.");
  }
  return found->second;
}

// Each thread that computes gradients needs a tape of its own; without one Stan crashes.
void ensure_tape() { static thread_local stan::math::ChainableStack tape; }

double value(const Instance& instance, Eigen::VectorXd& x, bool jacobian) {
  return jacobian ? instance.model->log_prob_jacobian(x, nullptr) : instance.model->log_prob(x, nullptr);
}

double gradient(const Instance& instance, const Eigen::VectorXd& x, bool jacobian, double* out) {
  stan::math::nested_rev_autodiff nested;  // frees the tape on every way out, exceptions included
  Eigen::Matrix<stan::math::var, Eigen::Dynamic, 1> v(x.size());
  for (Eigen::Index i = 0; i < x.size(); ++i) v(i) = x(i);
  stan::math::var density =
      jacobian ? instance.model->log_prob_jacobian(v, nullptr) : instance.model->log_prob(v, nullptr);
  stan::math::grad(density.vi_);
  for (Eigen::Index i = 0; i < x.size(); ++i) out[i] = v(i).adj();
  return density.val();
}

// Set column j of the Jacobian of f at x, a difference quotient of fourth order; x is changed and restored. Differences
// come before weights: what does not depend on x has the derivative 0 exactly.
template <typename F>
void difference(const F& f, Eigen::VectorXd& x, Eigen::Index j, double step, Eigen::VectorXd& column) {
  const double here = x(j);
  Eigen::VectorXd left(column.size()), right(column.size());
  auto central = [&](double width) -> Eigen::VectorXd {
    x(j) = here - width;
    f(x, left);
    x(j) = here + width;
    f(x, right);
    return right - left;
  };
  column = (8.0 * central(step) - central(2.0 * step)) / (12.0 * step);
  x(j) = here;
}

// Steps follow the curvature of each dimension, so that the units of a parameter do not matter.
double curvature_step(const Instance& instance, Eigen::VectorXd& x, Eigen::Index j, double slope) {
  const double here = x(j), size = std::max(1.0, std::abs(here)), probe = 1e-7 * size;
  Eigen::VectorXd at(x.size());
  x(j) = here + probe;
  gradient(instance, x, true, at.data());
  const double moved = x(j) - here;
  x(j) = here;
  const double scale = 1.0 / std::sqrt(std::abs((at(j) - slope) / moved) + 1e-300);
  return std::min(std::max(1e-3 * scale, 1e-8 * size), 1e-2 * size);
}

void hessian(const Instance& instance, const Eigen::VectorXd& x, double* out) {
  const Eigen::Index p = x.size();
  Eigen::VectorXd slopes(p);
  gradient(instance, x, true, slopes.data());
  Eigen::MatrixXd H(p, p);
  tbb::parallel_for(tbb::blocked_range<Eigen::Index>(0, p), [&](const tbb::blocked_range<Eigen::Index>& range) {
    ensure_tape();
    auto f = [&](Eigen::VectorXd& y, Eigen::VectorXd& at) { gradient(instance, y, true, at.data()); };
    Eigen::VectorXd y = x, column(p);
    for (Eigen::Index j = range.begin(); j != range.end(); ++j) {
      difference(f, y, j, curvature_step(instance, y, j, slopes(j)), column);
      H.col(j) = column;
    }
  });
  Eigen::Map<Eigen::MatrixXd>(out, p, p) = 0.5 * (H + H.transpose());
}

void write(const Instance& instance, Eigen::VectorXd& x, Eigen::VectorXd& all, bool derived, uint32_t seed,
           uint32_t chain) {
  auto rng = stan::services::util::create_rng(seed, chain);
  instance.model->write_array(rng, x, all, derived, derived, nullptr);
}

// Generated quantities are a pure function of x and the key: their randomness comes from the bits of both.
uint64_t mix(uint64_t state, uint64_t bits) {
  state = (state ^ bits) + 0x9e3779b97f4a7c15ULL;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9ULL;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebULL;
  return state ^ (state >> 31);
}

void derived(const Instance& instance, Eigen::VectorXd& x, const uint32_t* key, double* out, Eigen::Index num) {
  uint64_t state = key == nullptr ? 0 : mix(key[0], key[1]);
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    uint64_t bits;
    std::memcpy(&bits, &x(i), sizeof bits);
    state = mix(state, bits);
  }
  Eigen::VectorXd all;
  write(instance, x, all, true, static_cast<uint32_t>(state), static_cast<uint32_t>(state >> 32));
  std::copy_n(all.data() + instance.num_theta, num, out);
}

void compute(Operation operation, const Instance& instance, Eigen::VectorXd& x, const uint32_t* key, double* out,
             Eigen::Index num) {
  switch (operation) {
    case VALUE:
      out[0] = value(instance, x, true);
      break;
    case GRADIENT:
      out[0] = gradient(instance, x, true, out + 1);
      break;
    case HESSIAN:
      hessian(instance, x, out);
      break;
    case LOG_JACOBIAN: {
      if (num == 1) {  // without the gradient
        out[0] = value(instance, x, true) - value(instance, x, false);
        break;
      }
      Eigen::VectorXd without(x.size());
      const double base = gradient(instance, x, false, without.data());
      out[0] = gradient(instance, x, true, out + 1) - base;
      for (Eigen::Index i = 0; i < x.size(); ++i) out[1 + i] -= without(i);
      break;
    }
    case CONSTRAIN: {
      Eigen::VectorXd theta;
      write(instance, x, theta, false, 0, 0);
      std::copy_n(theta.data(), num, out);
      break;
    }
    case CONSTRAIN_SLOPES: {
      // Row-major (num_theta, p); the maps of all types of Stan are smooth on the scale of 1.
      auto f = [&](Eigen::VectorXd& y, Eigen::VectorXd& at) { write(instance, y, at, false, 0, 0); };
      Eigen::VectorXd column(instance.num_theta);
      for (Eigen::Index j = 0; j < x.size(); ++j) {
        difference(f, x, j, 1e-3, column);
        for (Eigen::Index i = 0; i < column.size(); ++i) out[i * x.size() + j] = column(i);
      }
      break;
    }
    case UNCONSTRAIN: {
      Eigen::VectorXd y(instance.dim);
      instance.model->unconstrain_array(x, y, nullptr);
      std::copy_n(y.data(), num, out);
      break;
    }
    case DERIVED:
      derived(instance, x, key, out, num);
      break;
  }
}

// A point at which the program throws has density zero; what else cannot be computed there is not a number.
void evaluate_row(Operation operation, Instance& instance, Eigen::VectorXd& x, const uint32_t* key, double* out,
                  Eigen::Index num) {
  const bool density = operation == VALUE || operation == GRADIENT;
  bool failed = false;
  try {
    compute(operation, instance, x, key, out, num);
    failed = density && (std::isnan(out[0]) || out[0] == -INFINITY_);
  } catch (const std::exception& error) {
    instance.remember(error.what());
    failed = true;
  } catch (...) {
    instance.remember("The program threw something that is no exception.");
    failed = true;
  }
  if (failed) {
    std::fill_n(out, num, density ? 0.0 : NAN_);
    if (density) out[0] = -INFINITY_;
  }
}

template <typename T>
void evaluate(Operation operation, const int32_t* handles, const T* in, const uint32_t* keys, T* out, int64_t rows,
              int64_t num_in, int64_t num_out) {
  if (rows == 0) return;
  std::vector<std::shared_ptr<Instance>> instances(1, find(handles[0]));
  const bool several = std::any_of(handles, handles + rows, [&](int32_t handle) { return handle != handles[0]; });
  for (int64_t row = 1; several && row < rows; ++row) instances.push_back(find(handles[row]));

  auto run = [&](int64_t begin, int64_t end) {
    ensure_tape();
    Eigen::VectorXd x(num_in), result(num_out);
    for (int64_t row = begin; row < end; ++row) {
      std::copy_n(in + row * num_in, num_in, x.data());
      evaluate_row(operation, *instances[several ? row : 0], x, keys == nullptr ? nullptr : keys + 2 * row,
                   result.data(), num_out);
      std::copy_n(result.data(), num_out, out + row * num_out);
    }
  };
  // The first row tells whether the others are worth waking threads for.
  const auto start = std::chrono::steady_clock::now();
  run(0, 1);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() + 1e-9;
  if (tbb::this_task_arena::max_concurrency() < 2 || (rows - 1) * seconds < 1e-4) return run(1, rows);
  const auto grain = static_cast<size_t>(std::max(1.0, 3e-5 / seconds));
  tbb::parallel_for(tbb::blocked_range<int64_t>(1, rows, grain),
                    [&](const tbb::blocked_range<int64_t>& range) { run(range.begin(), range.end()); });
}

namespace ffi = xla::ffi;

ffi::Error ffi_evaluate(ffi::AnyBuffer handles, ffi::AnyBuffer in, ffi::AnyBuffer keys, ffi::Result<ffi::AnyBuffer> out,
                        int64_t operation) {
  const int64_t num_in = in.dimensions().back(), num_out = out->dimensions().back();
  const int64_t rows = static_cast<int64_t>(handles.element_count());
  if (static_cast<int64_t>(in.element_count()) != rows * num_in ||
      static_cast<int64_t>(out->element_count()) != rows * num_out) {
    return ffi::Error::InvalidArgument("The batch dimensions of the arguments of a Stan call differ.");
  }
  const auto op = static_cast<Operation>(operation);
  const uint32_t* bits = keys.element_count() == 0 ? nullptr : keys.typed_data<uint32_t>();
  try {
    if (in.element_type() == ffi::F64) {
      evaluate(op, handles.typed_data<int32_t>(), in.typed_data<double>(), bits, out->typed_data<double>(), rows,
               num_in, num_out);
    } else {
      evaluate(op, handles.typed_data<int32_t>(), in.typed_data<float>(), bits, out->typed_data<float>(), rows, num_in,
               num_out);
    }
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kFailedPrecondition, error.what());
  }
  return ffi::Error::Success();
}

char* copy(const std::string& text) {
  char* result = static_cast<char*>(std::malloc(text.size() + 1));
  std::memcpy(result, text.c_str(), text.size() + 1);
  return result;
}

}  // namespace

#define EXPORT __attribute__((visibility("default")))

extern "C" {

// Returns a handle, or 0 and what Stan said.
EXPORT int32_t bernflow_new(const char* json, uint32_t seed, char** said) {
  std::stringstream messages;
  try {
    ensure_tape();
    std::istringstream text(json);
    stan::json::json_data data(text);
    auto instance = std::make_shared<Instance>();
    instance->model.reset(&new_model(data, seed, &messages));
    instance->dim = instance->model->num_params_r();
    std::vector<std::string> names;
    instance->model->constrained_param_names(names, false, false);
    instance->num_theta = names.size();
    std::lock_guard<std::mutex> lock(registry_mutex);
    registry[++last_handle] = instance;
    *said = copy(messages.str());
    return last_handle;
  } catch (const std::exception& error) {
    *said = copy(messages.str() + error.what());
    return 0;
  }
}

EXPORT void bernflow_free(int32_t handle) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  registry.erase(handle);
}

EXPORT void bernflow_release(char* text) { std::free(text); }

// Names of components, one a line: 0 parameters, 1 with transformed ones, 2 with generated quantities, 3 those on R^p.
EXPORT char* bernflow_names(int32_t handle, int32_t which) {
  std::string text;
  try {
    std::vector<std::string> names;
    auto instance = find(handle);
    if (which == 3) {
      instance->model->unconstrained_param_names(names, false, false);
    } else {
      instance->model->constrained_param_names(names, which >= 1, which >= 2);
    }
    for (const auto& name : names) text += name + "\n";
  } catch (const std::exception&) {
    text.clear();
  }
  return copy(text);
}

EXPORT char* bernflow_message(int32_t handle) {
  try {
    auto instance = find(handle);
    std::lock_guard<std::mutex> lock(instance->mutex);
    return copy(instance->message);
  } catch (const std::exception& error) {
    return copy(error.what());
  }
}

// Returns NULL, or what went wrong.
EXPORT char* bernflow_evaluate(int64_t operation, const int32_t* handles, const double* in, const uint32_t* keys,
                               double* out, int64_t rows, int64_t num_in, int64_t num_out) {
  try {
    evaluate(static_cast<Operation>(operation), handles, in, keys, out, rows, num_in, num_out);
    return nullptr;
  } catch (const std::exception& error) {
    return copy(error.what());
  }
}

#pragma GCC visibility push(default)
XLA_FFI_DEFINE_HANDLER_SYMBOL(bernflow_ffi, ffi_evaluate,
                              xla::ffi::Ffi::Bind()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attr<int64_t>("operation"));
#pragma GCC visibility pop

}  // extern "C"
