// Derivative checks: what a module's backward says against central differences of its forward, in double.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/tensor.hpp"

namespace weft::testing {

// A place where the derivative of a scalar function is known, and what it should be.
struct Derivative {
  std::string name;
  Tensor values;    // f64; perturbed element by element, and put back
  Tensor gradient;  // f64, same shape
};

// Compares at most `samples` elements of each tensor (spread evenly) with (f(x + h) − f(x − h)) / 2h and
// reports, as GoogleTest failures, every tensor whose error passes `tolerance` times its largest derivative.
void check_derivatives(const std::function<double()>& f, const std::vector<Derivative>& derivatives,
                       double tolerance = 2e-6, std::int64_t samples = 40);

}  // namespace weft::testing
