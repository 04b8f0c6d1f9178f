#include "io/safetensors.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <random>

#include "core/arena.hpp"
#include "io/atomic_file.hpp"

namespace weft {
namespace {

namespace fs = std::filesystem;

class SafetensorsTest : public testing::Test {
 protected:
  SafetensorsTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / fmt::format("weft-safetensors-{}-{}", getpid(), test->name());
    fs::create_directories(folder_);
  }
  ~SafetensorsTest() override { fs::remove_all(folder_); }

  Tensor random(DType dtype, const Shape& shape) {
    Tensor t = arena_->alloc(dtype, shape, "random");
    for (std::size_t i = 0; i < t.bytes(); ++i) t.raw()[i] = static_cast<std::byte>(bits_());
    return t;
  }
  // A file of this header and this many data bytes.
  fs::path raw(const std::string& header, std::size_t data_bytes) const {
    const std::uint64_t length = header.size();
    std::string bytes(reinterpret_cast<const char*>(&length), 8);
    write_file(folder_ / "raw.safetensors", bytes + header + std::string(data_bytes, '\1'));
    return folder_ / "raw.safetensors";
  }
  // The ConfigError that opening (and, if `name` is given, reading a tensor) gives; empty when there is none.
  static std::string fault_of(const fs::path& path, const std::string& name = "") {
    try {
      const SafetensorsFile file(path);
      if (!name.empty()) (void)file.get(name);
    } catch (const ConfigError& e) {
      EXPECT_EQ(std::string(e.what()).rfind(path.string(), 0), 0u)
          << "does not begin with the file: " << e.what();
      return e.what();
    }
    return "";
  }
  void expect_fault(const std::string& header, std::size_t data_bytes, const std::string& part,
                    const std::string& name = "") {
    const std::string fault = fault_of(raw(header, data_bytes), name);
    EXPECT_NE(fault.find(part), std::string::npos) << header << "\n gives: " << fault;
  }

  fs::path folder_;
  std::unique_ptr<Arena> arena_ = Arena::host(std::size_t{1} << 26);
  std::mt19937 bits_{7};
};

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

TEST_F(SafetensorsTest, EveryTypeAndShapeComesBack) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  const DType dtypes[] = {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI64,
                          DType::kI32, DType::kI16, DType::kU16,  DType::kI8,  DType::kU8};
  const Shape shapes[] = {{}, {1}, {7}, {0}, {3, 5}, {3, 0, 2}, {2, 3, 4, 5}};
  for (const DType dtype : dtypes) {
    for (const Shape& shape : shapes) {
      // Odd element counts of narrow types leave the next tensor unaligned.
      tensors.emplace_back(fmt::format("{}.{}", name_of(dtype), to_string(shape)), random(dtype, shape));
    }
  }
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"note", "a \"quoted\"\nline, é"}};
  const fs::path path = folder_ / "all.safetensors";
  write_safetensors(path, tensors, metadata);

  SafetensorsFile opened(path);
  const SafetensorsFile file = std::move(opened);
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_TRUE(file.contains(name));
    const Tensor back = file.get(name);
    EXPECT_TRUE(same_bytes(back, tensor)) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(back.raw()) % bytes_of(back.dtype()), 0u) << name;
    EXPECT_EQ(file.get(name).raw(), back.raw()) << "a second get of " << name;
  }
  EXPECT_FALSE(file.contains("absent"));
}

TEST_F(SafetensorsTest, NoTensorsAtAll) {
  write_safetensors(folder_ / "none.safetensors", {});
  EXPECT_TRUE(SafetensorsFile(folder_ / "none.safetensors").names().empty());
}

TEST_F(SafetensorsTest, NamesComeInTheOrderOfTheData) {
  write_safetensors(folder_ / "x", {{"z", random(DType::kF32, {2})},
                                    {"empty", random(DType::kF32, {0})},
                                    {"a", random(DType::kF32, {3})}});
  EXPECT_EQ(SafetensorsFile(folder_ / "x").names(), (std::vector<std::string>{"z", "empty", "a"}));
}

TEST_F(SafetensorsTest, GoldenFile) {
  const SafetensorsFile file(fs::path(WEFT_SOURCE_DIR) / "tests/golden/ops/rope/tensors.safetensors");
  const Tensor inv_freq = file.get("inv_freq");
  ASSERT_EQ(inv_freq.shape(), (Shape{8}));
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(inv_freq.values<double>()[static_cast<std::size_t>(i)], std::pow(10000.0, -2.0 * i / 16),
                1e-15);
  }
}

TEST_F(SafetensorsTest, CutAnywhereIsAFault) {
  const fs::path path = folder_ / "whole", cut = folder_ / "cut";
  write_safetensors(path, {{"a", random(DType::kF32, {3, 5})}, {"b", random(DType::kU8, {9})}}, {{"k", "v"}});
  const std::string bytes = read_file(path);
  ASSERT_EQ(fault_of(path), "");
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    std::ofstream(cut, std::ios::binary) << bytes.substr(0, size);
    ASSERT_NE(fault_of(cut), "") << size << " of " << bytes.size() << " bytes";
  }
  std::ofstream(cut, std::ios::binary) << bytes << "more";
  EXPECT_NE(fault_of(cut).find("the tensors end at data byte 69, but the file has 73 data bytes"),
            std::string::npos);
}

TEST_F(SafetensorsTest, AnyChangedHeaderByteIsAFaultOrReadsInBounds) {
  const fs::path path = folder_ / "whole", changed = folder_ / "changed";
  write_safetensors(path, {{"a", random(DType::kI32, {3, 5})}, {"b", random(DType::kU8, {9})}}, {{"k", "v"}});
  const std::string bytes = read_file(path);
  for (int trial = 0; trial < 800; ++trial) {
    std::string damaged = bytes;
    damaged[bits_() % (bytes.size() - 69)] = static_cast<char>(bits_());
    std::ofstream(changed, std::ios::binary) << damaged;
    try {
      const SafetensorsFile file(changed);
      for (const std::string& name : file.names()) {
        const Tensor t = file.get(name);
        std::uint64_t sum = 0;
        for (std::size_t i = 0; i < t.bytes(); ++i) sum += static_cast<std::uint64_t>(t.raw()[i]);
        EXPECT_GT(sum, 0u);
      }
    } catch (const ConfigError& e) {
      EXPECT_NE(std::string(e.what()).find(changed.string()), std::string::npos);
    }
  }
}

TEST_F(SafetensorsTest, DamagedHeaders) {
  for (const std::uint64_t length : {std::uint64_t{1} << 60, ~std::uint64_t{0}, std::uint64_t{100}}) {
    std::string bytes(reinterpret_cast<const char*>(&length), 8);
    write_file(folder_ / "huge", bytes + "{}");
    EXPECT_NE(fault_of(folder_ / "huge").find(fmt::format("should have {} bytes, but only 2 follow", length)),
              std::string::npos);
  }
  expect_fault("", 0, "not valid JSON");
  expect_fault("{\"a\":", 0, "not valid JSON");
  expect_fault("[1]", 0, "not an object");
  expect_fault(std::string(100'000, '['), 0, "not valid JSON");
  expect_fault("{\"a\":3}", 0, "'a': its header entry is no object");
  expect_fault("{\"a\":{}}", 0, "'a': no dtype");
  expect_fault("{\"__metadata__\":[]}", 0, "__metadata__");
  expect_fault("{\"__metadata__\":{\"k\":1}}", 0, "'k' is no string");
}

TEST_F(SafetensorsTest, DamagedEntries) {
  const auto entry = [](const char* dtype, const char* shape, const char* offsets) {
    return fmt::format("{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":{}}}", dtype, shape, offsets);
  };
  const auto one = [&](const char* dtype, const char* shape, const char* offsets) {
    return "{\"w\":" + entry(dtype, shape, offsets) + "}";
  };
  const auto two = [&](const std::string& a, const std::string& b) {
    return "{\"v\":" + a + ",\"w\":" + b + "}";
  };
  expect_fault(one("F33", "[2]", "[0,8]"), 8, "'w': unknown dtype 'F33'");
  expect_fault(one("F32", "[3]", "[0,8]"), 8, "F32 [3] needs 12 bytes, but data_offsets [0, 8] hold 8");
  expect_fault(one("F32", "[-2]", "[0,8]"), 8, "no integer >= 0");
  expect_fault(one("F32", "[2.0]", "[0,8]"), 8, "no integer >= 0");
  expect_fault(one("F32", "2", "[0,8]"), 8, "no shape");
  expect_fault(one("F32", "[2]", "[0]"), 8, "not a pair");
  expect_fault(one("F32", "[2]", "[-8,0]"), 8, "not a pair");
  expect_fault(one("F32", "[2]", "[8,0]"), 8, "[8, 0] do not lie in the file's 8 data bytes");
  expect_fault(one("F32", "[4]", "[0,16]"), 8, "[0, 16] do not lie in the file's 8 data bytes");
  expect_fault(one("F32", "[4611686018427387904,4]", "[0,8]"), 8, "needs more than 2^63 bytes");
  expect_fault(one("F32", "[4611686018427387904,4,0]", "[0,0]"), 0, "needs more than 2^63 bytes");
  expect_fault(one("F32", "[1,1,2,1,1]", "[0,8]"), 8, "[1, 1, 2, 1, 1] of 5 dimensions; at most 4", "w");
  expect_fault(one("BOOL", "[8]", "[0,8]"), 8, "dtype BOOL, which cannot be used here", "w");
  expect_fault(one("F32", "[2]", "[0,8]"), 8, "no tensor 'x' among its 1 tensors", "x");
  expect_fault(one("F32", "[2]", "[0,8]"), 12,
               "the tensors end at data byte 8, but the file has 12 data bytes");
  expect_fault(one("F32", "[2]", "[4,12]"), 12, "4 bytes before tensor 'w'");
  expect_fault(two(entry("F32", "[2]", "[0,8]"), entry("F32", "[2]", "[4,12]")), 12,
               "'w': data_offsets [4, 12] overlap those of 'v', which end at 8");
  expect_fault(two(entry("F32", "[2]", "[0,8]"), entry("F32", "[2]", "[0,8]")), 8, "overlap");
  expect_fault("{\"w\":" + entry("U8", "[1]", "[0,1]") + ",\"w\":" + entry("U8", "[1]", "[0,1]") + "}", 1,
               "'w' occurs twice");
  // The same text without a fault.
  EXPECT_EQ(fault_of(raw(two(entry("F32", "[2]", "[4,12]"), entry("F32", "[]", "[0,4]")), 12), "w"), "");
}

TEST_F(SafetensorsTest, FilesThatCannotBeOpened) {
  EXPECT_NE(fault_of(folder_ / "absent").find("No such file"), std::string::npos);
  EXPECT_NE(fault_of(folder_).find("no regular file"), std::string::npos);
}

TEST_F(SafetensorsTest, WriterChecksItsCallerAndLeavesNothing) {
  const fs::path path = folder_ / "x.safetensors";
  const Tensor a = random(DType::kF32, {4, 6}), half = random(DType::kBF16, {4, 6});
  {
    SafetensorsWriter writer(path, {{"a", DType::kF32, {4, 6}}, {"b", DType::kF32, {4, 3}}});
    EXPECT_THROW(writer.write(half), Error);
    EXPECT_THROW(writer.write(a.slice(0, 2)), Error);
    writer.write(a);
    EXPECT_THROW(writer.write(a.slice_columns(0, 3)), Error);  // strided
    EXPECT_THROW(writer.commit(), Error);
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_THROW(SafetensorsWriter(path, {{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}}), Error);
  EXPECT_THROW(SafetensorsWriter(path, {{"\xff", DType::kF32, {1}}}), Error);
  EXPECT_TRUE(fs::is_empty(folder_));
}

}  // namespace
}  // namespace weft
