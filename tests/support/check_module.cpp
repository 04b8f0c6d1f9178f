#include "support/check_module.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace weft::testing {

void check_derivatives(const std::function<double()>& f, const std::vector<Derivative>& derivatives,
                       double tolerance, std::int64_t samples) {
  for (const Derivative& d : derivatives) {
    const std::int64_t n = d.values.elems();
    ASSERT_EQ(n, d.gradient.elems()) << d.name;
    const std::int64_t step = std::max<std::int64_t>(1, n / samples);
    double worst = 0, scale = 1e-6;
    for (const double g : d.gradient.values<double>()) scale = std::max(scale, std::abs(g));
    for (std::int64_t i = step / 2; i < n; i += step) {
      double& x = d.values.values<double>()[static_cast<std::size_t>(i)];
      const double saved = x;
      const double h = 1e-5;
      x = saved + h;
      const double above = f();
      x = saved - h;
      const double below = f();
      x = saved;
      const double error =
          std::abs((above - below) / (2 * h) - d.gradient.values<double>()[static_cast<std::size_t>(i)]);
      worst = std::isfinite(error) ? std::max(worst, error) : 1e30;
    }
    EXPECT_LE(worst, tolerance * scale) << d.name << ": largest derivative " << scale;
  }
}

}  // namespace weft::testing
