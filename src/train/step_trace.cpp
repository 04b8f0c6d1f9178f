#include "train/step_trace.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <vector>

#include "core/log.hpp"
#include "io/atomic_file.hpp"
#include "train/timeline.hpp"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// What ranks tell each other here lies in memory of its own: the lane's arena is planned without it.
struct HostLane {
  Workers one{1};
  std::unique_ptr<Arena> arena = Arena::host(1 << 12);
  Lane lane{*arena, one, {}};
};

// Whose steady clock this is: it counts from the start of the machine, or of a container with a clock of its
// own.
std::int64_t clock_id() {
  std::string text;
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::getline(boot, text);
  std::error_code none;
  text += std::filesystem::read_symlink("/proc/self/ns/time", none).string();
  return static_cast<std::int64_t>(checksum(text.data(), text.size()));
}

// Rank 0 gets the text of each of the others in turn; `take` is called with it.
template <class Take>
void gather(Communicator& world, Lane& lane, std::string text, const Take& take) {
  const auto send = [&](void* data, DType dtype, std::int64_t elems) {
    world.send_receive(lane, {{0, Tensor::borrow(data, dtype, {elems})}}, {}).wait(lane);
  };
  const auto receive = [&](int from, void* data, DType dtype, std::int64_t elems) {
    world.send_receive(lane, {}, {{from, Tensor::borrow(data, dtype, {elems})}}).wait(lane);
  };
  auto length = static_cast<std::int64_t>(text.size());
  if (world.rank() != 0) {
    send(&length, DType::kI64, 1);
    send(text.data(), DType::kU8, length);
    return;
  }
  take(text);
  for (int r = 1; r < world.size(); ++r) {
    receive(r, &length, DType::kI64, 1);
    text.resize(static_cast<std::size_t>(length));
    receive(r, text.data(), DType::kU8, length);
    take(text);
  }
}

}  // namespace

StepTrace::StepTrace(const LogConfig& config, const Mesh& mesh, Lane& lane, Communicator& host)
    : config_(config), mesh_(mesh), lane_(lane), host_(host), own_tools_(lane.tools == nullptr) {
  if (own_tools_) lane_.tools = &host_tools_;
}

StepTrace::~StepTrace() {
  if (own_tools_) lane_.tools = nullptr;
}

void StepTrace::before_step(std::int64_t number) {
  if (number == config_.trace_start_step) {
    HostLane host;
    align_clocks(host.lane);
    lane_.tools->trace(true);
  }
  if (lane_.tools->tracing()) ++steps_;
}

// All ranks leave a barrier at about the same time. Those who read one clock need no more than rank 0's time;
// the others take their own for the same moment.
void StepTrace::align_clocks(Lane& host_lane) {
  host_.barrier(host_lane);
  zero_ = Clock::now();
  const std::int64_t clock = clock_id();
  const std::int64_t now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(zero_.time_since_epoch()).count();
  std::vector<std::int64_t> first = {clock, now};
  host_.broadcast(host_lane, Tensor::borrow(first.data(), DType::kI64, {2}), 0).wait(host_lane);
  std::int64_t others = first[0] == clock ? 0 : 1;
  if (others == 0) zero_ = DeviceTools::HostTime(std::chrono::nanoseconds(first[1]));
  host_.all_reduce(host_lane, Tensor::borrow(&others, DType::kI64, {1})).wait(host_lane);
  one_clock_ = others == 0;
}

std::string StepTrace::events() const {
  const auto coordinate = [&](Axis axis) { return mesh_.coordinate(axis); };
  const TimelineRank rank{
      .rank = host_.rank(),
      .name = fmt::format("rank {} (tp {}{}, pp {}, dp {})", host_.rank(), coordinate(Axis::kTp),
                          mesh_.size(Axis::kCp) > 1 ? fmt::format(", cp {}", coordinate(Axis::kCp)) : "",
                          coordinate(Axis::kPp), coordinate(Axis::kDp)),
      .shift = std::chrono::duration<double, std::micro>(lane_.tools->began() - zero_).count()};
  return timeline_events(rank, lane_.tools->traced());
}

void StepTrace::write() {
  const std::string mine = events();
  lane_.tools->trace(false);
  HostLane host;
  std::optional<AtomicFile> file;
  std::string problem;
  // What fails here must not keep the others from handing over what they have.
  const auto attempt = [&](const auto& body) {
    if (!problem.empty()) return;
    try {
      body();
    } catch (const Error& error) {
      problem = error.what();
      file.reset();
    }
  };
  bool first = true;
  gather(host_, host.lane, mine, [&](const std::string& text) {
    attempt([&] {
      if (first) {
        file.emplace(config_.trace);
        file->write(timeline_head(
            {{"program", "weft"},
             {"steps", fmt::format("{} to {} of this run", config_.trace_start_step,
                                   config_.trace_start_step + steps_ - 1)},
             {"times", lane_.device().kind == DeviceKind::kCuda
                           ? "of the device, by events; mapped on the host's clock at the trace's start"
                           : "of the host"},
             {"clocks", one_clock_ ? "all ranks read one steady clock"
                                   : "ranks of other machines are aligned with rank 0's clock at a barrier "
                                     "before the first of these steps"}}));
      }
      if (!first) file->write(kTimelineBetween);
      file->write(text);
    });
    first = false;
  });
  if (host_.rank() != 0) return;
  attempt([&] {
    file->write(kTimelineTail);
    file->commit();
  });
  if (!problem.empty()) {
    log_warn("no timeline: --trace {}: {}", config_.trace, problem);
  } else {
    log_info("wrote the timeline of {} step{} to {}", steps_, steps_ == 1 ? "" : "s", config_.trace);
  }
}

void StepTrace::finish(std::int64_t steps) {
  if (lane_.tools->tracing()) return write();
  if (steps_ > 0 || host_.rank() != 0) return;
  log_warn("--trace {}: nothing was written: this run took {} step{}, and --trace-start-step is {}",
           config_.trace, steps, steps == 1 ? "" : "s", config_.trace_start_step);
}

}  // namespace weft
