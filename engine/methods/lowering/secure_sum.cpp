#include "engine/methods/lowering/secure_sum.h"

#include <string>
#include <utility>

#include "engine/base/refusal.h"

namespace rehearse::methods {

using program::KernelKind;
using program::Mode;
using program::Slot;

secure::Group secure_group(const plan::Plan& plan, std::int64_t elements, std::uint64_t seed) {
  if (plan.mesh.servers != 1)
    refuse("servers", std::to_string(plan.mesh.servers),
           "one server makes a secure sum; nearest: 1");
  const plan::SecureSum& wanted = plan.exchange.averaging.secure;
  secure::Ring ring;
  if (wanted.clipping_range) ring.clip = *wanted.clipping_range;
  if (wanted.levels) ring.levels = static_cast<std::uint32_t>(*wanted.levels);
  return secure::group_of({.clients = plan.mesh.dp,
                           .neighbours = wanted.neighbours,
                           .threshold = wanted.threshold,
                           .elements = elements,
                           .ring = ring,
                           .seed = seed});
}

program::SecureSum secure_sum(const secure::Group& group) {
  const secure::Settings& s = group.settings;
  return {.neighbours = s.neighbours,
          .threshold = s.threshold,
          .range = s.ring.clip,
          .levels = s.ring.levels};
}

SecureSide::SecureSide(program::Program& program, const plan::Plan& plan,
                       program::RoleBuilder& role, int kinds, int parts, program::Layout layout,
                       int shift, program::When when)
    : program_(program),
      plan_(plan),
      role_(role),
      kinds_(kinds),
      parts_(parts),
      layout_(layout),
      shift_(shift),
      when_(when) {
  const secure::Leaving nobody(static_cast<std::size_t>(plan.mesh.dp), secure::rounds);
  bytes_ = secure::traffic_of(secure_group(plan, 1), nobody).front();
}

Id SecureSide::messages(const char* name, std::int64_t bytes) {
  return role_.storage({.name = std::string("message.") + name,
                        .life = program::Life::buffer,
                        .dtype = program::DType::u8,
                        .elements = bytes * parts_});
}

void SecureSide::kernel(KernelKind kind, Id message, Id target) {
  std::vector<program::Ref> refs;
  if (message != none) refs.push_back(ref(message, Slot::message, Mode::read, 0, 0, layout_));
  refs.push_back(ref(target, Slot::target, Mode::write, 0, 0, layout_));
  role_.op("secure", program::Kernel{.kind = kind}, std::move(refs), shift_, when_);
}

void SecureSide::move(program::Move move, program::Ref ref) {
  constexpr int server = 0;
  const std::string lane = star_lane(move, server);
  role_.op(client() ? lane : lane.substr(0, lane.find('.')),
           star(program_, plan_, move, server, kinds_), {ref}, shift_, when_);
}

void SecureSide::gather(Id messages) {
  move(program::Move::gather, ref(messages, client() ? Slot::source : Slot::target,
                                  client() ? Mode::read : Mode::write, 0, 0, layout_));
}

void SecureSide::scatter(Id messages) {
  move(program::Move::scatter, ref(messages, client() ? Slot::target : Slot::source,
                                   client() ? Mode::write : Mode::read, 0, 0, layout_));
}

SecureClient::SecureClient(Stage& stage, int shift, program::When when)
    : SecureSide(stage.program(), stage.plan(), stage.role(), stage.who().kinds, 1,
                 {.own = stage.dp()}, shift, when) {
  const Id keys = messages("keys", bytes_.up[0]),
           their_keys = messages("their_keys", bytes_.down[0]);
  const Id dealt = messages("dealt", bytes_.up[1]);
  shares_ = messages("shares", bytes_.down[1]);
  kernel(KernelKind::advertise, none, keys);
  gather(keys);
  scatter(their_keys);
  kernel(KernelKind::share_secrets, their_keys, dealt);
  gather(dealt);
  scatter(shares_);
}

void SecureClient::push(const Bucket& bucket, program::Ref source, double scale) {
  const program::Layout partial{.partial = layout_.own};
  const Id levels = role_.storage(
      {.name = "levels." + bucket.name, .dtype = program::DType::i32, .elements = bucket.elements});
  role_.op("secure", program::Kernel{.kind = KernelKind::mask, .scale = scale, .of = first_},
           {source, ref(shares_, Slot::message, Mode::read, 0, 0, layout_),
            ref(levels, Slot::target, Mode::write, 0, 0, partial)},
           shift_, when_);
  move(program::Move::reduce, ref(levels, Slot::source, Mode::read, 0, 0, partial));
  first_ += bucket.elements;
}

void SecureClient::open() {
  const Id stayed = messages("stayed", bytes_.down[2]), opened = messages("opened", bytes_.up[3]);
  scatter(stayed);
  kernel(KernelKind::open_shares, stayed, opened);
  gather(opened);
}

SecureServer::SecureServer(Server& server, program::When when)
    : SecureSide(server.program, server.plan, server.role, server.kinds, server.plan.mesh.dp + 1,
                 {}, 0, when) {
  const Id keys = messages("keys", bytes_.up[0]),
           their_keys = messages("their_keys", bytes_.down[0]);
  const Id dealt = messages("dealt", bytes_.up[1]), shares = messages("shares", bytes_.down[1]);
  gather(keys);
  kernel(KernelKind::relay_keys, keys, their_keys);
  scatter(their_keys);
  gather(dealt);
  kernel(KernelKind::relay_shares, dealt, shares);
  scatter(shares);
}

void SecureServer::add(const Bucket& bucket) {
  last_ = role_.storage({.name = "levels." + bucket.name,
                         .life = program::Life::buffer,
                         .dtype = program::DType::i32,
                         .elements = bucket.elements});
  move(program::Move::reduce, ref(last_, Slot::target, Mode::write));
}

void SecureServer::open() {
  const Id stayed = messages("stayed", bytes_.down[2]);
  opened_ = messages("opened", bytes_.up[3]);
  role_.op("secure", program::Kernel{.kind = KernelKind::tell_stayed},
           {ref(last_, Slot::source, Mode::read), ref(stayed, Slot::target, Mode::write)}, shift_,
           when_);
  scatter(stayed);
  gather(opened_);
}

Id SecureServer::unmasked(const Bucket& bucket, double scale) {
  const Id sum = role_.view("levels." + bucket.name);
  const Id mean = storage_of(role_, bucket, "mean.", program::Life::buffer);
  role_.op("secure", program::Kernel{.kind = KernelKind::unmask, .scale = scale, .of = first_},
           {ref(sum, Slot::source, Mode::read), ref(opened_, Slot::message, Mode::read),
            ref(mean, Slot::target, Mode::write)},
           shift_, when_);
  first_ += bucket.elements;
  return mean;
}

}  // namespace rehearse::methods
