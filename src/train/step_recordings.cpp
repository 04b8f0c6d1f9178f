#include "train/step_recordings.hpp"

#include <algorithm>

namespace weft {

std::vector<int> StepRecordings::contributions() const {
  std::vector<int> counts;
  for (const auto& param : params_.all()) counts.push_back(param->contributions());
  return counts;
}

void StepRecordings::run(Lane& lane, const Microbatch& mb, const Tensor& loss,
                         const std::function<void()>& pass) {
  const std::vector<int> before = contributions();
  const bool first = std::all_of(before.begin(), before.end(), [](int n) { return n == 0; });
  const Kind kind{mb.batch.tokens.raw(),
                  mb.batch.labels.raw(),
                  mb.batch.sample_ids.raw(),
                  loss.raw(),
                  lane.arena.state_hash(),
                  mb.loss_scale,
                  first};
  const auto known = std::find_if(recordings_.begin(), recordings_.end(),
                                  [&](const Recording& recording) { return recording.kind == kind; });
  if (known == recordings_.end()) {
    pass();
    recordings_.push_front({kind, nullptr, {}});
    if (recordings_.size() > kMost) recordings_.pop_back();
    return;
  }
  if (known->work == nullptr) {
    known->work = lane.tools->record(pass);
    known->contributions = contributions();
    for (std::size_t i = 0; i < before.size(); ++i) known->contributions[i] -= before[i];
  } else {
    const auto& params = params_.all();
    for (std::size_t i = 0; i < params.size(); ++i) {
      for (int n = 0; n < known->contributions[i]; ++n) params[i]->ready();
    }
  }
  known->work->replay();
}

}  // namespace weft
