#include "runtime/communication/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "engine/base/errors.h"
#include "runtime/communication/gloo_communicator.h"
#include "runtime/communication/socket_communicator.h"
#include "runtime/communication/socket_mailbox.h"
#include "runtime/communication/switchboard.h"
#include "runtime/control/membership/members.h"

namespace rehearse::runtime {

struct Network::Impl {
  Control& control;
  NetworkOptions options;
  Switchboard switchboard;
  Seconds patience;
  std::optional<Gloo> gloo = {};

  Impl(Control& control_in, NetworkOptions options_in)
      : control(control_in),
        options(std::move(options_in)),
        switchboard(control_in),
        patience(options.patience.value > 0 ? options.patience
                                            : 10 * control_in.options().timeout) {
    if (options.transport == job::Transport::gloo) gloo.emplace(control);
  }
};

Network::Network(Control& control, NetworkOptions options)
    : impl_(std::make_unique<Impl>(control, std::move(options))) {
  const auto& members = Members::of(control);
  std::vector<Id>& node_of = impl_->options.node_of;
  if (!node_of.empty() && node_of.size() != members.size()) {
    throw InputError(
        fmt::format("{} ranks, but nodes are given for {}", members.size(), node_of.size()));
  }
  if (!node_of.empty()) return;
  std::map<std::string, Id> nodes;
  for (const MemberInfo& m : members) {
    node_of.push_back(nodes.emplace(m.host, static_cast<Id>(nodes.size())).first->second);
  }
}

Network::~Network() = default;

const std::vector<Id>& Network::node_of() const { return impl_->options.node_of; }

std::unique_ptr<Communicator> Network::communicator(const std::string& channel,
                                                    std::vector<Id> ranks) {
  const auto rank = static_cast<Id>(impl_->control.environment().rank);
  const auto place = std::ranges::find(ranks, rank);
  if (place == ranks.end()) {
    throw ProgramError(fmt::format("channel {}: rank {} is not in its group", channel, rank));
  }
  const auto member = static_cast<int>(place - ranks.begin());
  std::vector<Id> nodes;
  for (const Id r : ranks) nodes.push_back(impl_->options.node_of.at(r));
  auto sockets = std::make_unique<SocketCommunicator>(impl_->switchboard, impl_->control, channel,
                                                      std::move(ranks), member, std::move(nodes),
                                                      impl_->patience);
  if (!impl_->gloo) return sockets;
  return impl_->gloo->communicator(std::move(sockets));
}

std::unique_ptr<Mailbox> Network::mailbox(const std::string& channel, std::vector<Id> senders,
                                          std::vector<Id> receivers) {
  return std::make_unique<SocketMailbox>(impl_->switchboard, impl_->control, channel,
                                         std::move(senders), std::move(receivers),
                                         impl_->options.mailbox_bound, impl_->patience);
}

}  // namespace rehearse::runtime
