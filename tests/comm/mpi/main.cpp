// GoogleTest under mpirun: every rank runs every test; only rank 0 prints, the others only what fails.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "comm/mpi/mpi_launcher.hpp"
#include "comm/mpi/world.hpp"

namespace weft::test {
namespace {

struct State {
  Communicator* world = nullptr;
  std::string path;
};
State& state() {
  static State s;
  return s;
}

class FailuresOnly : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    std::cerr << fmt::format(
        "rank {}: {}.{}: {}:{}: {}\n", state().world->rank(), test == nullptr ? "" : test->test_suite_name(),
        test == nullptr ? "" : test->name(), result.file_name() == nullptr ? "" : result.file_name(),
        result.line_number(), result.message());
  }
};

std::int64_t largest(Communicator& world, Lane& lane, std::int64_t value) {
  const Tensor x = lane.alloc(DType::kI64, {1}, "value");
  x.data<std::int64_t>()[0] = value;
  return world.all_reduce(lane, x, ReduceOp::kMax).wait(lane).data<std::int64_t>()[0];
}

}  // namespace

void on_mpi(const std::function<void(Communicator&, Lane&)>& body) {
  const std::unique_ptr<Arena> arena = Arena::host(std::size_t{1} << 26);
  Workers workers(1);
  Lane lane{*arena, workers, {}};
  body(*state().world, lane);
  state().world->barrier(lane);
  EXPECT_EQ(lane.arena.in_use(), 0u);
}

const std::string& shared_path() {
  return state().path;
}

}  // namespace weft::test

int main(int argc, char** argv) {
  using namespace weft;
  testing::InitGoogleTest(&argc, argv);
  MpiOptions options;
  options.timeout = std::chrono::seconds(60);
  // Short pieces: every message is cut as one beyond 2 GiB would be.
  if (const char* bytes = std::getenv("WEFT_TEST_LONGEST_MESSAGE"))
    options.longest_message = std::stoul(bytes);
  int failed = 0;
  run_mpi_ranks(options, [&](Communicator& world) {
    test::state().world = &world;
    test::on_mpi([](Communicator& w, Lane& lane) {
      test::state().path =
          fmt::format("/tmp/weft_comm_mpi_tests.{}", test::largest(w, lane, w.rank() == 0 ? ::getpid() : 0));
    });
    if (world.rank() != 0) {
      testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
      delete listeners.Release(listeners.default_result_printer());
      listeners.Append(new test::FailuresOnly);
    }
    const int mine = RUN_ALL_TESTS();
    test::on_mpi(
        [&](Communicator& w, Lane& lane) { failed = static_cast<int>(test::largest(w, lane, mine)); });
  });
  return failed;
}
