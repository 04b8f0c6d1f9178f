// weft_comm_mpi_faults SCENARIO: a run on four ranks that must fail. failure_test.sh checks how.
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <new>
#include <thread>

#include "comm/mpi/launch_choice.hpp"
#include "comm/mpi/mpi_launcher.hpp"

namespace weft {
namespace {

using namespace std::chrono_literals;

using Body = std::function<void(Communicator& world, Lane& lane)>;

Tensor ones(Lane& lane, const Shape& shape, DType dtype = DType::kF32) {
  Tensor x = lane.alloc(dtype, shape, "ones");
  std::memset(x.raw(), 0, x.bytes());
  return x;
}

// Some traffic, so that the failure comes in the middle of things.
void warm_up(Communicator& world, Lane& lane) {
  for (const std::int64_t size : {10, 20'000}) (void)world.all_reduce(lane, ones(lane, {size})).wait(lane);
}

// Every other rank does this.
void reduce(Communicator& group, Lane& lane) {
  (void)group.all_reduce(lane, ones(lane, {50'000})).wait(lane);
}

using Scenarios = std::map<std::string, Body>;

// A rank that fails, or does not come.
const Scenarios& failures() {
  static const Scenarios list = {
      {"throw",
       [](Communicator& world, Lane& lane) {
         if (world.rank() == 2) fail("the disk of rank two is full");
         reduce(world, lane);
       }},
      // Memory goes while other ranks may still reach for it.
      {"throw-in-flight",
       [](Communicator& world, Lane& lane) {
         const Tensor x = ones(lane, {2'000'000});
         Async<Tensor> y = world.all_reduce(lane, x);
         if (world.rank() == 2) fail("thrown with a sum in flight");
         (void)y.wait(lane);
         reduce(world, lane);
       }},
      {"config",
       [](Communicator& world, Lane& lane) {
         if (world.rank() == 1)
           throw ConfigError(std::vector<std::string>{"--one is wrong", "--two is wrong"});
         reduce(world, lane);
       }},
      {"config-all",
       [](Communicator&, Lane&) { throw ConfigError("--seq-length 7 does not divide by --tp 2"); }},
      {"kill",
       [](Communicator& world, Lane& lane) {
         if (world.rank() == 2) ::kill(::getpid(), SIGKILL);
         reduce(world, lane);
       }},
      {"stop",
       [](Communicator& world, Lane& lane) {
         const auto group = world.split(0, 0, "dp");
         if (world.rank() == 2) ::kill(::getpid(), SIGSTOP);
         reduce(*group, lane);
       }},
      // Alive, but elsewhere: rank 2 sleeps, and rank 3 waits for it in another group.
      {"asleep",
       [](Communicator& world, Lane& lane) {
         const auto pair = world.split(world.rank() / 2, 0, "tp");
         if (world.rank() == 2) std::this_thread::sleep_for(60s);
         if (world.rank() == 3) reduce(*pair, lane);
         reduce(world, lane);
       }},
      {"absent-receiver",
       [](Communicator& world, Lane& lane) {
         if (world.rank() == 1) std::this_thread::sleep_for(60s);
         if (world.rank() != 0) return world.barrier(lane);
         (void)world.send_receive(lane, {{1, ones(lane, {3})}}, {}).wait(lane);
       }},
  };
  return list;
}

// Calls that differ.
const Scenarios& mismatches() {
  static const Scenarios list = {
      {"size",
       [](Communicator& world, Lane& lane) {
         const auto group = world.split(0, 0, "dp");
         (void)group->all_reduce(lane, ones(lane, {world.rank() == 2 ? 50'001 : 50'000})).wait(lane);
       }},
      {"operation",
       [](Communicator& world, Lane& lane) {
         if (world.rank() == 3) (void)world.broadcast(lane, ones(lane, {50'000}), 0).wait(lane);
         reduce(world, lane);
       }},
      {"dtype",
       [](Communicator& world, Lane& lane) {
         const DType dtype = world.rank() == 0 ? DType::kF64 : DType::kF32;
         (void)world.all_reduce(lane, ones(lane, {8}, dtype)).wait(lane);
       }},
      // Rank 1 has swapped two operations.
      {"order",
       [](Communicator& world, Lane& lane) {
         const std::int64_t first = world.rank() == 1 ? 5000 : 6000;
         Async<Tensor> a = world.all_reduce(lane, ones(lane, {first}));
         Async<Tensor> b = world.all_reduce(lane, ones(lane, {11'000 - first}));
         (void)a.wait(lane);
         (void)b.wait(lane);
       }},
      {"rows",
       [](Communicator& world, Lane& lane) {
         std::vector<std::int64_t> sends(4, 1), receives(4, 1);
         if (world.rank() == 0) sends[2] = 2;  // rank 2 expects one
         (void)world
             .all_to_all_into(lane, ones(lane, {world.rank() == 0 ? 5 : 4, 3}), sends, ones(lane, {4, 3}),
                              receives)
             .wait(lane);
       }},
      {"message",
       [](Communicator& world, Lane& lane) {
         std::vector<Communicator::Message> sends, receives;
         if (world.rank() == 0) sends = {{1, ones(lane, {2})}};
         if (world.rank() == 1) receives = {{0, ones(lane, {3})}};
         (void)world.send_receive(lane, sends, receives).wait(lane);
         world.barrier(lane);
       }},
      {"split-name",
       [](Communicator& world, Lane&) { (void)world.split(0, 0, world.rank() == 1 ? "tp" : "dp"); }},
  };
  return list;
}

// What a body does wrong, or right.
const Scenarios& bodies() {
  static const Scenarios list = {
      {"returned",
       [](Communicator& world, Lane& lane) {
         if (world.rank() == 1) return;
         reduce(world, lane);
       }},
      // What is waited for has not begun: a sum in pieces that nobody waits for yet is in its way.
      {"returned-queued",
       [](Communicator& world, Lane& lane) {
         if (world.rank() == 1) return;
         Async<Tensor> first = world.all_reduce(lane, ones(lane, {1'100'000}));
         Async<Tensor> second = world.all_reduce(lane, ones(lane, {1'100'001}));
         (void)second.wait(lane);
         (void)first.wait(lane);
       }},
      {"dropped",
       [](Communicator& world, Lane& lane) {
         const Tensor x = ones(lane, {50'000});
         Async<Tensor> y = world.all_reduce(lane, x);
         if (world.rank() == 1) {
           const Async<Tensor> gone = std::move(y);
           return;
         }
         (void)y.wait(lane);
         world.barrier(lane);
       }},
      {"swallowed",
       [](Communicator& world, Lane& lane) {
         if (world.rank() == 1) {
           try {
             const Tensor x = ones(lane, {50'000});
             Async<Tensor> y = world.all_reduce(lane, x);
             fail("nobody will see this");
           } catch (const Error&) {
           }
           return;
         }
         reduce(world, lane);
         world.barrier(lane);
       }},
      {"memory",
       [](Communicator& world, Lane& lane) {
         if (world.rank() == 0) throw std::bad_alloc();
         reduce(world, lane);
       }},
      // Rank 0 computes without a call while others find that their calls differ.
      {"busy",
       [](Communicator& world, Lane& lane) {
         if (world.rank() == 0) std::this_thread::sleep_for(60s);
         const auto message = [&](std::int64_t n) {
           std::vector<Communicator::Message> sends, receives;
           if (world.rank() == 1) sends = {{2, ones(lane, {n})}};
           if (world.rank() == 2) receives = {{1, ones(lane, {n + 1})}};
           (void)world.send_receive(lane, sends, receives).wait(lane);
         };
         message(6);
         world.barrier(lane);
       }},
      {"none", [](Communicator& world, Lane& lane) { reduce(world, lane); }},
  };
  return list;
}

int run(const std::string& name) {
  if (name == "choose") {  // the launcher's variables against MPI, as a command would
    LaunchRequest request;
    request.variables = launcher_variables([](const char* variable) { return std::getenv(variable); });
    request.mpi_available = mpi_available();
    request.mpi_size = [] { return mpi_world().size; };
    const bool mpi = choose_mpi(request);
    fmt::print(stderr, "{} of {}\n", mpi ? "mpi" : "threads", mpi ? mpi_world().size : 1);
    if (mpi) run_mpi_ranks({}, [](Communicator&) {});
    return 0;
  }
  const Body* body = nullptr;
  for (const Scenarios* list : {&failures(), &mismatches(), &bodies()}) {
    const auto found = list->find(name);
    if (found != list->end()) body = &found->second;
  }
  if (body == nullptr) config_fail("there is no scenario '{}'", name);
  MpiOptions options;
  options.timeout = 3s;
  options.where = [] { return std::string("step 3"); };
  run_mpi_ranks(options, [&](Communicator& world) {
    const std::unique_ptr<Arena> arena = Arena::host(std::size_t{1} << 25);
    Workers workers(1);
    Lane lane{*arena, workers, {}};
    warm_up(world, lane);
    (*body)(world, lane);
  });
  fmt::print(stderr, "came to its end\n");
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  try {
    return weft::run(argc > 1 ? argv[1] : "none");
  } catch (const weft::ConfigError& e) {
    fmt::print(stderr, "refused: {}\n", e.what());
    return 2;
  }
}
