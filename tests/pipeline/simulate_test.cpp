#include "pipeline/simulate.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "pipeline/faults.hpp"
#include "pipeline/print.hpp"
#include "pipeline/schedules.hpp"

namespace weft {
namespace {

using enum PipelineSchedule;
using test::faults_of;

std::string all(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::size_t find(const Program& program, const std::string& name) {
  const auto it =
      std::find_if(program.begin(), program.end(), [&](const Action& a) { return to_string(a) == name; });
  EXPECT_NE(it, program.end()) << name;
  return static_cast<std::size_t>(it - program.begin());
}

void swap(Program& program, const std::string& a, const std::string& b) {
  std::swap(program[find(program, a)], program[find(program, b)]);
}

void expect_faults(const std::vector<std::string>& faults, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(all(faults).find(part), std::string::npos) << part << " is not in\n" << all(faults);
  }
}

// The same programs, with every receive started only when it is waited for.
std::vector<Program> without_lookahead(std::vector<Program> programs) {
  for (Program& program : programs) {
    Program late;
    for (const Action& action : program) {
      if (is_receive(action.kind)) continue;
      for (const Action& receive : program) {
        const ActionKind use =
            receive.kind == ActionKind::kReceiveActivation ? ActionKind::kForward : ActionKind::kBackward;
        if (is_receive(receive.kind) && action.kind == use && action.stage == receive.stage &&
            action.microbatch == receive.microbatch) {
          late.push_back(receive);
        }
      }
      late.push_back(action);
    }
    program = late;
  }
  return programs;
}

TEST(Simulate, OneQueueForAllMessagesDeadlocks) {
  const PipelineShape shape{k1F1B, 2, 1, 4};
  const std::vector<Program> programs = make_programs(shape);
  EXPECT_TRUE(simulate(programs, {.channels = Channels::kPerEdge}).complete());
  EXPECT_TRUE(simulate(programs, {.channels = Channels::kPerDirection}).complete());
  expect_faults(simulate(programs, {.channels = Channels::kSingle}).faults,
                {"rank 0 stopped before 0B0: it waits for 1B0 from rank 1, whose queue stands at 1RF0<0",
                 "rank 1 stopped before 1F0: it waits for 0F0 from rank 0, whose queue stands at 0RB0<1"});

  const std::vector<Program> late = without_lookahead(programs);
  EXPECT_EQ(faults_of(shape, late), std::vector<std::string>{});
  EXPECT_TRUE(simulate(late).complete());
  expect_faults(simulate(late, {.channels = Channels::kSingle}).faults,
                {"rank 0 stopped before 0B0: it waits for 1B0 from rank 1, in a queue behind 0SF1>1",
                 "rank 1 stopped before 1F1: it waits for 0F1 from rank 0, in a queue behind 1SB0>0"});
}

TEST(Simulate, OneQueueADirectionDeadlocksWhenInterleaved) {
  const std::vector<Program> programs = make_programs({kInterleaved, 2, 2, 4});
  EXPECT_TRUE(simulate(programs).complete());
  EXPECT_FALSE(simulate(programs, {.channels = Channels::kPerDirection}).complete());
  const std::vector<Program> late = without_lookahead(programs);
  EXPECT_TRUE(simulate(late).complete());
  expect_faults(simulate(late, {.channels = Channels::kPerDirection}).faults,
                {"rank 0 stopped before 2F0: it waits for 1F0 from rank 1, in a queue behind 0SF1>1",
                 "rank 1 stopped before 1F1: it waits for 0F1 from rank 0, in a queue behind 1SF0>0"});
}

TEST(Simulate, TimesOfMessages) {
  // 0F0, message, 1F0 1B0 1W0, message, 0B0 0W0.
  const SimulationResult result = simulate(make_programs({k1F1B, 2, 1, 1}), {.message = 0.5});
  EXPECT_DOUBLE_EQ(result.makespan, 1 + 0.5 + 3 + 0.5 + 2);
  EXPECT_DOUBLE_EQ(result.ranks[1].begin(), 1.5);
  EXPECT_DOUBLE_EQ(result.ranks[0].busy, 3);
  EXPECT_DOUBLE_EQ(result.bubble(), 4.0 / 3);
  EXPECT_DOUBLE_EQ(result.ranks[0].bubble(), 4.0 / 3);
  EXPECT_DOUBLE_EQ(result.ranks[1].bubble(), 0);
  // A receive stands before the rank is done with what it does: its message travels meanwhile.
  const SimulationResult gpipe = simulate(make_programs({kGpipe, 2, 1, 4, 0, true}), {.message = 1});
  EXPECT_DOUBLE_EQ(gpipe.makespan, 1 + 1 + 4);
}

TEST(Simulate, CostsOfEachStageAndBytes) {
  std::vector<StageCost> stages(4);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    stages[i].forward = 1 + static_cast<double>(i);
    stages[i].saved_bytes = 100;
    stages[i].pending_bytes = 40;
  }
  const SimulationResult result = simulate(make_programs({kZbH1, 4, 1, 8}), {.stages = stages});
  EXPECT_DOUBLE_EQ(result.ranks[3].busy, 8 * (4 + 1 + 1));
  for (const RankResult& rank : result.ranks) EXPECT_EQ(rank.peak_live, 4);
  // Rank 0: four in flight, one of them pending as well while its backward runs. Rank 3: one in flight and
  // three pending, at its backward four.
  EXPECT_EQ(result.ranks[0].peak_bytes, 4 * 100 + 40);
  EXPECT_EQ(result.ranks[3].peak_in_flight, 1);
  EXPECT_EQ(result.ranks[3].peak_pending, 4);
  EXPECT_EQ(result.ranks[3].peak_bytes, 100 + 4 * 40);
}

TEST(Simulate, WrongOrderOfBackwardAndForward) {
  const PipelineShape shape{k1F1B, 2, 1, 4};
  std::vector<Program> programs = make_programs(shape);
  swap(programs[1], "1F0", "1B0");
  expect_faults(faults_of(shape, programs), {"rank 1: 1B0 before its forward"});
  expect_faults(simulate(programs).faults, {"rank 1 stopped before 1B0: 1F0 has not run",
                                            "rank 0 stopped before 0B0: it waits for 1B0"});
}

TEST(Simulate, WrongOrderOfWeightGradients) {
  const PipelineShape shape{kZbH1, 4, 1, 8};
  std::vector<Program> programs = make_programs(shape);
  const Program& last = programs[3];
  EXPECT_LT(find(last, "3B3"), find(last, "3W1"));
  swap(programs[3], "3W1", "3W2");
  EXPECT_TRUE(simulate(programs).complete());  // it runs; the sums have other bits
  expect_faults(faults_of(shape, programs), {"rank 3: 3W1 after microbatch 2"});
}

TEST(Simulate, WhatIsMissingTwiceOrElsewhere) {
  const PipelineShape shape{k1F1B, 2, 1, 4};
  const std::vector<Program> right = make_programs(shape);
  const auto faults = [&](const auto& change) {
    std::vector<Program> programs = right;
    change(programs);
    return faults_of(shape, programs);
  };
  expect_faults(faults([](auto& p) { p[0].pop_back(); }), {"rank 0: 0W3 is missing"});
  expect_faults(faults([](auto& p) { p[0].push_back(p[0].back()); }), {"rank 0: 0W3 for a second time"});
  expect_faults(faults([](auto& p) { std::swap(p[0], p[1]); }),
                {"rank 0: 1F0 (chunk 0) is no action of this rank"});
  expect_faults(faults([](auto& p) { p[0][find(p[0], "0SF1>1")].channel = 1; }), {"0SF1>1 on channel 1"});
  expect_faults(faults([](auto& p) { p.pop_back(); }), {"1 programs for 2 ranks"});
  expect_faults(faults([](auto& p) { swap(p[0], "0F1", "0SF1>1"); }), {"rank 0: 0SF1>1 before it is made"});
}

TEST(Simulate, MessagesThatDoNotMeet) {
  const PipelineShape shape{k1F1B, 2, 1, 4};
  std::vector<Program> programs = make_programs(shape);
  programs[1].erase(programs[1].begin() + static_cast<std::ptrdiff_t>(find(programs[1], "1RF2<0")));
  expect_faults(faults_of(shape, programs), {"1F2 before its activation is asked for", "1RF2<0 is missing"});
  expect_faults(simulate(programs).faults, {"rank 0 sends 0SF2>1 where rank 1 receives 1RF3<0"});

  programs = make_programs(shape);
  swap(programs[1], "1RF0<0", "1RF1<0");
  expect_faults(simulate(programs).faults, {"rank 0 sends 0SF0>1 where rank 1 receives 1RF1<0"});

  programs = make_programs(shape);
  programs[1].erase(programs[1].begin() + static_cast<std::ptrdiff_t>(find(programs[1], "1SB3>0")));
  expect_faults(simulate(programs).faults, {"rank 0 stopped before 0B3: it waits for 1B3 from rank 1"});

  programs = make_programs({k1F1B, 2, 1, 4, 0, true});
  programs[1].clear();
  expect_faults(simulate(programs).faults, {"rank 0 ended with 0SF0>1 unfinished"});
}

TEST(Print, Text) {
  const std::vector<Program> programs = make_programs({k1F1B, 2, 1, 2});
  EXPECT_EQ(draw_text(programs, simulate(programs)),
            "rank 0  F0 F1 .  .  B0 W0 .  B1 W1\n"
            "rank 1  .  F0 B0 W0 F1 B1 W1 .  .\n");
}

TEST(Print, SvgStandsAlone) {
  const std::vector<Program> programs = make_programs({kZbV, 4, 2, 8});
  const std::string svg = draw_svg(programs, simulate(programs), "zb-v <4> & more");
  EXPECT_EQ(svg.rfind("<svg xmlns=", 0), 0u);
  EXPECT_NE(svg.find("zb-v &lt;4&gt; &amp; more"), std::string::npos);
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
  std::size_t cells = 0;
  for (std::size_t at = 0; (at = svg.find(" to ", at)) != std::string::npos; ++at) ++cells;
  EXPECT_EQ(cells, 4u * 2 * 8 * 3);
  EXPECT_EQ(svg.find("href"), std::string::npos);
}

}  // namespace
}  // namespace weft
