#include "mesh/mesh.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "core/check.hpp"

namespace weft {
namespace {

using Groups = std::vector<std::vector<int>>;

MeshSizes sizes(int tp, int cp, int dp, int pp, int ep = 1, int etp = 0, bool pp_before_dp = false) {
  MeshSizes s;
  s.tp = tp;
  s.cp = cp;
  s.dp = dp;
  s.pp = pp;
  s.ep = ep;
  s.etp = etp;
  s.pp_before_dp = pp_before_dp;
  return s;
}

std::vector<std::string> problems_of(const MeshSizes& s) {
  try {
    const Mesh mesh(s, 0);
  } catch (const ConfigError& e) {
    return e.problems;
  }
  return {};
}

TEST(Mesh, OneRank) {
  const Mesh mesh(MeshSizes{}, 0);
  EXPECT_EQ(mesh.world(), 1);
  for (const Axis a : {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp, Axis::kEtp, Axis::kEp, Axis::kEdp}) {
    EXPECT_EQ(mesh.size(a), 1);
    EXPECT_EQ(mesh.coordinate(a), 0);
    EXPECT_EQ(mesh.groups({a}), (Groups{{0}}));
  }
}

TEST(Mesh, Tp2Dp2Pp2) {
  const Mesh mesh(sizes(2, 1, 2, 2), 5);
  EXPECT_EQ(mesh.world(), 8);
  EXPECT_EQ(mesh.groups({Axis::kTp}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(mesh.groups({Axis::kDp}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(mesh.groups({Axis::kPp}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(mesh.groups({Axis::kTp, Axis::kPp}), (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(mesh.groups({Axis::kTp, Axis::kDp}), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(mesh.groups({}), (Groups{{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}}));
  EXPECT_EQ(mesh.group({Axis::kTp}), (std::vector<int>{4, 5}));
  EXPECT_EQ(mesh.group({Axis::kPp}), (std::vector<int>{1, 5}));
  EXPECT_EQ(mesh.describe(5), "rank 5 (tp 1, cp 0, dp 0, pp 1)");
  EXPECT_EQ(mesh.coordinate(Axis::kDp, 6), 1);
}

TEST(Mesh, StagesBeforeData) {
  const Mesh mesh(sizes(2, 1, 2, 2, 1, 0, true), 3);
  EXPECT_EQ(mesh.groups({Axis::kTp}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(mesh.groups({Axis::kPp}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(mesh.groups({Axis::kDp}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_EQ(mesh.describe(3), "rank 3 (tp 1, cp 0, dp 0, pp 1)");
}

TEST(Mesh, GradientGroupHasContextFastest) {
  EXPECT_EQ(Mesh(sizes(2, 2, 2, 1), 0).groups({Axis::kDp, Axis::kCp}), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}}));
  const Mesh mesh(sizes(1, 2, 2, 2, 2, 1, true), 6);
  EXPECT_EQ(mesh.groups({Axis::kDp, Axis::kCp}), (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(mesh.group({Axis::kCp, Axis::kDp}), (std::vector<int>{2, 3, 6, 7}));
  // Groups are in the order of their unmasked coordinates, which is not always that of their first ranks'
  // values.
  EXPECT_EQ(Mesh(sizes(2, 2, 1, 2), 0).groups({Axis::kCp}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
}

TEST(Mesh, Tp2Dp3Pp2Ep3) {
  const Mesh mesh(sizes(2, 1, 3, 2, 3), 9);
  EXPECT_EQ(mesh.world(), 12);
  EXPECT_EQ(mesh.size(Axis::kEtp), 2);
  EXPECT_EQ(mesh.size(Axis::kEdp), 1);
  EXPECT_EQ(mesh.groups({Axis::kDp}), (Groups{{0, 2, 4}, {1, 3, 5}, {6, 8, 10}, {7, 9, 11}}));
  EXPECT_EQ(mesh.groups({Axis::kEp}), (Groups{{0, 2, 4}, {1, 3, 5}, {6, 8, 10}, {7, 9, 11}}));
  EXPECT_EQ(mesh.groups({Axis::kEtp, Axis::kEp}), (Groups{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}}));
  EXPECT_EQ(mesh.group({Axis::kEdp}), (std::vector<int>{9}));
  EXPECT_EQ(mesh.describe(9), "rank 9 (tp 1, cp 0, dp 1, pp 1, ep 1)");
}

TEST(Mesh, ExpertTensorSizeOfItsOwn) {
  const Mesh mesh(sizes(2, 1, 3, 2, 3, 1), 10);
  EXPECT_EQ(mesh.size(Axis::kEdp), 2);
  EXPECT_EQ(mesh.groups({Axis::kEp}), (Groups{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}, {9, 10, 11}}));
  EXPECT_EQ(mesh.groups({Axis::kEdp}), (Groups{{0, 3}, {1, 4}, {2, 5}, {6, 9}, {7, 10}, {8, 11}}));
  EXPECT_EQ(mesh.group({Axis::kEdp}), (std::vector<int>{7, 10}));
  EXPECT_EQ(mesh.coordinate(Axis::kEp), 1);
  EXPECT_EQ(mesh.coordinate(Axis::kEdp), 1);
}

TEST(Mesh, ContextRanksServeAsExpertRanks) {
  const Mesh mesh(sizes(1, 4, 1, 1, 4), 2);
  EXPECT_EQ(mesh.groups({Axis::kEp}), (Groups{{0, 1, 2, 3}}));
  EXPECT_EQ(mesh.size(Axis::kEdp), 1);
}

TEST(Mesh, EverySizeThatDoesNotFitIsListed) {
  const std::vector<std::string> small = problems_of(sizes(0, 1, -2, 1));
  ASSERT_EQ(small.size(), 2u);
  EXPECT_NE(small[0].find("tensor (tp) parallel size is 0"), std::string::npos);
  EXPECT_NE(small[1].find("data (dp) parallel size is -2"), std::string::npos);

  const std::vector<std::string> odd = problems_of(sizes(2, 1, 3, 2, 4, 5));
  ASSERT_EQ(odd.size(), 2u);
  EXPECT_NE(odd[0].find("expert parallel size 4 does not divide the 6 ranks"), std::string::npos) << odd[0];
  EXPECT_NE(odd[1].find("expert tensor parallel size 5 does not divide the 6 ranks"), std::string::npos)
      << odd[1];

  const std::vector<std::string> product = problems_of(sizes(2, 1, 2, 1, 4));
  ASSERT_EQ(product.size(), 1u);
  EXPECT_NE(product[0].find("4 x expert tensor parallel size 2 = 8 does not divide the 4 ranks"),
            std::string::npos);

  // The expert grid would put other ranks on a stage than the dense grid.
  EXPECT_EQ(problems_of(sizes(2, 1, 2, 2, 2, 2, true)).size(), 1u);
  EXPECT_TRUE(problems_of(sizes(2, 1, 2, 2, 2, 2)).empty());
  EXPECT_TRUE(problems_of(sizes(2, 1, 2, 2, 2, 1, true)).empty());
  EXPECT_EQ(problems_of(sizes(1 << 20, 1 << 20, 1, 1)).size(), 1u);
  EXPECT_THROW(Mesh(sizes(2, 1, 1, 1), 2), Error);
}

TEST(Mesh, AxesOfBothGridsInOneGroupAreRefused) {
  EXPECT_THROW(Mesh(sizes(2, 1, 2, 1), 0).groups({Axis::kTp, Axis::kEp}), Error);
}

// Every rank is in exactly one group of a kind, and group() of a rank is that group.
void check_partition(const MeshSizes& s, const std::vector<Axis>& axes) {
  const Mesh mesh(s, 0);
  std::vector<int> seen(static_cast<std::size_t>(mesh.world()));
  for (const std::vector<int>& ranks : mesh.groups(axes)) {
    ASSERT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
    for (const int r : ranks) {
      ++seen[static_cast<std::size_t>(r)];
      ASSERT_EQ(Mesh(s, r).group(axes), ranks);
    }
    for (const Axis a : {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp, Axis::kEtp, Axis::kEp, Axis::kEdp}) {
      const bool expert = a == Axis::kEtp || a == Axis::kEp || a == Axis::kEdp;
      const bool same_grid =
          axes.empty() || a == Axis::kPp || expert == std::any_of(axes.begin(), axes.end(), [](Axis x) {
                                              return x == Axis::kEtp || x == Axis::kEp || x == Axis::kEdp;
                                            });
      if (!same_grid || std::find(axes.begin(), axes.end(), a) != axes.end()) continue;
      for (const int r : ranks) ASSERT_EQ(mesh.coordinate(a, r), mesh.coordinate(a, ranks[0])) << name_of(a);
    }
  }
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int n) { return n == 1; }));
}

TEST(Mesh, GroupsPartitionTheWorld) {
  const std::vector<std::vector<Axis>> kinds = {{Axis::kTp},
                                                {Axis::kCp},
                                                {Axis::kDp},
                                                {Axis::kPp},
                                                {Axis::kDp, Axis::kCp},
                                                {Axis::kTp, Axis::kCp},
                                                {Axis::kTp, Axis::kPp},
                                                {Axis::kTp, Axis::kCp, Axis::kDp},
                                                {Axis::kEtp},
                                                {Axis::kEp},
                                                {Axis::kEdp},
                                                {Axis::kEtp, Axis::kEp},
                                                {Axis::kEtp, Axis::kEp, Axis::kPp}};
  for (const MeshSizes& s : {sizes(2, 3, 2, 2, 3), sizes(3, 1, 2, 3, 2, 1), sizes(2, 2, 3, 2, 4, 1, true),
                             sizes(1, 1, 5, 1, 5), sizes(4, 1, 3, 2, 6, 2)}) {
    for (const std::vector<Axis>& axes : kinds) check_partition(s, axes);
  }
}

TEST(Mesh, StagesAreTheSameInBothGrids) {
  for (const MeshSizes& s : {sizes(2, 3, 2, 2, 3), sizes(2, 2, 3, 2, 4, 1, true)}) {
    const Mesh mesh(s, 0);
    for (int r = 0; r < mesh.world(); ++r) {
      // pp is in both grids: the expert grid's view of it is that of the group it shares with ep.
      for (const int other : Mesh(s, r).group({Axis::kEtp, Axis::kEp, Axis::kEdp})) {
        ASSERT_EQ(mesh.coordinate(Axis::kPp, other), mesh.coordinate(Axis::kPp, r));
      }
    }
  }
}

TEST(Mesh, SixteenThousandRanks) {
  const auto begin = std::chrono::steady_clock::now();
  const MeshSizes s = sizes(8, 4, 32, 16, 32, 1);
  const Mesh mesh(s, 16383);
  EXPECT_EQ(mesh.world(), 16384);
  std::size_t ranks = 0;
  for (const std::vector<Axis>& axes : std::vector<std::vector<Axis>>{{Axis::kTp},
                                                                      {Axis::kCp},
                                                                      {Axis::kDp},
                                                                      {Axis::kPp},
                                                                      {Axis::kDp, Axis::kCp},
                                                                      {Axis::kEp},
                                                                      {Axis::kEdp}}) {
    for (const auto& group : mesh.groups(axes)) ranks += group.size();
  }
  EXPECT_EQ(ranks, 7u * 16384u);
  EXPECT_EQ(mesh.group({Axis::kTp}).back(), 16383);
  for (int r = 0; r < 16384; ++r) (void)Mesh(s, r).group({Axis::kDp, Axis::kCp});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
}

}  // namespace
}  // namespace weft
