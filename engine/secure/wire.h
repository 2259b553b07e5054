// How parts of messages are written and read. Internal to engine/secure.
#pragma once
#include <cstring>
#include <span>

#include "engine/base/errors.h"
#include "engine/secure/keys.h"

namespace rehearse::secure {

inline void put(Message& message, std::span<const unsigned char> bytes) {
  message.insert(message.end(), bytes.begin(), bytes.end());
}
inline void put(Message& message, Id id) {
  const std::uint32_t number = id;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&number);
  put(message, std::span(bytes, sizeof number));
}

/// Takes parts from the front. Throws BackendError when the message is too short, or when it is not
/// all read at the end.
class Reader {
 public:
  explicit Reader(const Message& message) : rest_(message) {}
  bool done() const { return rest_.empty(); }
  std::span<const unsigned char> bytes(std::size_t count) {
    if (rest_.size() < count)
      throw BackendError("secure aggregation: a message is shorter than it should be");
    const auto out = rest_.first(count);
    rest_ = rest_.subspan(count);
    return out;
  }
  Key key() {
    Key out = {};
    std::memcpy(out.data(), bytes(out.size()).data(), out.size());
    return out;
  }
  Id id() {
    std::uint32_t number = 0;
    std::memcpy(&number, bytes(sizeof number).data(), sizeof number);
    return static_cast<Id>(number);
  }
  void end() const {
    if (!done()) throw BackendError("secure aggregation: a message is longer than it should be");
  }

 private:
  std::span<const unsigned char> rest_;
};

}  // namespace rehearse::secure
