#include "train/step_recordings.hpp"

#include <gtest/gtest.h>

#include <map>

namespace weft {
namespace {

// A device that is told of operations by name: it does them at once, or keeps those that it is shown.
class ToyDevice final : public DeviceTools {
 public:
  void trace(bool) override {}
  std::size_t begin_traced(TracedOperation, Stream) override { return 0; }
  void end_traced(std::size_t, Stream) override {}
  std::vector<TracedOperation> traced() override { return {}; }

  void operation(const std::string& name) { (recorded_ != nullptr ? *recorded_ : done).push_back(name); }
  std::unique_ptr<RecordedWork> record(const std::function<void()>& work) override {
    struct Kept final : RecordedWork {
      explicit Kept(ToyDevice& on) : device(on) {}
      void replay() override {
        device.done.insert(device.done.end(), operations.begin(), operations.end());
        ++device.replays;
      }
      ToyDevice& device;
      std::vector<std::string> operations;
    };
    auto kept = std::make_unique<Kept>(*this);
    recorded_ = &kept->operations;
    work();
    recorded_ = nullptr;
    return kept;
  }

  std::vector<std::string> done;
  int replays = 0;

 private:
  std::vector<std::string>* recorded_ = nullptr;
};

class Ready final : public GradSink {
 public:
  void gradient_ready(const Param& param) override { ++of[param.name()]; }
  std::map<std::string, int> of;
};

// A model of two parameters, one of which is used twice in a microbatch.
class StepRecordingsTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"once", "twice"}) {
      LogicalTensor tensor;
      tensor.name = name;
      tensor.global = {4};
      tensor.count = 4;
      Param* param = params_.add(name, {tensor}, {});
      param->bind(lane_.alloc(DType::kF32, {4}, "weight"), lane_.alloc(DType::kF32, {4}, "gradient"),
                  &ready_);
    }
    mb_.batch.tokens = lane_.alloc(DType::kI32, {4}, "tokens");
    loss_ = lane_.alloc(DType::kF64, {1}, "loss");
  }
  void begin_step(int microbatches) {
    params_.all()[0]->begin_step(microbatches);
    params_.all()[1]->begin_step(2 * microbatches);
  }
  void microbatch() {
    recordings_.run(lane_, mb_, loss_, [&] {
      ++passes_;
      const auto& all = params_.all();
      for (const Param* param : {all[1].get(), all[0].get(), all[1].get()}) {
        param->contribute([&](const Tensor&, float beta) {
          device_.operation(param->name() + (beta == 0 ? " writes" : " adds"));
        });
      }
    });
  }
  // What the device has been told to do since the last call.
  std::string done() {
    std::string text;
    for (const std::string& name : std::exchange(device_.done, {})) text += name + "; ";
    return text;
  }

  const std::string first_ = "twice writes; once writes; twice adds; ",
                    later_ = "twice adds; once adds; twice adds; ";
  std::unique_ptr<Arena> arena_ = Arena::host(1 << 20);
  Workers workers_{1};
  ToyDevice device_;
  Lane lane_{*arena_, workers_, {}, &device_};
  Ready ready_;
  ParamSet params_;
  StepRecordings recordings_{params_};
  Microbatch mb_;
  Tensor loss_;
  int passes_ = 0;
};

TEST_F(StepRecordingsTest, TheDeviceDoesTheSameEveryStep) {
  for (int step = 1; step <= 5; ++step) {
    begin_step(3);
    for (int m = 0; m < 3; ++m) microbatch();
    EXPECT_EQ(done(), first_ + later_ + later_) << "step " << step;
    // The last contribution of a step, and no other, makes a gradient ready.
    EXPECT_EQ(ready_.of, (std::map<std::string, int>{{"once", step}, {"twice", step}}));
  }
  // The first microbatch ran once and was recorded once, in two steps; the others in one.
  EXPECT_EQ(passes_, 4);
  EXPECT_EQ(device_.replays, 15 - 2);
}

TEST_F(StepRecordingsTest, WhatARecordingHoldsFastMakesAnotherKind) {
  const auto step = [&] {
    begin_step(1);
    microbatch();
    EXPECT_EQ(done(), first_);
    return passes_;
  };
  for (int i = 0; i < 4; ++i) step();
  EXPECT_EQ(passes_, 2);
  mb_.loss_scale = 0.5;
  for (int i = 0; i < 4; ++i) step();
  EXPECT_EQ(passes_, 4);
  const Tensor elsewhere = lane_.alloc(DType::kF32, {64}, "test");  // other addresses follow
  for (int i = 0; i < 4; ++i) step();
  EXPECT_EQ(passes_, 6);
  std::swap(mb_.batch.tokens, mb_.batch.labels);
  for (int i = 0; i < 4; ++i) step();
  EXPECT_EQ(passes_, 8);
  std::swap(mb_.batch.tokens, mb_.batch.labels);  // known already
  EXPECT_EQ(step(), 8);
  mb_.loss_scale = 1;
  for (int i = 0; i < 4; ++i) step();
  EXPECT_EQ(passes_, 10);
}

TEST_F(StepRecordingsTest, ScalesThatNeverComeBackFillNoMemory) {
  begin_step(1);
  for (int i = 0; i < 100; ++i) {
    mb_.loss_scale = 1 + i;
    begin_step(1);
    microbatch();
  }
  EXPECT_EQ(passes_, 100);
  EXPECT_EQ(device_.replays, 0);
  mb_.loss_scale = 1;  // forgotten: it runs as it is
  begin_step(1);
  microbatch();
  EXPECT_EQ(passes_, 101);
  EXPECT_EQ(device_.replays, 0);
}

}  // namespace
}  // namespace weft
