// The two ends of a pipeline stage: where its activations come from and where they go. A stage in the middle
// of a pipeline has other objects here than the first or the last one; nothing asks which it is.
#pragma once

#include <memory>
#include <vector>

#include "nn/embedding.hpp"
#include "nn/gated.hpp"
#include "nn/head.hpp"
#include "nn/module.hpp"

namespace weft {

class StageEntry {
 public:
  virtual ~StageEntry() = default;
  // What the first layer reads [s, b, h]; `received` is what the stage before sent.
  virtual Tensor forward(Lane& lane, const Tensor& received, Microbatch& mb) const = 0;
  // What the stage before is sent back; undefined where there is none.
  virtual Tensor backward(Lane& lane, const Tensor& dx, Microbatch& mb) const = 0;
};

// Token ids of the microbatch.
class EmbeddingEntry final : public StageEntry {
 public:
  explicit EmbeddingEntry(nn::Embedding embedding) : embedding_(std::move(embedding)) {}
  Tensor forward(Lane& lane, const Tensor& received, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dx, Microbatch& mb) const override;

 private:
  nn::Embedding embedding_;
};

class ReceivedEntry final : public StageEntry {
 public:
  Tensor forward(Lane&, const Tensor& received, Microbatch&) const override { return received; }
  Tensor backward(Lane&, const Tensor& dx, Microbatch&) const override { return dx; }
};

// Waits for the weights of some blocks first (see nn::WeightGate).
class GatedEntry final : public StageEntry {
 public:
  GatedEntry(nn::WeightGate& gate, int block, std::unique_ptr<StageEntry> inner)
      : gate_(gate), block_(block), inner_(std::move(inner)) {}
  Tensor forward(Lane& lane, const Tensor& received, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& dx, Microbatch& mb) const override;

 private:
  nn::WeightGate& gate_;
  int block_;
  std::unique_ptr<StageEntry> inner_;
};

class StageExit {
 public:
  virtual ~StageExit() = default;
  // What the next stage is sent; undefined where the loss is: there mb.losses is set.
  virtual Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const = 0;
  // The gradient of x; `received` is what the next stage sent back.
  virtual Tensor backward(Lane& lane, const Tensor& received, Microbatch& mb) const = 0;
  // In place of forward, to look at the model: the logits of this rank's part of the vocabulary
  // [s, b, V_padded/tp] where the loss is; elsewhere what the next stage is sent.
  virtual Tensor look(Lane& lane, const Tensor& x, Microbatch& mb) const = 0;
};

// Final norm, output layer and loss.
class LossExit final : public StageExit {
 public:
  LossExit(std::unique_ptr<nn::Norm> norm, std::unique_ptr<nn::OutputHead> head)
      : norm_(std::move(norm)), head_(std::move(head)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& received, Microbatch& mb) const override;
  Tensor look(Lane& lane, const Tensor& x, Microbatch& mb) const override;

 private:
  std::unique_ptr<nn::Norm> norm_;
  std::unique_ptr<nn::OutputHead> head_;
};

class GatedExit final : public StageExit {
 public:
  GatedExit(nn::WeightGate& gate, std::vector<int> blocks, std::unique_ptr<StageExit> inner)
      : gate_(gate), blocks_(std::move(blocks)), inner_(std::move(inner)) {}
  Tensor forward(Lane& lane, const Tensor& x, Microbatch& mb) const override;
  Tensor backward(Lane& lane, const Tensor& received, Microbatch& mb) const override;
  Tensor look(Lane& lane, const Tensor& x, Microbatch& mb) const override;

 private:
  nn::WeightGate& gate_;
  std::vector<int> blocks_;
  std::unique_ptr<StageExit> inner_;
};

class SentExit final : public StageExit {
 public:
  Tensor forward(Lane&, const Tensor& x, Microbatch&) const override { return x; }
  Tensor backward(Lane&, const Tensor& received, Microbatch&) const override { return received; }
  Tensor look(Lane&, const Tensor& x, Microbatch&) const override { return x; }
};

}  // namespace weft
