#include "support/golden.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>

#include "support/rank.hpp"

namespace weft::testing {

TemporaryFolder::TemporaryFolder() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string("weft-") +
                     (info != nullptr ? std::string(info->test_suite_name()) + "." + info->name() : "test");
  for (char& c : name) c = c == '/' ? '-' : c;
  path_ = std::filesystem::temp_directory_path() / (name + "." + std::to_string(getpid()));
  std::filesystem::remove_all(path_);
  std::filesystem::create_directories(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Difference difference(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) {
    ADD_FAILURE() << "shapes " << to_string(a.shape()) << " and " << to_string(b.shape());
    return {1e30, 1e30, 0};
  }
  const std::vector<double> x = to_doubles(a), y = to_doubles(b);
  Difference d;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double e = std::abs(x[i] - y[i]);
    d.max = std::isnan(e) ? 1e30 : std::max(d.max, e);
    d.rms += e * e;
    d.absmax = std::max(d.absmax, std::abs(y[i]));
  }
  d.rms = std::sqrt(d.rms / static_cast<double>(std::max<std::size_t>(x.size(), 1)));
  return d;
}

}  // namespace weft::testing
