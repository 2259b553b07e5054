// Every move by every algorithm in real processes: values, bytes by our counters and by the
// kernel's, in place and not, odd counts, every dtype on the wire.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <stdexcept>

#include "engine/base/errors.h"
#include "engine/base/heartbeat.h"
#include "engine/collectives/schedule.h"
#include "runtime/communication/network.h"
#include "tests/runtime/comm_ranks.h"
#include "tests/runtime/kernel_bytes.h"

namespace rehearse::runtime {
namespace {

void require(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error("wrong: " + what);
}

/// Small whole numbers: exact in every dtype, and different at every rank and element.
double value(int rank, std::int64_t i) {
  return static_cast<double>((i * 7 + rank * 3) % 11 + rank);
}
double total(int n, std::int64_t i) {
  double sum = 0;
  for (int r = 0; r < n; ++r) sum += value(r, i);
  return sum;
}

std::vector<std::byte> encode(const std::vector<double>& values, program::DType dtype) {
  std::vector<std::byte> out(values.size() * static_cast<std::size_t>(size_of(dtype)));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto f = static_cast<float>(values[i]);
    switch (dtype) {
      case program::DType::f32:
        std::memcpy(&out[4 * i], &f, 4);
        break;
      case program::DType::i32: {
        const auto whole = static_cast<std::int32_t>(f);
        std::memcpy(&out[4 * i], &whole, 4);
        break;
      }
      case program::DType::u8:
        out[i] = static_cast<std::byte>(f);
        break;
      case program::DType::bf16: {  // a small whole number has only high bits
        std::uint32_t bits = 0;
        std::memcpy(&bits, &f, 4);
        const auto high = static_cast<std::uint16_t>(bits >> 16);
        std::memcpy(&out[2 * i], &high, 2);
        break;
      }
      case program::DType::f16: {
        std::uint32_t bits = 0;
        std::memcpy(&bits, &f, 4);
        const std::uint32_t exponent = ((bits >> 23) & 0xff) - 112;
        const auto half =
            static_cast<std::uint16_t>(f == 0 ? 0 : exponent << 10 | (bits & 0x7fffff) >> 13);
        std::memcpy(&out[2 * i], &half, 2);
        break;
      }
    }
  }
  return out;
}

struct Case {
  CollectiveSpec spec = {};
  bool in_place = false;
};

std::string name_of(const Case& c) {
  return "move " + std::to_string(static_cast<int>(c.spec.move)) + " algorithm " +
         std::to_string(static_cast<int>(c.spec.algorithm)) + " dtype " +
         std::to_string(static_cast<int>(c.spec.dtype)) + " elements " +
         std::to_string(c.spec.elements) + " root " + std::to_string(c.spec.root) +
         (c.in_place       ? " in place"
          : c.spec.consume ? " consuming"
                           : "");
}

void check(Communicator& group, const Case& c) {
  const CollectiveSpec& spec = c.spec;
  const int n = group.size();
  const int me = group.member();
  const std::int64_t begin = me * spec.elements / n;
  const std::int64_t end = (me + 1) * spec.elements / n;
  std::vector<double> mine;
  std::vector<double> sum;
  std::vector<double> gathered;
  std::vector<double> of_root, of_neighbour;
  for (std::int64_t i = 0; i < spec.elements; ++i) {
    mine.push_back(value(me, i));
    sum.push_back(total(n, i));
    of_root.push_back(value(spec.root, i));
    of_neighbour.push_back(value((me + n - spec.root % n) % n, i));
  }
  for (int r = 0; r < n; ++r) {
    for (std::int64_t i = r * spec.elements / n; i < (r + 1) * spec.elements / n; ++i) {
      gathered.push_back(value(r, i));
    }
  }
  // Whether the source, and whether the target, is this member's part alone.
  const bool root = me == spec.root;
  const bool gather = spec.move == program::Move::all_gather || spec.move == program::Move::gather;
  const bool scatter =
      spec.move == program::Move::reduce_scatter || spec.move == program::Move::scatter;
  std::vector<double> exchanged;  // own part of every member's tensor, in their order
  for (int r = 0; r < n; ++r)
    for (std::int64_t i = begin; i < end; ++i) exchanged.push_back(value(r, i));
  const auto part_of = [&](const std::vector<double>& v) {
    return std::vector<double>(v.begin() + begin, v.begin() + end);
  };
  const auto size = static_cast<std::size_t>(size_of(spec.dtype));
  const auto own_begin = static_cast<std::size_t>(begin) * size;
  const std::vector<std::byte> original = encode(mine, spec.dtype);
  std::vector<std::byte> whole = original;
  std::vector<std::byte> part = encode(part_of(mine), spec.dtype);
  part.reserve(1);
  std::vector<std::byte> target(whole.size() + 1, std::byte{0x5a});
  std::byte* source = gather && !c.in_place ? part.data() : whole.data();
  if (gather && c.in_place) source = whole.data() + own_begin;
  std::byte* result = !c.in_place ? target.data()
                      : scatter   ? whole.data() + own_begin
                                  : whole.data();
  const int handle = group.prepare(spec);
  require(handle == group.prepare(spec), "the same spec gives another handle");
  const Traffic before = group.traffic();
  group.run(handle, source, result);
  const Traffic after = group.traffic();
  const auto holds = [&](const std::vector<double>& want) {
    const auto bytes = encode(want, spec.dtype);
    return bytes.empty() || std::memcmp(result, bytes.data(), bytes.size()) == 0;
  };
  switch (spec.move) {
    case program::Move::all_reduce:
      require(holds(sum), name_of(c));
      break;
    case program::Move::reduce_scatter:
      require(holds(part_of(sum)), name_of(c));
      break;
    case program::Move::all_gather:
      require(holds(gathered), name_of(c));
      break;
    case program::Move::all_to_all:
      require(holds(exchanged), name_of(c));
      break;
    case program::Move::rotate:
      require(holds(of_neighbour), name_of(c));
      break;
    case program::Move::broadcast:
      require(holds(of_root), name_of(c));
      break;
    case program::Move::reduce:
      require(!root || holds(sum), name_of(c));
      break;
    case program::Move::gather:
      require(!root || holds(gathered), name_of(c));
      break;
    case program::Move::scatter:
      require(holds(part_of(of_root)), name_of(c));
      break;
  }
  if (!c.in_place && !spec.consume && !gather) {
    require(whole == original, name_of(c) + ": the source was overwritten");
  }
  if (spec.algorithm == program::Algorithm::automatic || n == 1) return;
  const std::vector<Id> nodes = {0, 0, 1, 1};
  const auto plan =
      collectives::schedule(spec.move, spec.algorithm, spec.elements,
                            std::span(nodes).first(static_cast<std::size_t>(n)), spec.root);
  require(after.sent - before.sent == plan->sent(me) * size_of(spec.dtype),
          name_of(c) + ": sent " + std::to_string(after.sent - before.sent));
}

std::string every_case(const Environment& environment, job::Transport transport) {
  Control control(environment, patient());
  NetworkOptions options;
  options.transport = transport;
  options.node_of = {0, 0, 1, 1};
  options.node_of.resize(static_cast<std::size_t>(environment.world_size));
  int cases = 0;
  {
    Network network(control, options);
    const int n = environment.world_size;
    const auto group = network.communicator("dp", all_ranks(n));
    for (const program::Move move :
         {program::Move::all_reduce, program::Move::reduce_scatter, program::Move::all_gather,
          program::Move::broadcast, program::Move::reduce, program::Move::all_to_all,
          program::Move::rotate, program::Move::gather, program::Move::scatter}) {
      for (const program::Algorithm algorithm :
           {program::Algorithm::automatic, program::Algorithm::ring,
            program::Algorithm::double_tree, program::Algorithm::halving_doubling,
            program::Algorithm::hierarchical, program::Algorithm::direct,
            program::Algorithm::in_network}) {
        for (const program::DType dtype :
             {program::DType::f32, program::DType::bf16, program::DType::f16, program::DType::i32,
              program::DType::u8}) {
          for (const std::int64_t elements : {1, 1003, 50'021}) {
            // 0: not in place, 1: in place, 2: not in place and consuming
            for (const int kind : {0, 1, 2}) {
              Case c = {{.move = move,
                         .algorithm = algorithm,
                         .dtype = dtype,
                         .elements = elements,
                         .consume = kind == 2},
                        kind == 1};
              if (has_root(move)) c.spec.root = (static_cast<int>(elements) + kind) % n;
              if (move == program::Move::rotate) {
                if (c.in_place) continue;
                c.spec.root = n == 1 ? 0 : 1 + (static_cast<int>(elements) + kind) % (n - 1);
              }
              if (move == program::Move::all_to_all) {
                if (c.in_place) continue;
                c.spec.elements *= n;
              }
              try {
                check(*group, c);
                ++cases;
              } catch (const InputError&) {
                continue;  // the algorithm does not serve the move, on any rank
              }
            }
          }
        }
      }
    }
    group->barrier();
  }
  control.finish();
  return std::to_string(cases);
}

class Collectives : public testing::TestWithParam<std::tuple<int, job::Transport>> {};

TEST_P(Collectives, EveryMoveByEveryAlgorithm) {
  const auto [n, transport] = GetParam();
  const auto ended = run_ranks(n, [&](const Environment& e) { return every_case(e, transport); });
  for (const Ended& rank : ended) {
    EXPECT_EQ(rank.status, 0) << rank.text;
    // Five moves by seven algorithms, without six pairs: double_tree and in_network have no
    // reduce_scatter and no all_gather, halving_doubling no broadcast and no reduce. An all_to_all
    // is automatic or direct and never in place, and so is a rotate. Gather and scatter are direct.
    EXPECT_EQ(rank.text, std::to_string((5 * 7 - 6 + 2 * 2) * 5 * 3 * 3 + 2 * 2 * 5 * 3 * 2));
  }
}
INSTANTIATE_TEST_SUITE_P(Comm, Collectives,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(job::Transport::sockets)),
                         [](const auto& info) {
                           return "sockets_" + std::to_string(std::get<0>(info.param));
                         });
INSTANTIATE_TEST_SUITE_P(CommGloo, Collectives,
                         testing::Combine(testing::Values(2, 3),
                                          testing::Values(job::Transport::gloo)),
                         [](const auto& info) {
                           return "gloo_" + std::to_string(std::get<0>(info.param));
                         });

TEST(CommBytes, KernelCountsTheSchedulesBytes) {
  for (const int n : {2, 3, 4}) {
    const auto ended = run_ranks(n, [](const Environment& environment) {
      ControlOptions options = patient();
      options.heartbeat = longest_heartbeat(options.timeout);  // the kernel counts them, too
      Control control(environment, options);
      {
        Network network(control);
        const int n = environment.world_size;
        const auto group = network.communicator("dp", all_ranks(n));
        std::vector<float> x(1'000'003, 1.0F);
        const std::vector<Id> nodes(static_cast<std::size_t>(n), 0);
        for (const program::Move move : {program::Move::all_reduce, program::Move::reduce_scatter,
                                         program::Move::all_gather}) {
          const auto elements = static_cast<std::int64_t>(x.size());
          const int handle = group->prepare(
              {.move = move, .algorithm = program::Algorithm::ring, .elements = elements});
          float* part = x.data() + group->member() * elements / n;
          float* source = move == program::Move::all_gather ? part : x.data();
          float* target = move == program::Move::reduce_scatter ? part : x.data();
          group->run(handle, source, target);  // connects first
          group->barrier();
          const std::int64_t before = kernel_bytes_sent();
          group->run(handle, source, target);
          const std::int64_t sent = kernel_bytes_sent() - before;
          const std::int64_t planned =
              4 * collectives::schedule(move, program::Algorithm::ring, elements, nodes)
                      ->sent(group->member());
          // Besides the payload: a header of 16 bytes a transfer.
          require(
              sent >= planned && sent <= planned + 4096,
              std::to_string(sent) + " bytes by the kernel, planned " + std::to_string(planned));
          group->barrier();
        }
      }
      control.finish();
      return std::string();
    });
    for (const Ended& rank : ended) EXPECT_EQ(rank.status, 0) << rank.text;
  }
}

TEST(CommPointToPoint, TwoLanesShareAChannel) {
  // As in a pipeline, rank r sends to r + 1 in one thread and receives from r - 1 in another.
  const auto ended = run_ranks(3, [](const Environment& environment) {
    Control control(environment, patient());
    {
      Network network(control);
      const int n = environment.world_size;
      const auto line = network.communicator("activations", all_ranks(n));
      std::vector<float> in(300'001);
      std::vector<float> out(in.size(), static_cast<float>(environment.rank));
      const auto count = static_cast<std::int64_t>(in.size());
      std::thread sender([&] {
        for (int i = 0; i < 20; ++i) {
          line->send({out.data(), count}, (environment.rank + 1) % n);
        }
      });
      const int from = (environment.rank + n - 1) % n;
      for (int i = 0; i < 20; ++i) {
        line->recv({in.data(), count}, from);
        require(in.front() == static_cast<float>(from) && in.back() == in.front(), "payload");
      }
      sender.join();
      require(line->traffic().sent == 20 * 4 * count && line->traffic().received == 20 * 4 * count,
              "traffic");
    }
    control.finish();
    return std::string();
  });
  for (const Ended& rank : ended) EXPECT_EQ(rank.status, 0) << rank.text;
}

TEST(CommPointToPoint, OtherSizeIsAnError) {
  const auto ended = run_ranks(2, [](const Environment& environment) -> std::string {
    Control control(environment, patient());
    Network network(control);
    const auto line = network.communicator("grads", all_ranks(2));
    std::vector<float> x(100);
    if (environment.rank == 0) {
      line->send({x.data(), 50}, 1);
      for (;;) {
        control.check();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    try {
      line->recv({x.data(), 100}, 0);
    } catch (const BackendError& error) {
      control.fail(error.what());
      throw;
    }
    return "received";
  });
  for (const Ended& end : ended) {
    EXPECT_EQ(end.status, 1);
    EXPECT_NE(end.text.find(" sent a broken message to rank 1: channel grads: 200 bytes as "
                            "transfer 0 came, others were due (0 of 400 bytes"),
              std::string::npos)
        << end.text;
  }
}

}  // namespace
}  // namespace rehearse::runtime
