#include "runtime/communication/socket_communicator.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/names.h"
#include "runtime/kernels/accumulate.h"

namespace rehearse::runtime {
namespace {

// Size of the landing buffer: received bytes are summed while in the second-level cache.
constexpr std::size_t landing_bytes = 256 << 10;
// Bytes that one system call may move before the other direction has its turn.
constexpr std::size_t turn_bytes = 1 << 20;

}  // namespace

/// A transfer in progress.
struct SocketCommunicator::Active {
  int peer = 0;
  bool receive = false, add = false;
  program::DType dtype = program::DType::u8;
  std::byte* data = nullptr;
  std::size_t bytes = 0, done = 0;  // of the payload
  std::size_t header_done = 0;
  std::size_t landed = 0;  // bytes in the landing buffer of an incomplete element
  Connection* line = nullptr;
  TransferHeader header = {};

  bool complete() const { return header_done == sizeof header && done == bytes; }
};

SocketCommunicator::SocketCommunicator(Switchboard& switchboard, const Control& control,
                                       std::string channel, std::vector<Id> ranks, int member,
                                       std::vector<Id> node_of, Seconds patience)
    : Communicator(std::move(channel), std::move(ranks), member),
      switchboard_(switchboard),
      control_(control),
      key_(Switchboard::key_of(this->channel(), this->ranks())),
      node_of_(std::move(node_of)),
      patience_(patience),
      out_(this->ranks().size()),
      in_(this->ranks().size()) {}

SocketCommunicator::~SocketCommunicator() = default;

SocketCommunicator::Connection& SocketCommunicator::line(bool receive, int peer) {
  const auto index = static_cast<std::size_t>(peer);
  Connection& line = receive ? in_[index] : out_[index];
  if (!line.stream) {
    const Id rank = ranks()[index];
    line.stream = receive ? switchboard_.await(key_, channel(), rank)
                          : switchboard_.connect(key_, channel(), rank);
  }
  return line;
}

std::string SocketCommunicator::place(const Active& active, const CollectiveSpec* spec) const {
  const std::string where =
      spec == nullptr ? "" : fmt::format(" of {} {}", spec->elements, name_of(spec->move));
  return fmt::format("({} of {} bytes, transfer {}{})", active.done, active.bytes,
                     active.line->sequence, where);
}

void SocketCommunicator::throw_broken(const Active& active, const std::string& what,
                                      const CollectiveSpec* spec) const {
  const Id rank = ranks()[static_cast<std::size_t>(active.peer)];
  control_.blame(
      fmt::format("channel {}: {} rank {} {}", channel(), what, rank, place(active, spec)), rank);
}

void SocketCommunicator::refuse(Active& active, const std::string& what,
                                const CollectiveSpec* spec) const {
  active.line->stream = ByteStream();
  control_.refuse(ranks()[static_cast<std::size_t>(active.peer)],
                  fmt::format("channel {}: {} {}", channel(), what, place(active, spec)));
}

ssize_t SocketCommunicator::move(Active& active, std::span<iovec> parts,
                                 const CollectiveSpec* spec) const {
  if (!active.receive) return active.line->stream.send(parts);
  try {
    return active.line->stream.receive(parts);
  } catch (const BackendError& error) {
    refuse(active, error.what(), spec);
  }
}

/// Sends or receives as much as the kernel allows now. Returns true when bytes moved.
bool SocketCommunicator::advance(Active& active, const CollectiveSpec* spec) {
  std::array<iovec, 2> parts = {};
  std::size_t count = 0;
  TransferHeader* header = &active.header;
  if (active.header_done < sizeof *header) {
    parts[count++] = {reinterpret_cast<std::byte*>(header) + active.header_done,
                      sizeof *header - active.header_done};
  }
  const std::size_t left = active.bytes - active.done - active.landed;
  const bool landing = active.receive && active.add;
  const std::size_t room = landing ? landing_.size() - active.landed : turn_bytes;
  if (left > 0) {
    parts[count++] = {landing ? landing_.data() + active.landed : active.data + active.done,
                      std::min(left, room)};
  }
  const ssize_t moved = move(active, std::span(parts).first(count), spec);
  if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (moved <= 0) {
    throw_broken(active, moved == 0 ? "connection closed by" : "connection broken to", spec);
  }
  auto n = static_cast<std::size_t>(moved);
  if (active.header_done < sizeof *header) {
    const std::size_t of_header = std::min(n, sizeof *header - active.header_done);
    active.header_done += of_header;
    n -= of_header;
    if (active.receive && active.header_done == sizeof *header &&
        *header != TransferHeader{.sequence = active.line->sequence, .bytes = active.bytes}) {
      refuse(active,
             fmt::format("{} bytes as transfer {} came, others were due", header->bytes,
                         header->sequence),
             spec);
    }
  }
  if (landing) {
    const std::size_t there = active.landed + n;
    const auto size = static_cast<std::size_t>(size_of(active.dtype));
    const std::size_t whole = there / size * size;
    accumulate(active.data + active.done, landing_.data(), static_cast<std::int64_t>(whole / size),
               active.dtype);
    active.done += whole;
    active.landed = there - whole;
    std::memmove(landing_.data(), landing_.data() + whole, active.landed);
  } else {
    active.done += n;
  }
  return true;
}

void SocketCommunicator::wait_for_any(std::span<const Active> active, Deadline since,
                                      const CollectiveSpec* spec) {
  constexpr std::size_t most = 64;
  std::array<pollfd, most> wait = {};
  wait[0] = {control_.failure_fd(), POLLIN, 0};
  std::size_t count = 1;
  const Active* first = nullptr;
  for (const Active& a : active) {
    if (a.complete() || count == most) continue;
    if (first == nullptr) first = &a;
    wait[count++] = {a.line->stream.fd(), static_cast<short>(a.receive ? POLLIN : POLLOUT), 0};
  }
  // Transfers beyond `most` are not polled; look at them again after 1 ms.
  const bool all = active.size() < most;
  const Deadline until = since + to_duration(patience_);
  const int ready = poll(wait.data(), count, milliseconds_until(until, all ? 1'000'000 : 1));
  if (wait[0].revents != 0) control_.check();
  if (ready == 0 && Clock::now() >= until) {
    throw_broken(
        *first,
        fmt::format("no byte moved for {} {}", to_text(patience_), first->receive ? "from" : "to"),
        spec);
  }
}

void SocketCommunicator::move_all(std::span<Active> active, const CollectiveSpec* spec) {
  for (Active& a : active) {
    a.line = &line(a.receive, a.peer);
    if (!a.receive) a.header.bytes = a.bytes;
  }
  auto moved_at = Clock::now();
  for (;;) {
    bool moved = false;
    bool complete = true;
    for (std::size_t i = 0; i < active.size(); ++i) {
      Active& a = active[i];
      if (a.complete()) continue;
      complete = false;
      // A transfer waits for an earlier one on the same connection, and a sum for an earlier one
      // into the same place, because the order of float additions matters. The landing buffer
      // serves one transfer at a time.
      const auto goes_first = [&](const Active& b) {
        const bool same_sum = a.receive && a.add && b.receive && b.add &&
                              b.data < a.data + a.bytes && a.data < b.data + b.bytes;
        return (b.line == a.line || same_sum) && !b.complete();
      };
      const auto has_landed = [&](const Active& b) { return &b != &a && b.landed > 0; };
      if (std::ranges::any_of(active.first(i), goes_first)) continue;
      if (a.receive && a.add && std::ranges::any_of(active, has_landed)) continue;
      if (!a.receive && a.header_done == 0) a.header.sequence = a.line->sequence;
      if (!advance(a, spec)) continue;
      moved = true;
      if (a.complete()) {
        ++a.line->sequence;
        (a.receive ? received_ : sent_)
            .fetch_add(static_cast<std::int64_t>(a.bytes), std::memory_order_relaxed);
      }
    }
    if (complete) return;
    if (moved) {
      moved_at = Clock::now();
    } else {
      wait_for_any(active, moved_at, spec);
    }
  }
}

SocketCommunicator::Prepared SocketCommunicator::flatten(const collectives::Schedule& schedule,
                                                         const CollectiveSpec& spec) const {
  Prepared prepared;
  prepared.spec = spec;
  std::vector<collectives::Transfer> transfers;
  for (int r = 0; r < schedule.rounds(); ++r) {
    transfers.clear();
    schedule.round(r, member(), transfers);
    const std::size_t before = prepared.pieces.size();
    for (const collectives::Transfer& t : transfers) {
      if (t.begin == t.end || (t.from != member() && t.to != member())) continue;
      const bool receive = t.to == member();
      const std::int64_t begin = receive ? t.begin + t.shift : t.begin;
      prepared.pieces.push_back({receive ? t.from : t.to, receive, t.add,
                                 begin * size_of(spec.dtype),
                                 (begin + t.end - t.begin) * size_of(spec.dtype)});
    }
    if (prepared.pieces.size() > before) prepared.rounds.push_back(prepared.pieces.size());
  }
  return prepared;
}

int SocketCommunicator::prepare(const CollectiveSpec& spec) {
  const auto same = [&](const Prepared& p) { return p.spec == spec; };
  const auto known = std::ranges::find_if(prepared_, same);
  if (known != prepared_.end()) return static_cast<int>(known - prepared_.begin());
  program::Algorithm algorithm = spec.algorithm;
  if (algorithm == program::Algorithm::automatic) {
    algorithm = collectives::choose(spec.move, spec.elements * size_of(spec.dtype), node_of_);
  }
  const auto plan = collectives::schedule(spec.move, algorithm, spec.elements, node_of_, spec.root);
  prepared_.push_back(flatten(*plan, spec));
  const Prepared& p = prepared_.back();
  std::size_t begin = 0;
  for (const std::size_t end : p.rounds) active_.reserve(end - std::exchange(begin, end));
  if (std::ranges::any_of(p.pieces, [](const Piece& x) { return x.receive && x.add; })) {
    landing_.resize(landing_bytes);
  }
  const bool separate =
      spec.move == program::Move::reduce_scatter || spec.move == program::Move::reduce;
  if (separate && !spec.consume && size() > 1) {
    const auto need = static_cast<std::size_t>(spec.elements * size_of(spec.dtype));
    scratch_.resize(std::max(scratch_.size(), need));
  }
  return static_cast<int>(prepared_.size()) - 1;
}

void SocketCommunicator::play(const Prepared& prepared, std::byte* source, std::byte* target) {
  std::size_t at = 0;
  for (const std::size_t end : prepared.rounds) {
    active_.clear();
    for (; at < end; ++at) {
      const Piece& p = prepared.pieces[at];
      Active a;
      a.peer = p.peer;
      a.receive = p.receive;
      a.add = p.add;
      a.dtype = prepared.spec.dtype;
      a.data = (p.receive ? target : source) + p.begin;
      a.bytes = static_cast<std::size_t>(p.end - p.begin);
      active_.push_back(a);
    }
    move_all(active_, &prepared.spec);
  }
}

void SocketCommunicator::play(const collectives::Schedule& schedule, Buffer whole) {
  landing_.resize(landing_bytes);
  auto* const data = static_cast<std::byte*>(whole.data);
  play(flatten(schedule, {.dtype = whole.dtype, .elements = whole.elements}), data, data);
}

std::byte* SocketCommunicator::own_part(const CollectiveSpec& spec, std::byte* whole) const {
  return whole + member() * spec.elements / size() * size_of(spec.dtype);
}

std::int64_t SocketCommunicator::own_bytes(const CollectiveSpec& spec) const {
  const std::int64_t begin = member() * spec.elements / size();
  const std::int64_t end = (member() + 1) * spec.elements / size();
  return (end - begin) * size_of(spec.dtype);
}

void SocketCommunicator::run(int handle, void* source, void* target) {
  const Prepared& prepared = prepared_[static_cast<std::size_t>(handle)];
  const CollectiveSpec& spec = prepared.spec;
  const auto bytes = static_cast<std::size_t>(spec.elements * size_of(spec.dtype));
  const auto part = static_cast<std::size_t>(own_bytes(spec));
  auto* from = static_cast<std::byte*>(source);
  auto* to = static_cast<std::byte*>(target);
  const auto copy = [](std::byte* into, const std::byte* out_of, std::size_t n) {
    if (into != out_of && n > 0) std::memcpy(into, out_of, n);
  };
  switch (spec.move) {
    case program::Move::all_reduce:
      copy(to, from, bytes);
      play(prepared, to, to);
      return;
    case program::Move::broadcast:
      if (member() == spec.root) copy(to, from, bytes);
      play(prepared, to, to);
      return;
    case program::Move::all_gather:
      copy(own_part(spec, to), from, part);
      play(prepared, to, to);
      return;
    case program::Move::all_to_all:
      copy(own_part(spec, to), own_part(spec, from), part);
      play(prepared, from, to);
      return;
    case program::Move::rotate:
      if (size() == 1) copy(to, from, bytes);
      play(prepared, from, to);
      return;
    case program::Move::gather:
      if (member() == spec.root && to != from) copy(own_part(spec, to), from, part);
      play(prepared, from, to);
      return;
    case program::Move::scatter:
      if (member() == spec.root && to != from) copy(to, own_part(spec, from), part);
      play(prepared, from, to);
      return;
    case program::Move::reduce_scatter: {
      const bool in_place = to == own_part(spec, from);
      std::byte* work = in_place || spec.consume || size() == 1 ? from : scratch_.data();
      copy(work, from, bytes);
      play(prepared, work, work);
      copy(to, own_part(spec, work), part);
      return;
    }
    case program::Move::reduce: {
      const bool root = member() == spec.root;
      std::byte* work = root ? to : to == from || spec.consume ? from : scratch_.data();
      copy(work, from, bytes);
      play(prepared, work, work);
      return;
    }
  }
}

void SocketCommunicator::send(Buffer buffer, int to) {
  std::array<Active, 1> one = {};
  one[0].peer = to;
  one[0].data = static_cast<std::byte*>(buffer.data);
  one[0].bytes = static_cast<std::size_t>(buffer.bytes());
  move_all(one, nullptr);
}

void SocketCommunicator::recv(Buffer buffer, int from) {
  std::array<Active, 1> one = {};
  one[0].peer = from;
  one[0].receive = true;
  one[0].data = static_cast<std::byte*>(buffer.data);
  one[0].bytes = static_cast<std::size_t>(buffer.bytes());
  move_all(one, nullptr);
}

void SocketCommunicator::exchange(Buffer out, int to, Buffer in, int from) {
  std::array<Active, 2> both = {};
  both[0].peer = to;
  both[0].data = static_cast<std::byte*>(out.data);
  both[0].bytes = static_cast<std::size_t>(out.bytes());
  both[1].peer = from;
  both[1].receive = true;
  both[1].data = static_cast<std::byte*>(in.data);
  both[1].bytes = static_cast<std::size_t>(in.bytes());
  move_all(both, nullptr);
}

void SocketCommunicator::barrier() {
  for (int distance = 1; distance < size(); distance *= 2) {
    active_.assign(2, {});
    active_[0].peer = (member() + distance) % size();
    active_[1].peer = (member() - distance + size()) % size();
    active_[1].receive = true;
    move_all(active_, nullptr);
  }
}

Traffic SocketCommunicator::traffic() const { return {sent_.load(), received_.load()}; }

std::int64_t SocketCommunicator::scratch_bytes() const {
  return static_cast<std::int64_t>(landing_.size() + scratch_.size());
}

}  // namespace rehearse::runtime
