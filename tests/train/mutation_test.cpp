// That the layouts' tests can fail: a sample of wrong collectives, each of which must be seen. All of them:
// tests/mutation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "mutation_kill.hpp"

namespace weft::testing {
namespace {

// The decorator itself must change nothing.
TEST(Mutation, WithoutOneTheRunIsTheSame) {
  for (const LayoutCase& layout : kill_rows()) {
    std::atomic<bool> happened = false;
    SiteLog log;
    std::string what;
    EXPECT_TRUE(same_bits(run_layout(layout, 1, mutated(layout, nullptr, &log, &happened)),
                          run_layout(layout, 1), &what))
        << layout.name() << ": " << what;
    EXPECT_GT(log.sites().size(), 5U);
  }
}

TEST(Mutation, SampledOnesAreKilled) {
  const KillCount count = kill(kill_rows(), 17);
  EXPECT_GE(count.mutants, 15);
  EXPECT_TRUE(count.survivors.empty()) << fmt::format("{}", fmt::join(count.survivors, "\n"));
  fmt::print("{} mutants, {} killed in {} runs\n", count.mutants, count.killed, count.runs);
}

// What the marks of parameters say, said wrongly on every rank.
struct FlagMutant {
  const char* name;
  std::function<void(ParamTraits&, LogicalTensor&)> change;
};

std::vector<FlagMutant> flag_mutants() {
  return {
      {"what is whole is summed over tp nowhere",
       [](ParamTraits&, LogicalTensor& t) { t.partial_gradient = t.partial_gradient && t.cut >= 0; }},
      {"what is whole is summed over tp everywhere",
       [](ParamTraits&, LogicalTensor& t) { t.partial_gradient = t.partial_gradient || t.cut < 0; }},
      {"shared heads are not summed",
       [](ParamTraits&, LogicalTensor& t) { t.partial_gradient = t.partial_gradient && t.cut < 0; }},
      {"shared heads count in the norm on each rank", [](ParamTraits&, LogicalTensor& t) { t.replica = 0; }},
      {"the copy of the embeddings counts in the norm",
       [](ParamTraits& p, LogicalTensor&) { p.copy = false; }},
      {"the embeddings of two stages are not summed",
       [](ParamTraits& p, LogicalTensor&) { p.own_bucket = false; }},
      {"everything decays", [](ParamTraits& p, LogicalTensor&) { p.decay = true; }}};
}

TEST(Mutation, WrongMarksOfParametersAreKilled) {
  std::vector<LayoutCase> rows = kill_rows();
  rows.push_back({.model = "gpt2", .tp = 2, .pp = 2});
  for (const FlagMutant& mutant : flag_mutants()) {
    int killed = 0;
    for (const LayoutCase& layout : rows) {
      RunHooks hooks;
      hooks.made = [&](Engine& engine) {
        for (const auto& param : engine.params().all()) {
          for (const LogicalTensor& part : param->parts()) {
            // Neither is a const object.
            mutant.change(const_cast<ParamTraits&>(param->traits()), const_cast<LogicalTensor&>(part));
          }
        }
        engine.read_marks();
      };
      std::string what;
      killed += worst_difference(run_layout(layout, 1, hooks), reference_of(layout, 1), 1e-5, &what) > 1;
    }
    EXPECT_GT(killed, 0) << mutant.name;
  }
}

}  // namespace
}  // namespace weft::testing
