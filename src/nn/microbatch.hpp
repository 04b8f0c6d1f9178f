// Microbatch: everything that belongs to one microbatch in flight: its data, its saved activations, and the
// weight gradients that are still to be computed. Modules are const; this is what they work on.
#pragma once

#include <memory>
#include <typeinfo>
#include <vector>

#include "core/lane.hpp"
#include "core/rng.hpp"

namespace weft {

// What the data says about a microbatch, in the memory of the lane's device.
struct MicrobatchData {
  Tensor tokens;                    // [b, s] i32
  Tensor labels;                    // [b, s] i32; −100 is ignored
  Tensor sample_ids;                // [b] i64: global sample numbers, for dropout masks
  std::int64_t first_position = 0;  // position of token 0 (a continued sequence with a KV cache)
  // [s, b] i32: where positions start anew in each document. Undefined: they follow from the place.
  Tensor position_ids;
  // Where documents are packed into a sequence and kept apart: the position at which the document of each
  // token begins, [b, s] i32, s the whole sequence also where a rank has a part of it. Undefined: every token
  // sees all before it.
  Tensor first_keys;
  // Of models with experts, for the rows that this rank has outside tensor-parallel regions, [s, b]: whether
  // a token counts (u8), which what only fills a sequence or a batch does not; and its number in the order of
  // the whole microbatch (i32).
  Tensor counted, places;
};

// A typed last-in first-out stack: forward pushes a module's Saved struct, backward pops it, in reverse.
class SavedStack {
 public:
  // keep = false: what is pushed is dropped at once (inference, evaluation, the first forward of a recomputed
  // part).
  explicit SavedStack(bool keep = true) : keep_(keep) {}

  template <class T>
  void push(T value) {
    if (keep_) entries_.push_back(std::make_unique<Entry<T>>(std::move(value)));
  }
  template <class T>
  T pop() {
    WEFT_CHECK(!entries_.empty(), "backward pops {} from an empty stack of saved activations",
               typeid(T).name());
    auto* entry = dynamic_cast<Entry<T>*>(entries_.back().get());
    WEFT_CHECK(entry != nullptr, "backward pops {}, but another module's activations are on top",
               typeid(T).name());
    T value = std::move(entry->value);
    entries_.pop_back();
    return value;
  }
  bool empty() const { return entries_.empty(); }
  bool keeps() const { return keep_; }
  void clear() { entries_.clear(); }

 private:
  struct AnyEntry {
    virtual ~AnyEntry() = default;
  };
  template <class T>
  struct Entry final : AnyEntry {
    explicit Entry(T v) : value(std::move(v)) {}
    T value;
  };
  std::vector<std::unique_ptr<AnyEntry>> entries_;
  bool keep_;
};

// When deferred weight gradients run. The schedule chooses; modules only offer the points.
enum class DrainPoint { kLinear, kLayer, kStage, kSchedule };

// The weight gradients that backward has deferred, in order. A task holds what it still needs and nothing
// else; its memory is free again when it has run.
class WeightGrads {
 public:
  explicit WeightGrads(DrainPoint drain = DrainPoint::kLinear) : drain_(drain) {}

  // module.weight_grad(lane, pending) will run at the drain point. The module outlives the step.
  template <class M, class P>
  void push(const M& module, P pending) {
    tasks_.push_back(std::make_unique<Task<M, P>>(module, std::move(pending)));
  }
  // A point of the backward pass has been reached: runs everything pending if the schedule drains here (or
  // earlier).
  void reached(Lane& lane, DrainPoint point) {
    if (point >= drain_) drain(lane);
  }
  void drain(Lane& lane) {
    for (std::unique_ptr<AnyTask>& task : tasks_) {
      task->run(lane);
      task.reset();
    }
    tasks_.clear();
  }
  bool empty() const { return tasks_.empty(); }

 private:
  struct AnyTask {
    virtual ~AnyTask() = default;
    virtual void run(Lane& lane) = 0;
  };
  template <class M, class P>
  struct Task final : AnyTask {
    Task(const M& m, P p) : module(m), pending(std::move(p)) {}
    void run(Lane& lane) override { module.weight_grad(lane, std::move(pending)); }
    const M& module;
    P pending;
  };
  std::vector<std::unique_ptr<AnyTask>> tasks_;
  DrainPoint drain_;
};

// Keys and values of the tokens seen so far, of every layer of this rank: [positions, b, kv_heads ·
// head_dim].
struct KvCache {
  std::vector<Tensor> keys, values;
};

struct Microbatch {
  MicrobatchData batch;
  RandomKey dropout_key;           // of (seed, step); sites add their own parts
  double loss_scale = 1;           // backward differentiates loss_scale · Σ losses
  std::int64_t whole_tokens = 0;   // of all ranks that share the microbatch, what fills it up apart
  std::int64_t target_tokens = 0;  // those of them with a loss
  SavedStack saved;
  WeightGrads later;
  Tensor losses;             // [s · b] per-token losses in the order of [s, b]; set by the head's forward
  KvCache* cache = nullptr;  // inference only
};

}  // namespace weft
