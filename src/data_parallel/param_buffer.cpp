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
    : dp_(dp), overlap_(options.overlap), distributed_(options.distributed && dp.size() > 1) {
  const std::int64_t bucket_unit = std::lcm(kBucketAlignment, static_cast<std::int64_t>(dp.size()));
  std::int64_t end = 0;
  const auto close_bucket = [&] {
    if (buckets_.empty() || buckets_.back().elems > 0) return;  // none is open
    end = round_up(end, bucket_unit);
    buckets_.back().elems = end - buckets_.back().begin;
  };
  // Owners first, in reverse order of use; tied gradients follow, past the weights.
  const auto place = [&](bool tied) {
    for (auto it = params.all().rbegin(); it != params.all().rend(); ++it) {
      Param& param = **it;
      if (param.traits().expert != options.experts) continue;
      if ((param.owner() != nullptr) != tied || !param.trains()) continue;
      const bool alone = tied || param.traits().own_bucket;
      if (alone) close_bucket();
      if (buckets_.empty() || buckets_.back().elems > 0) {
        buckets_.emplace_back();
        buckets_.back().begin = end;
      }
      (tied ? tied_ : slots_).push_back({&param, end, param.local_shape().elems()});
      bucket_of_.emplace(&param, buckets_.size() - 1);
      ++buckets_.back().parameters;
      end = round_up(end + param.local_shape().elems(), kParamAlignment);
      if (alone || end - buckets_.back().begin >= options.bucket_elems) close_bucket();
    }
    close_bucket();
  };
  place(false);
  elems_ = end;
  weight_buckets_ = buckets_.size();
  place(true);
  find_pieces();
  std::int64_t weights = elems_, states = 0;
  for (auto it = params.all().rbegin(); it != params.all().rend(); ++it) {
    Param& param = **it;
    if (param.trains() || param.owner() != nullptr || param.traits().expert != options.experts) continue;
    std::int64_t& at = param.state() ? states : weights;
    (param.state() ? states_ : frozen_).push_back({&param, at, param.local_shape().elems()});
    at = round_up(at + param.local_shape().elems(), kParamAlignment);
  }

  weights_ = lane.alloc(options.dtype, {weights}, "weights");
  ops::fill(lane, weights_, 0);
  if (options.gradients) {
    gradients_ = lane.alloc(accumulator_of(options.dtype), {end}, "gradients");
    ops::fill(lane, gradients_, 0);
  }
  if (states > 0) {
    state_values_ = lane.alloc(accumulator_of(options.dtype), {states}, "states");
    ops::fill(lane, state_values_, 0);
  }
  for (const Slot& slot : states_) slot.param->bind(piece(state_values_, slot), Tensor(), nullptr);
  for (const Slot& slot : slots_) {
    slot.param->bind(piece(weights_, slot), options.gradients ? piece(gradients_, slot) : Tensor(), this);
  }
  for (const Slot& slot : frozen_) slot.param->bind(piece(weights_, slot), Tensor(), nullptr);
  for (const Slot& slot : tied_) {
    slot.param->bind(slot.param->owner()->weight(), options.gradients ? piece(gradients_, slot) : Tensor(),
                     this);
  }
  for (const auto& param : params.all()) {
    if (!param->trains() && param->owner() != nullptr && param->traits().expert == options.experts) {
      param->bind(param->owner()->weight(), Tensor(), nullptr);
    }
  }
}

Tensor ParamBuffer::piece(const Tensor& full, const Slot& slot) {
  return full.slice(slot.offset, slot.elems).view(slot.param->local_shape());
}

std::int64_t ParamBuffer::shard_elems(const Bucket& bucket) const {
  return distributed_ ? bucket.elems / dp_.size() : bucket.elems;
}

std::int64_t ParamBuffer::shard_begin(const Bucket& bucket) const {
  return bucket.begin + (distributed_ ? dp_.rank() * shard_elems(bucket) : 0);
}

void ParamBuffer::find_pieces() {
  for (const Slot& slot : slots_) {
    const std::size_t number = bucket_of_.at(slot.param);
    std::vector<std::size_t>& of_block = buckets_of_block_[slot.param->traits().block];
    if (of_block.empty() || of_block.back() != number) of_block.push_back(number);
    const Bucket& bucket = buckets_[number];
    const std::int64_t shard = shard_begin(bucket);
    const std::int64_t begin = std::max(slot.offset, shard);
    const std::int64_t end = std::min(slot.offset + slot.elems, shard + shard_elems(bucket));
    if (begin >= end) continue;
    const std::int64_t owned_before = distributed_ ? bucket.begin / dp_.size() : bucket.begin;
    piece_of_.emplace(slot.param, pieces_.size());
    pieces_.push_back({.param = slot.param,
                       .in_param = begin - slot.offset,
                       .elems = end - begin,
                       .offset = begin,
                       .owned = owned_before + begin - shard});
  }
  owned_elems_ = distributed_ ? elems_ / dp_.size() : elems_;
}

ParamBuffer::Range ParamBuffer::owned_range(const Param& param, std::int64_t row, std::int64_t rows) const {
  const std::int64_t columns = param.local_shape().elems() / param.local_shape()[0];
  const auto found = piece_of_.find(&param);
  if (found == piece_of_.end()) return {};
  const Piece& piece = pieces_[found->second];
  const std::int64_t begin = std::max(row * columns, piece.in_param);
  const std::int64_t end = std::min((row + rows) * columns, piece.in_param + piece.elems);
  if (begin >= end) return {};
  return {piece.offset + begin - piece.in_param, end - begin};
}

Tensor ParamBuffer::owned_gradient(const Param& param, std::int64_t row, std::int64_t rows) const {
  const Range range = owned_range(param, row, rows);
  return gradients_.slice(range.offset, range.elems);
}

void ParamBuffer::keep_owned(Lane& lane, const Tensor& full, const Tensor& owned) const {
  if (full.raw() == owned.raw()) return;
  for (const Piece& piece : pieces_) {
    ops::copy(lane, full.slice(piece.offset, piece.elems), owned.slice(piece.owned, piece.elems));
  }
}

Tensor ParamBuffer::gather_owned(Lane& lane, const Tensor& owned) {
  if (!distributed_) return owned;
  Tensor full = scratch();
  for (std::size_t i = 0; i < weight_buckets_; ++i) {
    const Bucket& bucket = buckets_[i];
    const Tensor shard = owned.slice(bucket.begin / dp_.size(), shard_elems(bucket));
    dp_.all_gather_into(lane, shard, full.slice(bucket.begin, bucket.elems)).wait(lane);
  }
  return full;
}

void ParamBuffer::begin_step(Lane& lane, int contributions, bool reduce) {
  lane_ = &lane;
  reduces_ = reduce;
  for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters;
  for (const auto& [param, bucket] : bucket_of_) param->begin_step(contributions);
}

void ParamBuffer::gradient_ready(const Param& param) {
  const auto it = bucket_of_.find(&param);
  WEFT_CHECK(it != bucket_of_.end(), "{} is in no bucket", param.name());
  Bucket& bucket = buckets_[it->second];
  if (--bucket.missing == 0 && overlap_ && reduces_) reduce(bucket);
}

void ParamBuffer::reduce(Bucket& bucket) {
  const Tensor all = gradients_.slice(bucket.begin, bucket.elems);
  bucket.reduction =
      distributed_
          ? dp_.reduce_scatter_into(*lane_, all, gradients_.slice(shard_begin(bucket), shard_elems(bucket)))
          : dp_.all_reduce(*lane_, all);
}

void ParamBuffer::finish_step() {
  for (Bucket& bucket : buckets_) {
    WEFT_CHECK(bucket.missing == 0,
               "a bucket of gradients still misses {} of {} parameters at the end of the step",
               bucket.missing, bucket.parameters);
    if (!bucket.reduction.live()) reduce(bucket);
  }
  for (Bucket& bucket : buckets_) bucket.reduction.wait(*lane_);
  for (const Slot& tied : tied_) {
    // Both have a bucket of their own, of the same size: what a rank owns of one it owns of the other.
    const Bucket& to = buckets_[bucket_of_.at(tied.param->owner())];
    const Bucket& from = buckets_[bucket_of_.at(tied.param)];
    WEFT_CHECK(to.elems == from.elems && to.parameters == 1, "{} and its owner lie in unlike buckets",
               tied.param->name());
    ops::add_in_place(*lane_, gradients_.slice(shard_begin(to), shard_elems(to)),
                      gradients_.slice(shard_begin(from), shard_elems(from)));
  }
}

void ParamBuffer::gather_gradients(Lane& lane) {
  if (!distributed_) return;
  for (std::size_t i = 0; i < weight_buckets_; ++i) {
    const Bucket& bucket = buckets_[i];
    dp_.all_gather_into(lane, gradients_.slice(shard_begin(bucket), shard_elems(bucket)),
                        gradients_.slice(bucket.begin, bucket.elems))
        .wait(lane);
  }
}

void ParamBuffer::start_gather(Lane& lane) {
  if (!distributed_) return;
  for (std::size_t i = weight_buckets_; i-- > 0;) {
    Bucket& bucket = buckets_[i];
    bucket.gather = dp_.all_gather_into(lane, weights_.slice(shard_begin(bucket), shard_elems(bucket)),
                                        weights_.slice(bucket.begin, bucket.elems));
  }
}

void ParamBuffer::open(Lane& lane, int block) {
  for (const std::size_t i : buckets_of_block_[block]) {
    if (buckets_[i].gather.live()) buckets_[i].gather.wait(lane);
  }
}

void ParamBuffer::finish_gather(Lane& lane) {
  for (Bucket& bucket : buckets_) {
    if (bucket.gather.live()) bucket.gather.wait(lane);
  }
}

}  // namespace weft
