// What any layout saves, any layout loads.
#include <chrono>
#include <random>
#include <thread>

#include "checkpoint/support.hpp"
#include "io/safetensors.hpp"

namespace weft {
namespace {

using namespace weft::test;

const std::vector<Layout> kLayouts = {{1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 2}, {3, 2}, {1, 4}, {2, 4}, {3, 4}};

TEST(CheckpointLayouts, EveryLayoutReadsEveryOther) {
  TemporaryFolder folder;
  for (const Layout& from : kLayouts) save(folder.path() / from.text(), from, 5);
  for (const Layout& to : kLayouts) {
    run_ranks(to, [&](Communicator& world) {
      Rank rank(world, to);
      for (const Layout& from : kLayouts) {
        SCOPED_TRACE(from.text() + " read as " + to.text());
        rank.fill_with_rubbish();
        const CheckpointReader reader(folder.path() / from.text());
        load_checkpoint(rank.lane(), reader, rank.parts());
        rank.expect(5, rank.kinds());
        EXPECT_EQ(rank.optimizer().steps(), 5);
      }
    });
  }
}

TEST(CheckpointLayouts, MasterWeightsOfBf16StayFp32) {
  TemporaryFolder folder;
  const Layout from = {2, 2}, to = {1, 4};
  save(folder.path(), from, 3, {}, DType::kBF16);
  const CheckpointInfo info = read_checkpoint_info(folder.path());
  for (const CheckpointTensor& tensor : info.tensors) EXPECT_EQ(tensor.dtype, DType::kF32) << tensor.name;
  run_ranks(to, [&](Communicator& world) {
    Rank rank(world, to, DType::kBF16);
    rank.fill_with_rubbish();
    load_checkpoint(rank.lane(), CheckpointReader(folder.path()), rank.parts());
    rank.expect(3, rank.kinds());
    std::size_t with_low_bits = 0;
    for (const float x : rank.optimizer().master().values<float>()) {
      with_low_bits += (std::bit_cast<std::uint32_t>(x) & 0xffffu) != 0;
    }
    EXPECT_GT(with_low_bits, 10u);
  });
}

TEST(CheckpointLayouts, BytesDependOnNothingButValuesAndLayout) {
  TemporaryFolder folder;
  const Layout layout = {3, 2};
  for (unsigned seed = 1; seed <= 3; ++seed) {
    run_ranks(layout, [&](Communicator& world) {
      Rank rank(world, layout);
      rank.fill(4);
      std::mt19937 random(seed * 100 + static_cast<unsigned>(world.rank()));
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
      save_checkpoint(rank.lane(), rank.groups(), rank.parts(), meta_of(4),
                      folder.path() / std::to_string(seed));
    });
  }
  const auto first = contents(folder.path() / "1");
  EXPECT_EQ(first.size(), 6u + 3u) << "a shard for each rank, index, tokenizer, latest";
  EXPECT_EQ(first, contents(folder.path() / "2"));
  EXPECT_EQ(first, contents(folder.path() / "3"));
}

TEST(CheckpointLayouts, ReplicasShareTheWork) {
  TemporaryFolder folder;
  save(folder.path(), {2, 2}, 1);
  const CheckpointInfo info = read_checkpoint_info(folder.path());
  std::uint64_t written = 0, largest = 0, needed = 0;
  for (const CheckpointFile& file : info.files) {
    if (!file.name.ends_with(".safetensors")) continue;
    const SafetensorsFile shard(info.folder / file.name);
    std::uint64_t bytes = 0;
    for (const std::string& key : shard.names()) bytes += shard.get(key).bytes();
    written += bytes;
    largest = std::max(largest, bytes);
  }
  for (const CheckpointTensor& tensor : info.tensors) {
    needed += static_cast<std::uint64_t>(tensor.shape.elems()) * bytes_of(tensor.dtype);
  }
  EXPECT_EQ(written, needed) << "nothing is written twice, and no padding";
  EXPECT_LT(largest, needed / 2);
}

TEST(CheckpointLayouts, AnySliceOfAnyTensor) {
  TemporaryFolder folder;
  for (const Layout& from : {Layout{1, 1}, Layout{2, 4}}) {
    save(folder.path() / from.text(), from, 2);
    const CheckpointReader reader(folder.path() / from.text());
    const auto arena = Arena::host(1 << 20);
    Workers workers(1);
    Lane lane{*arena, workers, {}};
    for (const auto& param : small_model()) {
      for (const GlobalTensor& tensor : param) {
        ASSERT_EQ(reader.shape(tensor.name), tensor.shape);
        for (int dim = -1; dim < tensor.shape.rank(); ++dim) {
          const std::int64_t size = dim < 0 ? 1 : tensor.shape[dim];
          for (std::int64_t begin = 0; begin < size; ++begin) {
            for (std::int64_t count = 1; begin + count <= size; ++count) {
              Shape shape = tensor.shape;
              if (dim >= 0) shape.set(dim, count);
              const Tensor out = lane.alloc(DType::kF64, shape, "out");
              reader.read(lane, tensor.name, dim, begin, count, out);
              const std::int64_t columns = shape.rank() > 1 ? shape[1] : 1;
              const std::int64_t all_columns = shape.rank() > 1 ? tensor.shape[1] : 1;
              for (std::int64_t i = 0; i < out.elems(); ++i) {
                const std::int64_t row = i / columns + (dim == 0 ? begin : 0);
                const std::int64_t column = i % columns + (dim == 1 ? begin : 0);
                ASSERT_EQ(out.data<double>()[i],
                          value_of(kWeightKind, tensor.name, row * all_columns + column, 2))
                    << tensor.name << " dim " << dim << " [" << begin << ", +" << count << ")";
              }
            }
          }
        }
      }
    }
  }
}

TEST(CheckpointLayouts, WeightsAlone) {
  TemporaryFolder folder;
  const Layout layout = {1, 2};
  save(folder.path(), layout, 6, {.optimizer_state = false});
  EXPECT_TRUE(read_checkpoint_info(folder.path()).states.empty());
  run_ranks(layout, [&](Communicator& world) {
    Rank rank(world, layout, DType::kBF16);
    const CheckpointReader reader(folder.path());
    expect_parts(config_error_of([&] { load_checkpoint(rank.lane(), reader, rank.parts()); }),
                 {"no optimizer state", "exp_avg, exp_avg_sq", "--no-load-optim"});
    load_checkpoint(rank.lane(), reader, rank.parts(), {.optimizer_state = false});
    rank.expect(6, {{kWeightKind, rank.optimizer().master()}});
    EXPECT_EQ(rank.optimizer().steps(), 0);

    // Straight into the weights in use, as inference does.
    ops::fill(rank.lane(), rank.buffer().weights(), -777);
    ops::fill(rank.lane(), rank.optimizer().master(), 0);
    load_weights(rank.lane(), reader, rank.weights_alone());
    load_weights(rank.lane(), reader, rank.parts());
  });
  run_ranks(layout, [&](Communicator& world) {
    Rank rank(world, layout, DType::kBF16);
    rank.fill(6);
    const Tensor expected = ops::cast(rank.lane(), rank.buffer().weights(), DType::kBF16, "copy");
    ops::fill(rank.lane(), rank.buffer().weights(), 0);
    load_weights(rank.lane(), CheckpointReader(folder.path()), rank.weights_alone());
    EXPECT_EQ(std::memcmp(expected.raw(), rank.buffer().weights().raw(), expected.bytes()), 0);
  });
}

TEST(CheckpointLayouts, WrittenFromAnySource) {
  TemporaryFolder folder;
  save(folder.path() / "a", {2, 2}, 7);
  const auto arena = Arena::host(1 << 20);
  Workers workers(1);
  Lane lane{*arena, workers, {}};
  const CheckpointReader source(folder.path() / "a");
  write_weights(lane, source, meta_of(0), folder.path() / "b", DType::kF32, 500);
  EXPECT_GT(read_checkpoint_info(folder.path() / "b").files.size(), 3u);
  const Layout to = {1, 4};
  run_ranks(to, [&](Communicator& world) {
    Rank rank(world, to);
    load_weights(rank.lane(), CheckpointReader(folder.path() / "b"), rank.parts());
    rank.expect(7, {{kWeightKind, rank.optimizer().master()}});
  });
}

}  // namespace
}  // namespace weft
