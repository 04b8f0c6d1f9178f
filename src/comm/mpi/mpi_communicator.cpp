#include "comm/mpi/mpi_communicator.hpp"

#include <algorithm>
#include <utility>

#include "comm/calls.hpp"
#include "comm/host_operation.hpp"
#include "comm/mpi/tasks.hpp"

namespace weft::mpi {
namespace {

// Reductions take (ranks - 1) times this beside their tensors, twice over, and no more.
constexpr std::size_t kPieceBytes = std::size_t{1} << 19;

// This rank's part in one call. Holds the tensors until they are its own again.
class MpiOperation : public HostOperation {
 public:
  // `packed`: copies that several tasks share, unpacked at the end.
  MpiOperation(std::shared_ptr<Engine> engine, std::vector<Tensor> held, Moves packed = {},
               DType dtype = DType::kF32)
      : engine_(std::move(engine)), held_(std::move(held)), packed_(std::move(packed)), dtype_(dtype) {}
  ~MpiOperation() override {
    if (!finished_) leave();  // an exception came between the first task and the end of wait()
  }

  void add(std::shared_ptr<Task> task) {
    tasks_.push_back(task);
    engine_->submit(std::move(task));
  }

  void wait(Lane& lane) override {
    Time done{};
    for (const auto& task : tasks_) {
      engine_->await(*task);
      done = std::max(done, task->ended());
    }
    unpack(packed_, dtype_);
    finished_ = true;
    ended(lane, done);
  }
  void cancel() noexcept override { leave(); }
  void dropped() noexcept override {
    engine_->fail(text() + " was started, but its result was never waited for");
    finished_ = true;
  }

 private:
  std::string text() const { return tasks_.empty() ? "an empty operation" : tasks_.front()->describe(); }
  void leave() noexcept {
    engine_->leave(text() + " was cancelled by an exception");
    finished_ = true;
  }

  std::shared_ptr<Engine> engine_;
  std::vector<Tensor> held_;
  Moves packed_;
  DType dtype_;
  std::vector<std::shared_ptr<Task>> tasks_;
  bool finished_ = false;
};

// Makes pieces of tensors: in place where they are contiguous, else through staging memory.
class Packer {
 public:
  Packer(Staging& staging, Moves& moves, DType dtype)
      : staging_(staging), moves_(moves), element_(bytes_of(dtype)) {}

  std::byte* take(std::size_t bytes) {
    moves_.buffers.push_back(staging_.take(bytes));
    return moves_.buffers.back().get();
  }
  std::size_t bytes(const View& v) const { return static_cast<std::size_t>(v.elems()) * element_; }
  // A copy's place: v's size, rows end to end.
  View beside(const View& v) {
    View copy = v;
    copy.data = take(bytes(v));
    copy.ld = v.columns;
    return copy;
  }
  Piece source(const View& v) {
    if (v.elems() == 0) return {};
    if (v.contiguous()) return {v.data, bytes(v)};
    const View packed = beside(v);
    copy_view(packed, v, element_);
    return {packed.data, bytes(v)};
  }
  Piece target(const View& v) {
    if (v.elems() == 0) return {};
    if (v.contiguous()) return {v.data, bytes(v)};
    const View packed = beside(v);
    moves_.unpack.emplace_back(v, packed.data);
    return {packed.data, bytes(v)};
  }

 private:
  Staging& staging_;
  Moves& moves_;
  std::size_t element_;
};

Piece piece_of(const View& packed, std::size_t bytes) {
  return bytes == 0 ? Piece{} : Piece{packed.data, bytes};
}

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<Engine> engine, std::shared_ptr<const Group> group)
      : engine_(std::move(engine)),
        group_(std::move(group)),
        sent_(group_->ranks.size()),
        received_(group_->ranks.size()) {}

  int rank() const override { return group_->rank; }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name; }
  std::uint64_t bytes_sent() const override { return bytes_; }

  Async<Tensor> all_reduce(Lane& lane, const Tensor& x, ReduceOp op) override;
  Async<Tensor> all_gather_into(Lane& lane, const Tensor& shard, const Tensor& full) override;
  Async<Tensor> reduce_scatter_into(Lane& lane, const Tensor& full, const Tensor& shard) override;
  Async<Tensor> all_to_all_into(Lane& lane, const Tensor& send, const std::vector<std::int64_t>& send_rows,
                                const Tensor& receive,
                                const std::vector<std::int64_t>& receive_rows) override;
  Async<Tensor> broadcast(Lane& lane, const Tensor& x, int root) override;
  Async<std::vector<Tensor>> send_receive(Lane& lane, const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override;
  void barrier(Lane&) override {
    Call call;
    call.kind = Kind::kBarrier;
    run(std::move(call));
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;

 private:
  calls::Who who() const { return {name(), rank(), size(), DeviceKind::kCpu}; }
  Call make(Kind kind, const Tensor& x, std::uint64_t bytes) const {
    Call call;
    call.kind = kind;
    call.dtype = x.dtype();
    call.shape = x.shape();
    call.bytes_sent = bytes;
    return call;
  }
  Moves empty_moves() const {
    Moves moves;
    moves.sends.resize(group_->ranks.size());
    moves.receives.resize(group_->ranks.size());
    return moves;
  }
  bool self(int r) const { return r == rank(); }
  View part(const Tensor& x, int r) const {
    const std::int64_t rows = x.dim(0) / size();
    return View(x.slice(r * rows, rows));
  }
  void trace(const Lane& lane, MpiOperation& operation, const Call& call, const Tensor& result) const {
    operation.started(lane, *this, local::name_of(call.kind),
                      call.bytes_sent > 0 ? call.bytes_sent : result.bytes());
  }
  Async<Tensor> start(const Lane& lane, Call call, Moves moves, const Tensor& result,
                      std::vector<Tensor> held) {
    bytes_ += call.bytes_sent;
    auto operation = std::make_unique<MpiOperation>(engine_, std::move(held));
    trace(lane, *operation, call, result);
    operation->add(std::make_shared<Collective>(group_, next_++, std::move(call), std::move(moves)));
    return Async<Tensor>(result, std::move(operation));
  }
  // A long collective in pieces of `step` of its `elems` elements; make(begin, count) moves one. The pieces
  // carry the whole call, so that calls that differ are named as such. What they are is a matter of sizes
  // alone, which are the same on all ranks: strided memory goes through `packed`.
  template <class Make>
  Async<Tensor> start_pieces(const Lane& lane, Call call, std::int64_t elems, std::int64_t step,
                             const Tensor& result, std::vector<Tensor> held, Moves packed, const Make& make) {
    bytes_ += call.bytes_sent;
    auto operation = std::make_unique<MpiOperation>(engine_, std::move(held), std::move(packed), call.dtype);
    trace(lane, *operation, call, result);
    for (std::int64_t begin = 0; begin < elems; begin += step) {
      const std::int64_t count = std::min(step, elems - begin);
      operation->add(std::make_shared<Collective>(group_, next_++, call,
                                                  [make, begin, count] { return make(begin, count); }));
    }
    return Async<Tensor>(result, std::move(operation));
  }
  static View flat(const View& view, std::int64_t begin, std::int64_t count, DType dtype);
  Moves reduced(const View& x, DType dtype) const;
  Moves scattered(const std::vector<View>& parts, const View& own, DType dtype) const;

  // A collective without tensors, to its end.
  std::shared_ptr<Collective> run(Call call) {
    auto task = std::make_shared<Collective>(group_, next_++, std::move(call), empty_moves());
    engine_->submit(task);
    engine_->await(*task);
    return task;
  }

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<const Group> group_;
  std::uint64_t next_ = 0;                      // collective
  std::vector<std::uint64_t> sent_, received_;  // messages, per peer
  std::uint64_t bytes_ = 0;
};

Async<Tensor> MpiCommunicator::all_reduce(Lane& lane, const Tensor& x, ReduceOp op) {
  Call call = make(Kind::kAllReduce, x, calls::all_reduce(who(), x));
  call.op = op;
  Moves moves = empty_moves();
  Packer packer(engine_->staging(), moves, x.dtype());
  const View view(x);
  const Piece whole = x.bytes() <= kInline ? packer.source(view) : Piece{};
  if (x.bytes() <= kInline) {  // everybody reduces everything
    Reduction reduction{{}, view};
    for (int r = 0; r < size(); ++r) {
      reduction.inputs.push_back(self(r) ? view : packer.beside(view));
      if (self(r)) continue;
      moves.sends[static_cast<std::size_t>(r)] = whole;
      moves.receives[static_cast<std::size_t>(r)] = piece_of(reduction.inputs.back(), x.bytes());
    }
    moves.reduction = std::move(reduction);
    return start(lane, std::move(call), std::move(moves), x, {x});
  }

  const Piece all = packer.source(view);
  if (!view.contiguous()) moves.unpack.emplace_back(view, all.data);
  View packed = view;
  packed.data = all.data;
  packed.rows = 1;
  packed.ld = packed.columns = x.elems();
  if (x.bytes() > kPieceBytes * group_->ranks.size()) {
    // In pieces, each a reduction of its own: the sums are the same, and the memory beside them is bounded.
    const std::int64_t step = static_cast<std::int64_t>(kPieceBytes / bytes_of(x.dtype())) * size();
    return start_pieces(lane, std::move(call), x.elems(), step, x, {x}, std::move(moves),
                        [this, packed, dtype = x.dtype()](std::int64_t begin, std::int64_t count) {
                          return reduced(flat(packed, begin, count, dtype), dtype);
                        });
  }
  Moves reduction = reduced(packed, x.dtype());
  for (Staging::Buffer& buffer : moves.buffers) reduction.buffers.push_back(std::move(buffer));
  reduction.unpack = std::move(moves.unpack);
  return start(lane, std::move(call), std::move(reduction), x, {x});
}

// Elements [begin, begin + count) of contiguous memory, in one row.
View MpiCommunicator::flat(const View& view, std::int64_t begin, std::int64_t count, DType dtype) {
  View v;
  v.data = view.data + static_cast<std::size_t>(begin) * bytes_of(dtype);
  v.rows = 1;
  v.ld = v.columns = count;
  return v;
}

// The all-reduce of contiguous memory: slices to their owners, and the sums back.
Moves MpiCommunicator::reduced(const View& x, DType dtype) const {
  Moves moves = empty_moves();
  Packer packer(engine_->staging(), moves, dtype);
  const std::int64_t elems = x.columns;
  const auto begin = [&](int r) { return elems / size() * r + std::min<std::int64_t>(r, elems % size()); };
  const auto slice = [&](int r) { return flat(x, begin(r), begin(r + 1) - begin(r), dtype); };
  const View mine = slice(rank());
  Reduction reduction{{}, mine};
  for (int r = 0; r < size(); ++r) {
    const View theirs = slice(r);
    moves.results.push_back({theirs.data, packer.bytes(theirs)});
    reduction.inputs.push_back(self(r) ? mine : packer.beside(mine));
    if (self(r)) continue;
    moves.sends[static_cast<std::size_t>(r)] = moves.results.back();
    moves.receives[static_cast<std::size_t>(r)] = {reduction.inputs.back().data, packer.bytes(mine)};
  }
  moves.reduction = std::move(reduction);
  return moves;
}

Async<Tensor> MpiCommunicator::all_gather_into(Lane& lane, const Tensor& shard, const Tensor& full) {
  Call call = make(Kind::kAllGather, shard, calls::all_gather(who(), shard, full));
  Moves moves = empty_moves();
  Packer packer(engine_->staging(), moves, shard.dtype());
  const Piece own = packer.source(View(shard));
  for (int r = 0; r < size(); ++r) {
    const View to = part(full, r);
    if (self(r)) {
      copy_view(to, View(shard), bytes_of(shard.dtype()));
      continue;
    }
    moves.sends[static_cast<std::size_t>(r)] = own;
    moves.receives[static_cast<std::size_t>(r)] = packer.target(to);
  }
  return start(lane, std::move(call), std::move(moves), full, {shard, full});
}

Async<Tensor> MpiCommunicator::reduce_scatter_into(Lane& lane, const Tensor& full, const Tensor& shard) {
  Call call = make(Kind::kReduceScatter, shard, calls::reduce_scatter(who(), full, shard));
  std::vector<View> parts;
  for (int r = 0; r < size(); ++r) parts.push_back(part(full, r));
  const View own(shard);
  const DType dtype = full.dtype();
  if (shard.bytes() > kPieceBytes) {
    Moves packed = empty_moves();
    Packer packer(engine_->staging(), packed, dtype);
    const auto step = static_cast<std::int64_t>(kPieceBytes / bytes_of(dtype));
    for (View& p : parts) p.data = packer.source(p).data;
    View sum = own;
    sum.data = packer.target(own).data;
    return start_pieces(lane, std::move(call), shard.elems(), step, shard, {full, shard}, std::move(packed),
                        [this, parts, sum, dtype](std::int64_t begin, std::int64_t count) {
                          std::vector<View> some;
                          for (const View& p : parts) some.push_back(flat(p, begin, count, dtype));
                          return scattered(some, flat(sum, begin, count, dtype), dtype);
                        });
  }
  return start(lane, std::move(call), scattered(parts, own, dtype), shard, {full, shard});
}

// Each rank's part to its owner, who sums what it has been sent.
Moves MpiCommunicator::scattered(const std::vector<View>& parts, const View& own, DType dtype) const {
  Moves moves = empty_moves();
  Packer packer(engine_->staging(), moves, dtype);
  Reduction reduction{{}, own};
  for (int r = 0; r < size(); ++r) {
    const View& theirs = parts[static_cast<std::size_t>(r)];
    reduction.inputs.push_back(self(r) ? theirs : packer.beside(own));
    if (self(r)) continue;
    moves.sends[static_cast<std::size_t>(r)] = packer.source(theirs);
    moves.receives[static_cast<std::size_t>(r)] = piece_of(reduction.inputs.back(), packer.bytes(own));
  }
  moves.reduction = std::move(reduction);
  return moves;
}

Async<Tensor> MpiCommunicator::all_to_all_into(Lane& lane, const Tensor& send,
                                               const std::vector<std::int64_t>& send_rows,
                                               const Tensor& receive,
                                               const std::vector<std::int64_t>& receive_rows) {
  Call call = make(Kind::kAllToAll, send, calls::all_to_all(who(), send, send_rows, receive, receive_rows));
  call.shape.set(0, 1);
  call.send_rows = send_rows;
  call.receive_rows = receive_rows;
  const std::int64_t kept = send_rows[static_cast<std::size_t>(rank())];
  WEFT_CHECK(kept == receive_rows[static_cast<std::size_t>(rank())],
             "group '{}': all_to_all sends {} rows to itself and receives {}", name(), kept,
             receive_rows[static_cast<std::size_t>(rank())]);
  Moves moves = empty_moves();
  Packer packer(engine_->staging(), moves, send.dtype());
  std::int64_t from = 0, to = 0;
  for (std::size_t r = 0; r < send_rows.size(); ++r) {
    const View source(send.slice(from, send_rows[r])), target(receive.slice(to, receive_rows[r]));
    if (self(static_cast<int>(r))) {
      copy_view(target, source, bytes_of(send.dtype()));
    } else {
      moves.sends[r] = packer.source(source);
      moves.receives[r] = packer.target(target);
    }
    from += send_rows[r];
    to += receive_rows[r];
  }
  return start(lane, std::move(call), std::move(moves), receive, {send, receive});
}

Async<Tensor> MpiCommunicator::broadcast(Lane& lane, const Tensor& x, int root) {
  Call call = make(Kind::kBroadcast, x, calls::broadcast(who(), x, root));
  call.root = root;
  Moves moves = empty_moves();
  Packer packer(engine_->staging(), moves, x.dtype());
  if (self(root)) {
    const Piece whole = packer.source(View(x));
    for (int r = 0; r < size(); ++r) {
      if (!self(r)) moves.sends[static_cast<std::size_t>(r)] = whole;
    }
  } else {
    moves.receives[static_cast<std::size_t>(root)] = packer.target(View(x));
  }
  return start(lane, std::move(call), std::move(moves), x, {x});
}

Async<std::vector<Tensor>> MpiCommunicator::send_receive(Lane& lane, const std::vector<Message>& sends,
                                                         const std::vector<Message>& receives) {
  bytes_ += calls::send_receive(who(), sends, receives);
  auto operation = std::make_unique<MpiOperation>(engine_, calls::tensors_of(sends, receives));
  operation->started(lane, *this, calls::name_of(sends, receives), calls::bytes_of(sends, receives));
  const auto add = [&](Kind kind, const Message& m, std::uint64_t sequence) {
    Call call = make(kind, m.tensor, 0);
    const View view(m.tensor);
    call.out = {view};
    Piece piece = piece_of(view, m.tensor.bytes());
    Staging::Buffer packed;
    if (!view.contiguous() && piece.bytes > 0) {
      packed = engine_->staging().take(piece.bytes);
      piece.data = packed.get();
      View copy = view;
      copy.data = packed.get();
      copy.ld = view.columns;
      if (kind == Kind::kSend) copy_view(copy, view, bytes_of(m.tensor.dtype()));
    }
    operation->add(
        std::make_shared<MessageTask>(group_, sequence, m.peer, std::move(call), piece, std::move(packed)));
  };
  for (const Message& m : sends) add(Kind::kSend, m, sent_[static_cast<std::size_t>(m.peer)]++);
  for (const Message& m : receives) add(Kind::kReceive, m, received_[static_cast<std::size_t>(m.peer)]++);
  return Async<std::vector<Tensor>>(calls::tensors_of(receives), std::move(operation));
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key, const std::string& name) {
  WEFT_CHECK(name.size() <= kLongestName, "group name '{}' has more than {} bytes", name, kLongestName);
  Call call;
  call.kind = Kind::kSplit;
  call.color = color;
  call.key = key;
  call.split_name = name;
  const std::shared_ptr<Collective> task = run(std::move(call));
  if (color < 0) return nullptr;
  if (task->new_group() == nullptr) return self_communicator(name);
  return mpi_communicator(engine_, task->new_group());
}

}  // namespace

std::unique_ptr<Communicator> mpi_communicator(std::shared_ptr<Engine> engine,
                                               std::shared_ptr<const Group> group) {
  return std::make_unique<MpiCommunicator>(std::move(engine), std::move(group));
}

}  // namespace weft::mpi
