#include "mutation.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unwind.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include "ops/elementwise.hpp"

namespace weft::testing {
namespace {

constexpr std::size_t kFrames = 5;

struct Walk {
  std::vector<std::uintptr_t> frames;
  std::size_t skip = 0;
};

_Unwind_Reason_Code step(_Unwind_Context* context, void* to) {
  Walk& walk = *static_cast<Walk*>(to);
  if (walk.skip > 0) {
    --walk.skip;
    return _URC_NO_REASON;
  }
  walk.frames.push_back(_Unwind_GetIP(context));
  return walk.frames.size() < kFrames ? _URC_NO_REASON : _URC_END_OF_STACK;
}

// The calls that lead to a member function of MutatedCommunicator.
[[gnu::noinline]] std::vector<std::uintptr_t> callers() {
  Walk walk{.frames = {}, .skip = 3};  // this function, passes() and the member function
  _Unwind_Backtrace(step, &walk);
  return walk.frames;
}

// "pp.activation.0-1" and its like are one group.
std::string kind_of(const std::string& name) {
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    if (std::isdigit(static_cast<unsigned char>(name[dot + 1])) != 0) return name.substr(0, dot);
  }
  return name;
}

Tensor copy_of(Lane& lane, const Tensor& x) {
  const Tensor copy = lane.alloc(x.dtype(), x.shape(), "mutation");
  ops::copy(lane, x, copy);
  return copy;
}

// An operation whose result is changed once it is there.
template <class T>
class Changed final : public Operation {
 public:
  Changed(Async<T> inner, std::function<void(Lane&)> change)
      : inner_(std::move(inner)), change_(std::move(change)) {}
  void wait(Lane& lane) override {
    inner_.wait(lane);
    change_(lane);
  }
  // The inner one knows whether an exception is in flight.
  void cancel() noexcept override { Async<T> gone = std::move(inner_); }
  void dropped() noexcept override { Async<T> gone = std::move(inner_); }

 private:
  Async<T> inner_;
  std::function<void(Lane&)> change_;
};

// How a rank takes part in a split.
struct Place {
  int color, key;
};

// What the ranks of a run share.
class MutatedRun {
 public:
  MutatedRun(const MeshSizes& sizes, const Mutant* of, SiteLog* into, std::atomic<bool>* told)
      : mutant(of), log(into), happened(told), sizes_(sizes), ranks_(Mesh(sizes, 0).world()) {}

  void say(std::size_t split, int rank, Place place) {
    const std::lock_guard lock(mutex_);
    if (said_.size() <= split) said_.resize(split + 1);
    said_[split].resize(static_cast<std::size_t>(ranks_));
    said_[split][static_cast<std::size_t>(rank)] = place;
  }

  // For every rank, the one whose place it takes: its neighbour along the axis, by as many steps as its other
  // coordinates say, so that members of a group turn by different numbers.
  std::vector<int> shifted(Axis axis) const {
    std::vector<int> places;
    for (int rank = 0; rank < ranks_; ++rank) {
      const Mesh mesh(sizes_, rank);
      int steps = axis == Axis::kTp ? 1 : 0;
      for (const Axis other : {Axis::kTp, Axis::kCp, Axis::kDp, Axis::kPp}) {
        if (other != axis) steps += mesh.coordinate(other);
      }
      const std::vector<int> line = mesh.group({axis});
      places.push_back(line[static_cast<std::size_t>((mesh.coordinate(axis) + steps) % mesh.size(axis))]);
    }
    return places;
  }

  // The place that a rank takes in the groups of a split; nothing where these are the right groups again.
  std::optional<Place> wrong_place(std::size_t split, const std::vector<int>& places, int rank) const {
    const std::lock_guard lock(mutex_);
    const std::vector<Place>& said = said_[split];
    const auto color = [&](int r) { return said[static_cast<std::size_t>(r)].color; };
    const auto wrong_color = [&](int r) { return color(places[static_cast<std::size_t>(r)]); };
    bool same = true;
    for (int a = 0; a < ranks_; ++a) {
      for (int b = 0; b < ranks_; ++b) {
        same = same && (color(a) == color(b)) == (wrong_color(a) == wrong_color(b));
      }
    }
    if (same) return std::nullopt;
    return said[static_cast<std::size_t>(places[static_cast<std::size_t>(rank)])];
  }

  // The data-parallel ranks of a rank are a group of this colour.
  int dp_color(int rank) const { return Mesh(sizes_, rank).group({Axis::kDp}).front(); }

  const Mutant* const mutant;
  SiteLog* const log;
  std::atomic<bool>* const happened;

 private:
  MeshSizes sizes_;
  int ranks_;
  mutable std::mutex mutex_;
  std::vector<std::vector<Place>> said_;
};

// Of one rank.
struct Shared {
  std::shared_ptr<MutatedRun> run;
  bool training = false;
};

// What a group may be taken for (null: there is none).
struct WrongGroups {
  std::unique_ptr<Communicator> dp, tp, cp, dp_only;
};

class MutatedCommunicator final : public Communicator {
 public:
  MutatedCommunicator(std::shared_ptr<Shared> shared, Communicator* to, std::unique_ptr<Communicator> own,
                      WrongGroups wrong)
      : shared_(std::move(shared)),
        own_(std::move(own)),
        to_(to != nullptr ? to : own_.get()),
        wrong_(std::move(wrong)),
        kind_(kind_of(to_->name())) {}

  void set_training(bool training) { shared_->training = training; }

  int rank() const override { return to_->rank(); }
  int size() const override { return to_->size(); }
  const std::string& name() const override { return to_->name(); }
  std::uint64_t bytes_sent() const override { return to_->bytes_sent(); }
  void barrier(Lane& lane) override { to_->barrier(lane); }

  [[gnu::noinline]] Async<Tensor> all_reduce(Lane& lane, const Tensor& x, ReduceOp op) override {
    const Passed here = passes(op == ReduceOp::kMax ? "all_reduce max" : "all_reduce");
    if (!here) return to_->all_reduce(lane, x, op);
    if (Communicator* wrong = here.wrong) return wrong->all_reduce(lane, x, op);
    const Tensor before = copy_of(lane, x);
    return changed(x, to_->all_reduce(lane, x, op), [=, this](Lane& later) {
      if (here.is(Mutation::kSkip)) ops::copy(later, before, x);
      rescale(later, here, x);
    });
  }
  [[gnu::noinline]] Async<Tensor> all_gather_into(Lane& lane, const Tensor& shard,
                                                  const Tensor& full) override {
    const Passed here = passes("all_gather");
    if (!here) return to_->all_gather_into(lane, shard, full);
    if (Communicator* wrong = here.wrong) return wrong->all_gather_into(lane, shard, full);
    const Tensor before = copy_of(lane, shard);
    return changed(full, to_->all_gather_into(lane, shard, full), [=, this](Lane& later) {
      const std::int64_t n = before.dim(0);
      const Tensor right = copy_of(later, full);
      for (int r = 0; r < size(); ++r) {
        const Tensor& from = here.is(Mutation::kSkip) ? before : right.slice((r + 1) % size() * n, n);
        ops::copy(later, from, full.slice(r * n, n));
      }
    });
  }
  [[gnu::noinline]] Async<Tensor> reduce_scatter_into(Lane& lane, const Tensor& full,
                                                      const Tensor& shard) override {
    const Passed here = passes("reduce_scatter");
    if (!here) return to_->reduce_scatter_into(lane, full, shard);
    const std::int64_t n = shard.dim(0);
    if (here.is(Mutation::kDpOnly)) {
      const Tensor sum = copy_of(lane, full);
      here.wrong->all_reduce(lane, sum).wait(lane);
      ops::copy(lane, sum.slice(rank() * n, n), shard);
      return Async<Tensor>(shard, nullptr);
    }
    if (Communicator* wrong = here.wrong) return wrong->reduce_scatter_into(lane, full, shard);
    if (here.is(Mutation::kNeighbour)) {
      const Tensor turned = copy_of(lane, full);
      for (int r = 0; r < size(); ++r) {
        ops::copy(lane, full.slice((r + 1) % size() * n, n), turned.slice(r * n, n));
      }
      return to_->reduce_scatter_into(lane, turned, shard);
    }
    const Tensor before = copy_of(lane, full.slice(rank() * n, n));
    return changed(shard, to_->reduce_scatter_into(lane, full, shard), [=, this](Lane& later) {
      if (here.is(Mutation::kSkip)) ops::copy(later, before, shard);
      rescale(later, here, shard);
    });
  }
  [[gnu::noinline]] Async<Tensor> all_to_all_into(Lane& lane, const Tensor& send,
                                                  const std::vector<std::int64_t>& send_rows,
                                                  const Tensor& receive,
                                                  const std::vector<std::int64_t>& receive_rows) override {
    const Passed here = passes("all_to_all");
    Communicator* to = here.wrong != nullptr ? here.wrong : to_;
    if (!here || here.wrong != nullptr) {
      return to->all_to_all_into(lane, send, send_rows, receive, receive_rows);
    }
    const Tensor before = copy_of(lane, send);
    return changed(receive, to->all_to_all_into(lane, send, send_rows, receive, receive_rows),
                   [=, this](Lane& later) {  // parts of one size
                     const std::int64_t n = receive.dim(0) / size();
                     const Tensor right = copy_of(later, receive);
                     for (int r = 0; r < size(); ++r) {
                       const Tensor& from = here.is(Mutation::kSkip) ? before : right;
                       const int part = here.is(Mutation::kSkip) ? r : (r + 1) % size();
                       ops::copy(later, from.slice(part * n, n), receive.slice(r * n, n));
                     }
                   });
  }
  Async<Tensor> broadcast(Lane& lane, const Tensor& x, int root) override {
    return to_->broadcast(lane, x, root);
  }
  // A message is spoiled where it arrives. To the wrong group both ends must turn, and they are two sites:
  // the whole channel does.
  [[gnu::noinline]] Async<std::vector<Tensor>> send_receive(Lane& lane, const std::vector<Message>& sends,
                                                            const std::vector<Message>& receives) override {
    const Passed here = passes(receives.empty() ? "send" : "receive");
    const Mutant* mutant = shared_->run->mutant;
    if (shared_->training && mutant != nullptr && mutant->site.group == kind_) {
      if (Communicator* wrong = wrong_group(mutant->mutation)) {
        *shared_->run->happened = true;
        return wrong->send_receive(lane, sends, receives);
      }
    }
    if (!here || receives.empty()) return to_->send_receive(lane, sends, receives);
    std::vector<Tensor> received;
    for (const Message& m : receives) received.push_back(m.tensor);
    auto inner = to_->send_receive(lane, sends, receives);
    return {received,
            std::make_unique<Changed<std::vector<Tensor>>>(std::move(inner), [=, this](Lane& later) {
              for (const Tensor& x : received) spoil_message(later, here, x);
            })};
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;

 private:
  // This site is the mutant's.
  struct Passed {
    const Mutant* mutant = nullptr;
    Communicator* wrong = nullptr;
    explicit operator bool() const { return mutant != nullptr; }
    bool is(Mutation mutation) const { return mutant->mutation == mutation; }
  };

  [[gnu::noinline]] Passed passes(const char* operation) {
    if (!shared_->training || to_->size() == 1) return {};
    const CallSite site{kind_, operation, callers()};
    const MutatedRun& run = *shared_->run;
    if (run.log != nullptr) run.log->add(site);
    if (run.mutant == nullptr || site != run.mutant->site) return {};
    const bool another = run.mutant->mutation >= Mutation::kShiftDp;
    Communicator* wrong = wrong_group(run.mutant->mutation);
    if (another && wrong == nullptr) return {};
    *run.happened = true;
    return {run.mutant, wrong};
  }

  Communicator* wrong_group(Mutation mutation) const {
    switch (mutation) {
      case Mutation::kShiftDp:
        return wrong_.dp.get();
      case Mutation::kShiftTp:
        return wrong_.tp.get();
      case Mutation::kShiftCp:
        return wrong_.cp.get();
      case Mutation::kDpOnly:
        return wrong_.dp_only.get();
      default:
        return nullptr;
    }
  }

  void rescale(Lane& lane, const Passed& here, const Tensor& x) const {
    if (here.is(Mutation::kTwice)) ops::scale_in_place(lane, x, size());
    if (here.is(Mutation::kAverage)) ops::scale_in_place(lane, x, 1.0 / size());
  }

  void spoil_message(Lane& lane, const Passed& here, const Tensor& x) {
    if (here.is(Mutation::kSkip)) ops::fill(lane, x, 0);
    if (here.is(Mutation::kTwice)) ops::scale_in_place(lane, x, 2);
    if (!here.is(Mutation::kNeighbour)) return;
    const Tensor own = copy_of(lane, x);
    if (message_before_.defined()) ops::copy(lane, message_before_, x);
    message_before_ = own;
  }

  static Async<Tensor> changed(const Tensor& result, Async<Tensor> inner, std::function<void(Lane&)> change) {
    return {result, std::make_unique<Changed<Tensor>>(std::move(inner), std::move(change))};
  }

  std::shared_ptr<Shared> shared_;
  std::unique_ptr<Communicator> own_;
  Communicator* to_;
  WrongGroups wrong_;
  std::string kind_;
  Tensor message_before_;
  std::size_t splits_ = 0;
};

std::unique_ptr<Communicator> MutatedCommunicator::split(int color, int key, const std::string& name) {
  const std::size_t number = splits_++;
  shared_->run->say(number, rank(), {color, key});
  std::unique_ptr<Communicator> right = to_->split(color, key, name);  // now every rank has said its place
  const auto wrong = [&](const std::vector<int>& places) -> std::unique_ptr<Communicator> {
    const std::optional<Place> place = shared_->run->wrong_place(number, places, rank());
    return place ? to_->split(place->color, place->key, name + " wrong") : nullptr;
  };
  const auto shifted = [&](Axis axis) { return wrong(shared_->run->shifted(axis)); };
  WrongGroups groups{shifted(Axis::kDp), shifted(Axis::kTp), shifted(Axis::kCp), nullptr};
  if (name == "dp-cp") groups.dp_only = to_->split(shared_->run->dp_color(rank()), key, name + " wrong");
  if (!right) return nullptr;
  return std::make_unique<MutatedCommunicator>(shared_, nullptr, std::move(right), std::move(groups));
}

}  // namespace

const char* name_of(Mutation mutation) {
  switch (mutation) {
    case Mutation::kSkip:
      return "skip";
    case Mutation::kTwice:
      return "twice";
    case Mutation::kAverage:
      return "average";
    case Mutation::kNeighbour:
      return "neighbour";
    case Mutation::kShiftDp:
      return "wrong dp";
    case Mutation::kShiftTp:
      return "wrong tp";
    case Mutation::kShiftCp:
      return "wrong cp";
    case Mutation::kDpOnly:
      return "dp only";
    case Mutation::kCount:
      break;
  }
  return "?";
}

std::vector<std::string> functions_of(const CallSite& site) {
  std::vector<std::string> names;
  for (const std::uintptr_t address : site.stack) {
    Dl_info info{};
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    const bool known = dladdr(reinterpret_cast<void*>(address - 1), &info) != 0 && info.dli_sname != nullptr;
    if (!known) {
      names.emplace_back("?");
      continue;
    }
    int status = 0;
    char* name = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
    std::string text = status == 0 ? name : info.dli_sname;
    std::free(name);
    text = text.substr(0, text.find('('));
    constexpr std::string_view kScope = "weft::";
    names.push_back(text.starts_with(kScope) ? text.substr(kScope.size()) : text);
  }
  return names;
}

std::string to_string(const Mutant& mutant) {
  return fmt::format("{} {} done wrongly ({}) by {}", mutant.site.group, mutant.site.operation,
                     name_of(mutant.mutation), fmt::join(functions_of(mutant.site), " < "));
}

std::string equivalent(const Mutant& mutant) {
  const CallSite& site = mutant.site;
  const std::vector<std::string> functions = functions_of(site);
  const auto in = [&](const char* name) {
    return std::any_of(functions.begin(), functions.end(),
                       [&](const std::string& f) { return f.find(name) != std::string::npos; });
  };
  const bool replicas = site.group == "dp" || site.group == "dp-cp";
  if (in("GradientNorm::sums") && replicas && mutant.mutation == Mutation::kShiftTp) {
    return "the sum over the model that follows has every rank's squares once again";
  }
  if (in("GradientNorm::sums") && site.group == "model" &&
      (mutant.mutation == Mutation::kShiftDp || mutant.mutation == Mutation::kShiftCp)) {
    return "every data- and context-parallel rank has the same squares";
  }
  if (in("RecomputedCoreAttention::backward") && in("ExchangedAttention::forward") &&
      in("ExchangedAttention::to_positions")) {
    return "the second pass through attention is for what it saves; nobody reads its result";
  }
  if (in("RecomputedSublayer::backward") &&
      (in("RowParallelLinear::forward") || in("RowParallelLinear::product"))) {
    return "the second pass through a feed-forward network is for what it saves; nobody reads its result";
  }
  return {};
}

std::vector<Mutation> mutations_of(const CallSite& site) {
  const std::string& call = site.operation;
  if (call == "send") return {};  // spoiled where it arrives
  std::vector<Mutation> all{Mutation::kSkip};
  const auto one_of = [&](std::initializer_list<const char*> groups) {
    return std::any_of(groups.begin(), groups.end(), [&](const char* group) { return site.group == group; });
  };
  if (!one_of({"dp", "dp-cp", "world"})) all.push_back(Mutation::kShiftDp);
  if (!one_of({"tp", "model", "world"})) all.push_back(Mutation::kShiftTp);
  if (!one_of({"cp", "dp-cp", "world"})) all.push_back(Mutation::kShiftCp);
  if (site.group == "dp-cp" && (call == "all_reduce" || call == "reduce_scatter")) {
    all.push_back(Mutation::kDpOnly);
  }
  // A maximum does not change when it is taken twice.
  if (call == "all_reduce" || call == "reduce_scatter") {
    all.insert(all.end(), {Mutation::kTwice, Mutation::kAverage});
  }
  if (call == "all_gather" || call == "reduce_scatter" || call == "all_to_all") {
    all.push_back(Mutation::kNeighbour);
  }
  if (call == "receive") all.insert(all.end(), {Mutation::kTwice, Mutation::kNeighbour});
  return all;
}

void SiteLog::add(const CallSite& site) {
  const std::lock_guard lock(mutex_);
  sites_.insert(site);
}

std::set<CallSite> SiteLog::sites() const {
  const std::lock_guard lock(mutex_);
  return sites_;
}

RunHooks mutated(const LayoutCase& layout, const Mutant* mutant, SiteLog* log, std::atomic<bool>* happened) {
  auto run = std::make_shared<MutatedRun>(layout_of(layout).mesh, mutant, log, happened);
  RunHooks hooks;
  hooks.timeout = std::chrono::seconds(10);  // ranks of a wrong group may wait for each other
  hooks.wrap = [run](Communicator& world, const Layout&) -> std::unique_ptr<Communicator> {
    auto shared = std::make_shared<Shared>();
    shared->run = run;
    return std::make_unique<MutatedCommunicator>(std::move(shared), &world, nullptr, WrongGroups{});
  };
  hooks.phase = [](Communicator& wrapped, bool training) {
    static_cast<MutatedCommunicator&>(wrapped).set_training(training);
  };
  return hooks;
}

}  // namespace weft::testing
