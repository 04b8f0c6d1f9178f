#include "ops/cpu/dnnl_gemm.hpp"

#include <dlfcn.h>

#include <array>
#include <dnnl.hpp>
#include <unordered_map>

#include "ops/checks.hpp"
#include "ops/cpu/support.hpp"

namespace weft::ops::cpu {
namespace {

// The result is cut into tiles, the same for any number of workers. Cutting rows changes no bit with oneDNN,
// cutting columns may, so the borders between columns never move.
constexpr Index kTileN = 512;
Index tile_rows(const Gemm& g) {
  return g.m() >= 2048 ? 256 : 128;
}

using dnnl::memory;

// oneDNN must not start threads of its own under our workers. Its OpenMP runtime is asked by name, so that
// builds of oneDNN on another threading layer link too; the setting is the calling thread's alone.
void use_one_thread() {
  using SetThreads = void (*)(int);
  if (auto set = reinterpret_cast<SetThreads>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"))) set(1);
}

memory::data_type type_of(DType dtype) {
  return dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
}

struct Layout {
  memory::desc a, b, bias, c;
};

// Matrices [m, k] · [k, n] with their strides, for a tile of m rows and n columns of the result.
Layout layout_of(const Gemm& g, Index m, Index n) {
  const Index k = g.k();
  const bool a_transposed = g.form == Gemm::Form::kTN, b_transposed = g.form == Gemm::Form::kNT;
  const memory::dims a_strides = a_transposed ? memory::dims{1, g.a.ld()} : memory::dims{g.a.ld(), 1};
  const memory::dims b_strides = b_transposed ? memory::dims{1, g.b.ld()} : memory::dims{g.b.ld(), 1};
  Layout l;
  l.a = memory::desc({m, k}, memory::data_type::bf16, a_strides);
  l.b = memory::desc({k, n}, memory::data_type::bf16, b_strides);
  l.c = memory::desc({m, n}, type_of(g.c.dtype()), memory::dims{g.c.ld(), 1});
  if (g.bias.defined()) l.bias = memory::desc({1, n}, memory::data_type::bf16, memory::dims{n, 1});
  return l;
}

// oneDNN keeps the generated code in its own cache, so making the same primitive again is cheap.
dnnl::matmul::primitive_desc describe_product(const dnnl::engine& engine, const Gemm& g, Index m, Index n) {
  const Layout l = layout_of(g, m, n);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (g.beta != 0) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  if (g.bias.defined()) return {engine, l.a, l.b, l.bias, l.c, attributes};
  return {engine, l.a, l.b, l.c, attributes};
#else
  if (g.bias.defined()) return {dnnl::matmul::desc(l.a, l.b, l.bias, l.c), attributes, engine};
  return {dnnl::matmul::desc(l.a, l.b, l.c), attributes, engine};
#endif
}

// The sizes that tiles of this product come in: inner, last row, last column, corner.
struct Tiles {
  explicit Tiles(const Gemm& g)
      : height(tile_rows(g)),
        down(ceil_div(g.m(), height)),
        across(ceil_div(g.n(), kTileN)),
        last_m(g.m() - (down - 1) * height),
        last_n(g.n() - (across - 1) * kTileN) {}
  // Tiles of row i and column j use the primitive of [is last row][is last column].
  Index kind(Index i, Index j) const { return (i + 1 == down ? 2 : 0) + (j + 1 == across ? 1 : 0); }
  bool occurs(Index kind) const { return (kind >= 2 || down > 1) && (kind % 2 == 1 || across > 1); }
  Index height, down, across, last_m, last_n;
};

struct Plan {
  explicit Plan(const Gemm& g) : engine(dnnl::engine::kind::cpu, 0), tiles(g) {
    use_one_thread();
    try {
      for (Index kind = 0; kind < 4; ++kind) {
        if (!tiles.occurs(kind)) continue;
        const Index m = kind >= 2 ? tiles.last_m : tiles.height, n = kind % 2 == 1 ? tiles.last_n : kTileN;
        products[static_cast<std::size_t>(kind)] = describe_product(engine, g, m, n);
        const auto& made = products[static_cast<std::size_t>(kind)];
        scratch = std::max(scratch, round_up(static_cast<Index>(made.scratchpad_desc().get_size()), 256));
      }
    } catch (const dnnl::error& e) {
      fail("oneDNN cannot multiply {} and {}: {}", describe(g.a), describe(g.b), e.what());
    }
  }
  Index slots(const Lane& lane) const {
    return std::min<Index>(lane.workers.threads(), tiles.down * tiles.across);
  }

  dnnl::engine engine;
  Tiles tiles;
  std::array<dnnl::matmul::primitive_desc, 4> products;
  Index scratch = 0;  // bytes for each piece in flight
};

std::byte* at(const Tensor& x, Index row, Index column) {
  return x.raw() + (row * x.ld() + column) * static_cast<Index>(bytes_of(x.dtype()));
}

void run_tile(const Plan& plan, const dnnl::matmul& product, const Gemm& g, Index i, Index j,
              std::byte* scratch) {
  const auto& made = plan.products[static_cast<std::size_t>(plan.tiles.kind(i, j))];
  const bool a_transposed = g.form == Gemm::Form::kTN, b_transposed = g.form == Gemm::Form::kNT;
  const Index row = i * plan.tiles.height, column = j * kTileN;
  std::byte* a = a_transposed ? at(g.a, 0, row) : at(g.a, row, 0);
  std::byte* b = b_transposed ? at(g.b, column, 0) : at(g.b, 0, column);
  std::unordered_map<int, memory> arguments = {
      {DNNL_ARG_SRC, memory(made.src_desc(), plan.engine, a)},
      {DNNL_ARG_WEIGHTS, memory(made.weights_desc(), plan.engine, b)},
      {DNNL_ARG_DST, memory(made.dst_desc(), plan.engine, at(g.c, row, column))},
      {DNNL_ARG_SCRATCHPAD, memory(made.scratchpad_desc(), plan.engine, scratch)}};
  if (g.bias.defined()) {
    arguments.emplace(DNNL_ARG_BIAS, memory(made.bias_desc(), plan.engine, g.bias.raw() + column * 2));
  }
  dnnl::stream stream(plan.engine);
  product.execute(stream, arguments);
  stream.wait();
}

}  // namespace

bool dnnl_takes(const Gemm& g) {
  if (g.a.dtype() != DType::kBF16) return false;
  // Each level of oneDNN's list of instruction sets contains the bits of those it builds on.
  const auto have = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto need = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  return (have & need) == need && g.k() > 0;
}

std::int64_t dnnl_gemm_scratch(const Lane& lane, const Gemm& g) {
  const Plan plan(g);
  return plan.slots(lane) * plan.scratch;
}

void dnnl_gemm(Lane& lane, const Gemm& g, const Tensor& scratch) {
  const Plan plan(g);
  std::array<dnnl::matmul, 4> products;
  for (std::size_t kind = 0; kind < 4; ++kind) {
    if (plan.tiles.occurs(static_cast<Index>(kind))) products[kind] = dnnl::matmul(plan.products[kind]);
  }
  Slots slots(static_cast<int>(plan.slots(lane)));
  lane.workers.parallel_for(plan.tiles.down * plan.tiles.across, 1, [&](Index piece, Index) {
    const Slots::Lease slot(slots);
    use_one_thread();
    const Index i = piece / plan.tiles.across, j = piece % plan.tiles.across;
    const dnnl::matmul& product = products[static_cast<std::size_t>(plan.tiles.kind(i, j))];
    try {
      run_tile(plan, product, g, i, j, scratch.raw() + slot.index() * plan.scratch);
    } catch (const dnnl::error& e) {
      fail("oneDNN failed to multiply {} and {}: {}", describe(g.a), describe(g.b), e.what());
    }
  });
}

}  // namespace weft::ops::cpu
