#include "data_parallel/param_buffer.hpp"

#include <algorithm>
#include <numeric>

#include "ops/elementwise.hpp"

namespace weft {
namespace {

// Starts of parameters are aligned for vector loads; ends of buckets so that every rank can own an equal
// part.
constexpr std::int64_t kParamAlignment = 64;
constexpr std::int64_t kBucketAlignment = 128;

std::int64_t round_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace

ParamBuffer::ParamBuffer(Lane& lane, ParamSet& params, Communicator& dp, const ParamBufferOptions& options)
    : dp_(dp), overlap_(options.overlap) {
  const std::int64_t bucket_unit = std::lcm(kBucketAlignment, static_cast<std::int64_t>(dp.size()));
  std::int64_t end = 0;
  const auto close_bucket = [&] {
    end = round_up(end, bucket_unit);
    buckets_.back().elems = end - buckets_.back().begin;
  };
  // Owners first, in reverse order of use; tied gradients follow, past the weights.
  const auto place = [&](bool tied) {
    for (auto it = params.all().rbegin(); it != params.all().rend(); ++it) {
      Param& param = **it;
      if ((param.owner() != nullptr) != tied) continue;
      if (buckets_.empty() || buckets_.back().elems > 0) buckets_.push_back({.begin = end, .reduction = {}});
      (tied ? tied_ : slots_).push_back({&param, end, param.local_shape().elems()});
      bucket_of_.emplace_back(&param, buckets_.size() - 1);
      ++buckets_.back().parameters;
      end = round_up(end + param.local_shape().elems(), kParamAlignment);
      if (end - buckets_.back().begin >= options.bucket_elems) close_bucket();
    }
    if (!buckets_.empty() && buckets_.back().elems == 0) close_bucket();
  };
  place(false);
  elems_ = end;
  place(true);

  weights_ = lane.alloc(options.dtype, {elems_}, "weights");
  ops::fill(lane, weights_, 0);
  if (options.gradients) {
    gradients_ = lane.alloc(accumulator_of(options.dtype), {end}, "gradients");
    ops::fill(lane, gradients_, 0);
  }
  for (const Slot& slot : slots_) {
    slot.param->bind(piece(weights_, slot), options.gradients ? piece(gradients_, slot) : Tensor(), this);
  }
  for (const Slot& slot : tied_) {
    slot.param->bind(slot.param->owner()->weight(), options.gradients ? piece(gradients_, slot) : Tensor(),
                     this);
  }
}

Tensor ParamBuffer::piece(const Tensor& flat, const Slot& slot) {
  return flat.slice(slot.offset, slot.elems).view(slot.param->local_shape());
}

void ParamBuffer::begin_step(Lane& lane, int contributions) {
  lane_ = &lane;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters;
  for (const auto& [param, bucket] : bucket_of_) param->begin_step(contributions);
}

void ParamBuffer::gradient_ready(const Param& param) {
  const auto it =
      std::find_if(bucket_of_.begin(), bucket_of_.end(), [&](const auto& e) { return e.first == &param; });
  WEFT_CHECK(it != bucket_of_.end(), "{} is in no bucket", param.name());
  Bucket& bucket = buckets_[it->second];
  if (--bucket.missing == 0 && overlap_) reduce(bucket);
}

void ParamBuffer::reduce(Bucket& bucket) {
  bucket.reduction = dp_.all_reduce(*lane_, gradients_.slice(bucket.begin, bucket.elems));
}

void ParamBuffer::finish_step() {
  for (Bucket& bucket : buckets_) {
    WEFT_CHECK(bucket.missing == 0,
               "a bucket of gradients still misses {} of {} parameters at the end of the step",
               bucket.missing, bucket.parameters);
    if (!bucket.reduction.live()) reduce(bucket);
  }
  for (Bucket& bucket : buckets_) bucket.reduction.wait(*lane_);
}

}  // namespace weft
