#include "engine/migration/migration_traffic.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace rehearse::migration {
namespace {

// Intervals of at least so many bytes are sent directly from storage to storage, without a packet.
constexpr std::int64_t least_without_packet = 1 << 20;

class Dispatcher {
 public:
  Dispatcher(PieceMoves moves, Id ranks, std::int64_t most) : ranks_(ranks), most_(most) {
    out_.moves = std::move(moves);
  }

  MigrationTraffic run() {
    tidy();
    make_messages();
    make_unpacks();
    return std::move(out_);
  }

 private:
  static bool without_packet(const PieceCopy& c) {
    return c.rows == 1 && c.assembly < 0 && c.item < 0 && c.source_type == c.target_type &&
           c.run * size_of(c.source_type) >= least_without_packet;
  }

  /// Whether b follows directly on a in both storages.
  static bool joins(const PieceCopy& a, const PieceCopy& b) {
    return a.assembly < 0 && a.item < 0 && b.item < 0 && a.rows == 1 && b.rows == 1 &&
           std::tuple(a.to, a.from, a.target, a.source) ==
               std::tuple(b.to, b.from, b.target, b.source) &&
           a.target_begin + a.run == b.target_begin && a.source_begin + a.run == b.source_begin;
  }

  /// Joins pieces that are neighbours in both storages. Splits pieces that need a packet and are
  /// larger than one.
  void tidy() {
    std::vector<PieceCopy> all = std::move(out_.moves.copies), out;
    std::vector<std::size_t> plain, place(all.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].assembly >= 0)
        place[i] = out.size(), out.push_back(all[i]);
      else
        plain.push_back(i);
    for (RowAssembly& assembly : out_.moves.assemblies)
      for (std::size_t& piece : assembly.pieces) piece = place[piece];
    const auto key = [&](std::size_t i) {
      const PieceCopy& c = all[i];
      return std::tuple(c.to, c.from, c.target, c.turn, c.source, c.target_begin);
    };
    std::sort(plain.begin(), plain.end(),
              [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
    std::vector<PieceCopy> joined;
    for (const std::size_t i : plain)
      if (!joined.empty() && joins(joined.back(), all[i]))
        joined.back().run += all[i].run;
      else
        joined.push_back(all[i]);
    for (const PieceCopy& c : joined) split(c, out);
    out_.moves.copies = std::move(out);
  }

  void split(PieceCopy c, std::vector<PieceCopy>& out) const {
    const std::int64_t most = most_;
    if (c.from == c.to || without_packet(c) || c.elements() <= most) {
      out.push_back(c);
      return;
    }
    const std::int64_t all = c.rows > 1 ? c.rows : c.run;
    const std::int64_t step = c.rows > 1 ? std::max<std::int64_t>(1, most / c.run) : most;
    for (std::int64_t at = 0; at < all; at += step) {
      PieceCopy part = c;
      (c.rows > 1 ? part.rows : part.run) = std::min(step, all - at);
      part.source_begin += c.rows > 1 ? at * c.source_pitch : at;
      part.target_begin += c.rows > 1 ? at * c.run : at;
      out.push_back(part);
    }
  }

  /// One open packet for each (from, to, data type); a full packet is closed and becomes a message.
  void make_messages() {
    std::map<std::pair<Id, Id>, int> ordinals;
    std::map<std::tuple<Id, Id, program::DType>, MigrationMessage> open;
    const auto close = [&](MigrationMessage& m) {
      m.ordinal = ordinals[{m.from, m.to}]++;
      out_.sent_bytes += m.elements * size_of(m.wire);
      out_.messages.push_back(std::move(m));
      m = {};
    };
    for (std::size_t i = 0; i < out_.moves.copies.size(); ++i) {
      const PieceCopy& c = out_.moves.copies[i];
      const MigrationMessage one{.from = c.from,
                                 .to = c.to,
                                 .wire = c.wire(),
                                 .elements = c.elements(),
                                 .without_packet = without_packet(c),
                                 .pieces = {i}};
      if (c.from == c.to) {
        out_.kept_bytes += c.elements() * size_of(c.target_type);
      } else if (one.without_packet) {
        MigrationMessage alone = one;
        close(alone);
      } else if (MigrationMessage& m = open[{c.from, c.to, one.wire}]; m.pieces.empty()) {
        m = one;
      } else {
        if (m.elements + c.elements() > most_) close(m), m = one, m.elements = 0, m.pieces.clear();
        m.elements += c.elements();
        m.pieces.push_back(i);
      }
    }
    for (auto& [key, m] : open)
      if (!m.pieces.empty()) close(m);
    // The common order (see the header).
    const Id n = ranks_;
    const auto key = [&](const MigrationMessage& m) {
      return std::tuple(m.ordinal, (m.to + n - m.from) % n, m.from);
    };
    std::sort(
        out_.messages.begin(), out_.messages.end(),
        [&](const MigrationMessage& a, const MigrationMessage& b) { return key(a) < key(b); });
    out_.turn_of.assign(out_.moves.copies.size(), -1);
    out_.offset_of.assign(out_.moves.copies.size(), 0);
    out_.of_rank.resize(n);
    for (std::size_t turn = 0; turn < out_.messages.size(); ++turn) {
      std::int64_t offset = 0;
      for (const std::size_t i : out_.messages[turn].pieces) {
        out_.turn_of[i] = static_cast<int>(turn);
        out_.offset_of[i] = offset;
        offset += out_.moves.copies[i].elements();
      }
      out_.of_rank[out_.messages[turn].from].push_back(turn);
      out_.of_rank[out_.messages[turn].to].push_back(turn);
    }
  }

  /// The casts of each rank, and the message that each of them waits for.
  void make_unpacks() {
    out_.unpacks.resize(ranks_);
    struct Ordered {
      Id rank;
      Unpack op;
    };
    std::map<std::pair<int, int>, std::vector<Ordered>> added;  // by item and turn
    const auto keep = [&](Id rank, int item, const Unpack& op) {
      if (item < 0)
        out_.unpacks[rank].push_back(op);
      else
        added[{item, op.order}].push_back({rank, op});
    };
    for (std::size_t i = 0; i < out_.moves.copies.size(); ++i) {
      const PieceCopy& c = out_.moves.copies[i];
      if (c.assembly < 0 && (c.from == c.to || !without_packet(c)))
        keep(c.to, c.item, {.turn = out_.turn_of[i], .order = c.turn, .piece = i});
    }
    for (std::size_t w = 0; w < out_.moves.assemblies.size(); ++w) {
      const RowAssembly& assembly = out_.moves.assemblies[w];
      Unpack op{.order = assembly.turn, .assembly = static_cast<int>(w)};
      for (const std::size_t i : assembly.pieces) op.turn = std::max(op.turn, out_.turn_of[i]);
      keep(assembly.to, assembly.item, op);
    }
    // A cast that adds to a residual waits for the messages of all earlier turns of this residual.
    int item = -1, latest_so_far = -1;
    for (auto& [key, ops] : added) {
      if (key.first != item) item = key.first, latest_so_far = -1;
      int latest = latest_so_far;
      for (Ordered& one : ops) {
        one.op.turn = std::max(one.op.turn, latest_so_far);
        latest = std::max(latest, one.op.turn);
        out_.unpacks[one.rank].push_back(one.op);
      }
      latest_so_far = latest;
    }
    for (std::vector<Unpack>& ops : out_.unpacks)
      std::stable_sort(ops.begin(), ops.end(), [](const Unpack& a, const Unpack& b) {
        return std::tuple(a.turn, a.order) < std::tuple(b.turn, b.order);
      });
  }

  Id ranks_;
  std::int64_t most_;
  MigrationTraffic out_ = {};
};

}  // namespace

MigrationTraffic traffic_of(PieceMoves moves, Id ranks, std::int64_t most) {
  return Dispatcher(std::move(moves), ranks, most).run();
}

}  // namespace rehearse::migration
