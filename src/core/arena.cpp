#include "core/arena.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "core/rng.hpp"

namespace weft {
namespace detail {

// Blocks lie in address order in a doubly linked list; free ones join their neighbours.
struct Block {
  Arena::State* owner = nullptr;
  std::size_t offset = 0, bytes = 0;
  Block *previous = nullptr, *next = nullptr;
  const char* what = nullptr;
  std::atomic<int> handles{0};
  bool free = true;
};

}  // namespace detail

using detail::Block;

struct Arena::State {
  Device device;
  DeviceKind target = DeviceKind::kCpu;
  std::byte* base = nullptr;
  std::size_t capacity = 0;
  void* mapping = nullptr;        // of host()
  std::function<void()> release;  // gives the memory back, if this arena owns it
  std::size_t in_use = 0, high_water = 0, allocations = 0;
  Block* first = nullptr;
  // The free ones in address order: there are few of them, however many blocks are live.
  struct ByOffset {
    bool operator()(const Block* a, const Block* b) const { return a->offset < b->offset; }
  };
  std::set<Block*, ByOffset> free_blocks;
  std::vector<Block*> spare;                  // nodes to use again
  std::vector<std::unique_ptr<Block>> nodes;  // every node ever made
  // The last handle to a tensor may go in another thread (a collective's worker), so the list is guarded.
  mutable std::mutex mutex;

  Block* node() {
    if (spare.empty()) {
      nodes.push_back(std::make_unique<Block>());
      nodes.back()->owner = this;
      return nodes.back().get();
    }
    Block* b = spare.back();
    spare.pop_back();
    return b;
  }

  void free_block(Block* b) {
    const std::lock_guard lock(mutex);
    in_use -= b->bytes;
    b->free = true;
    if (b->next != nullptr && b->next->free) {
      free_blocks.erase(b->next);
      absorb_next(b);
    }
    if (b->previous != nullptr && b->previous->free) {
      absorb_next(b->previous);
    } else {
      free_blocks.insert(b);
    }
  }

  void absorb_next(Block* b) {
    Block* gone = b->next;
    b->bytes += gone->bytes;
    b->next = gone->next;
    if (b->next != nullptr) b->next->previous = b;
    spare.push_back(gone);
  }
};

namespace detail {

void retain(Block* block) {
  block->handles.fetch_add(1, std::memory_order_relaxed);
}

void release(Block* block) {
  if (block->handles.fetch_sub(1, std::memory_order_acq_rel) == 1) block->owner->free_block(block);
}

}  // namespace detail

namespace {

std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace

Arena::Arena(Device device, std::byte* base, std::size_t bytes, std::function<void()> release)
    : state_(std::make_unique<State>()) {
  state_->release = std::move(release);
  state_->device = device;
  state_->target = device.kind;
  state_->base = base;
  state_->capacity = bytes / kAlignment * kAlignment;
  state_->first = state_->node();
  state_->first->bytes = state_->capacity;
  state_->free_blocks.insert(state_->first);
}

Arena::~Arena() {
  if (state_->release) state_->release();
}

std::unique_ptr<Arena> Arena::host(std::size_t bytes) {
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1), 4096);
  void* p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) fail("cannot reserve {} bytes of memory for tensors", size);
  auto arena = std::make_unique<Arena>(Device{DeviceKind::kCpu, 0}, static_cast<std::byte*>(p), size,
                                       [p, size] { munmap(p, size); });
  arena->state_->mapping = p;
  return arena;
}

std::unique_ptr<Arena> Arena::meta(DeviceKind stands_for) {
  // Addresses start at kAlignment, so that a meta tensor is not mistaken for an empty one; nobody reads them.
  auto arena = std::make_unique<Arena>(Device{DeviceKind::kMeta, 0}, reinterpret_cast<std::byte*>(kAlignment),
                                       std::size_t{1} << 60);
  arena->state_->target = stands_for;
  return arena;
}

Tensor Arena::alloc(DType dtype, const Shape& shape, const char* what) {
  State& s = *state_;
  const std::size_t bytes = round_up(
      std::max<std::size_t>(static_cast<std::size_t>(shape.elems()) * bytes_of(dtype), 1), kAlignment);
  std::unique_lock lock(s.mutex);
  const auto found = std::find_if(s.free_blocks.begin(), s.free_blocks.end(),
                                  [&](const Block* block) { return block->bytes >= bytes; });
  if (found == s.free_blocks.end()) {
    lock.unlock();
    std::string items;
    for (const Item& item : largest(6)) {
      items += fmt::format("\n  {:>14} bytes in {:>6} x {}", item.bytes, item.count, item.what);
    }
    fail(
        "out of memory: {} {} needs {} bytes, but {} of the arena's {} bytes are in use; the largest "
        "items:{}",
        what, to_string(shape), bytes, in_use(), capacity(), items);
  }
  Block* b = *found;
  s.free_blocks.erase(found);
  if (b->bytes > bytes) {
    Block* rest = s.node();
    rest->offset = b->offset + bytes;
    rest->bytes = b->bytes - bytes;
    rest->free = true;
    rest->previous = b;
    rest->next = b->next;
    if (rest->next != nullptr) rest->next->previous = rest;
    b->next = rest;
    b->bytes = bytes;
    s.free_blocks.insert(rest);
  }
  b->free = false;
  b->what = what;
  b->handles.store(1, std::memory_order_relaxed);
  s.in_use += bytes;
  s.high_water = std::max(s.high_water, b->offset + bytes);
  ++s.allocations;

  Tensor t;
  t.data_ = s.base + b->offset;
  t.block_ = b;
  t.shape_ = shape;
  t.ld_ = t.columns();
  t.dtype_ = dtype;
  t.device_ = s.device;
  t.defined_ = true;
  return t;
}

Device Arena::device() const {
  return state_->device;
}
DeviceKind Arena::target() const {
  return state_->target;
}
std::size_t Arena::capacity() const {
  return state_->capacity;
}

std::size_t Arena::in_use() const {
  const std::lock_guard lock(state_->mutex);
  return state_->in_use;
}

std::size_t Arena::high_water() const {
  const std::lock_guard lock(state_->mutex);
  return state_->high_water;
}

void Arena::reset_high_water() {
  const std::lock_guard lock(state_->mutex);
  state_->high_water = 0;
  for (const Block* b = state_->first; b != nullptr; b = b->next) {
    if (!b->free) state_->high_water = b->offset + b->bytes;
  }
}

std::size_t Arena::touched() const {
  if (state_->mapping == nullptr) return 0;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((state_->capacity + page - 1) / page);
  if (mincore(state_->mapping, state_->capacity, resident.data()) != 0) return 0;
  std::size_t pages = 0;
  for (const unsigned char flags : resident) pages += flags & 1u;
  return pages * page;
}

std::size_t Arena::allocations() const {
  const std::lock_guard lock(state_->mutex);
  return state_->allocations;
}

std::uint64_t Arena::state_hash() const {
  const std::lock_guard lock(state_->mutex);
  RandomKey hash;
  for (const Block* b : state_->free_blocks) hash = hash.with(b->offset).with(b->bytes);
  return hash.value;
}

std::vector<Arena::Item> Arena::largest(std::size_t count) const {
  const std::lock_guard lock(state_->mutex);
  std::map<std::string_view, Item> by_name;
  for (const Block* b = state_->first; b != nullptr; b = b->next) {
    if (b->free) continue;
    Item& item = by_name.try_emplace(b->what, Item{b->what, 0, 0}).first->second;
    item.bytes += b->bytes;
    ++item.count;
  }
  std::vector<Item> items;
  for (const auto& [name, item] : by_name) items.push_back(item);
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
  if (items.size() > count) items.resize(count);
  return items;
}

}  // namespace weft
