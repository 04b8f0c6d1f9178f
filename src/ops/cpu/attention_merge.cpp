#include <cmath>
#include <limits>

#include "ops/attention_merge.hpp"
#include "ops/cpu/support.hpp"
#include "ops/twins.hpp"

namespace weft::ops::cpu {

void merge_attention(Lane& lane, const AttentionResult& into, const AttentionResult& part) {
  const Index batch = into.lse.dim(0), heads = into.lse.dim(1), queries = into.lse.dim(2);
  const Index d = into.out.columns() / heads;
  visit_floating(part.out.dtype(), [&]<class T>(T) {
    using A = accumulator_t<T>;
    A* const lse = into.lse.data<A>();
    const A* const other = part.lse.data<A>();
    for_rows(lane, queries * batch, into.out.columns(), [&](Index begin, Index end) {
      for (Index r = begin; r < end; ++r) {
        const Index query = r / batch, sample = r % batch;
        for (Index h = 0; h < heads; ++h) {
          const Index statistic = sample * heads + h, at = statistic * into.lse.ld() + query;
          const A a = lse[at], b = other[statistic * queries + query], max = a < b ? b : a;
          if (max == -std::numeric_limits<A>::infinity()) continue;  // neither has seen a key
          const A both = max + std::log(std::exp(a - max) + std::exp(b - max));
          const A keep = std::exp(a - both), add = std::exp(b - both);
          A* const out = into.out.data<A>() + r * into.out.ld() + h * d;
          const T* const more = part.out.data<T>() + r * part.out.ld() + h * d;
          for (Index c = 0; c < d; ++c) out[c] = keep * out[c] + add * to_acc(more[c]);
          lse[at] = both;
        }
      }
    });
  });
}

}  // namespace weft::ops::cpu
