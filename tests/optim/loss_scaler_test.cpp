#include "optim/loss_scaler.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace weft {
namespace {

const DynamicLossScale kOptions = {.initial = 65536, .window = 4, .hysteresis = 2};
const std::vector<int> kPattern = {1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0};
const std::vector<double> kScales = {65536, 65536, 32768, 16384, 16384, 16384, 16384,
                                     32768, 32768, 32768, 32768, 32768, 65536};

TEST(LossScaler, HysteresisIsRefilledOnlyByGrowth) {
  LossScaler scaler = LossScaler::dynamic(kOptions);
  for (std::size_t i = 0; i < kPattern.size(); ++i) {
    EXPECT_EQ(scaler.update(kPattern[i] != 0), "");
    EXPECT_EQ(scaler.scale(), kScales[i]) << "after entry " << i + 1;
  }
}

TEST(LossScaler, StateCarriesOn) {
  for (std::size_t cut = 0; cut <= kPattern.size(); ++cut) {
    LossScaler before = LossScaler::dynamic(kOptions);
    for (std::size_t i = 0; i < cut; ++i) (void)before.update(kPattern[i] != 0);
    LossScaler after = LossScaler::dynamic(kOptions);
    after.set_state(before.state());
    for (std::size_t i = cut; i < kPattern.size(); ++i) {
      (void)after.update(kPattern[i] != 0);
      EXPECT_EQ(after.scale(), kScales[i]) << "cut at " << cut << ", after entry " << i + 1;
    }
  }
}

TEST(LossScaler, WarnsAtTheFloor) {
  LossScaler scaler = LossScaler::dynamic({.initial = 4, .minimum = 1, .window = 4, .hysteresis = 1});
  const std::vector<double> scales = {2, 1, 1, 1, 1, 1};
  std::vector<std::string> warnings;
  for (const double scale : scales) {
    warnings.push_back(scaler.update(true));
    EXPECT_EQ(scaler.scale(), scale);
  }
  // Entries 3, 4 and 5 ran at the floor.
  for (std::size_t i = 0; i < warnings.size(); ++i) EXPECT_EQ(warnings[i].empty(), i != 4) << i + 1;
  EXPECT_NE(warnings[4].find("3 updates in a row"), std::string::npos) << warnings[4];
  EXPECT_NE(warnings[4].find("--min-loss-scale 1"), std::string::npos) << warnings[4];
  EXPECT_EQ(scaler.update(true), "");
  EXPECT_NE(scaler.update(true), "") << "said again when the number has doubled";
  EXPECT_EQ(scaler.update(false), "");
  EXPECT_EQ(scaler.state().floor_skips, 0);
}

TEST(LossScaler, ConstantNeverMoves) {
  LossScaler scaler = LossScaler::constant(128);
  std::string warning;
  for (int i = 0; i < 3; ++i) warning = scaler.update(true);
  EXPECT_NE(warning.find("--loss-scale 128"), std::string::npos) << warning;
  for (int i = 0; i < 3000; ++i) EXPECT_EQ(scaler.update(false), "");
  EXPECT_EQ(scaler.scale(), 128);
}

TEST(LossScaler, StaysFinite) {
  LossScaler scaler = LossScaler::dynamic({.initial = 0x1p126, .window = 1, .hysteresis = 1});
  for (int i = 0; i < 5; ++i) (void)scaler.update(false);
  EXPECT_EQ(scaler.scale(), 0x1p127);
  (void)scaler.update(true);
  EXPECT_EQ(scaler.scale(), 0x1p126);
}

}  // namespace
}  // namespace weft
