// A mailbox over our own sockets. A thread of its own moves bytes in both directions, so `put` does
// not wait for the receiver, and messages that have come are ready for `take`:
//
//   put --> copy --> out_[to].letters --> thread --> TCP --> thread --> inbox_ --> take
//
// Payload buffers are reused. While the inbox exceeds the bound nothing more is read, and TCP slows
// down the senders.
#pragma once
#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/communication/communicator.h"
#include "runtime/communication/data_frame.h"
#include "runtime/communication/switchboard.h"

namespace rehearse::runtime {

class SocketMailbox : public Mailbox {
 public:
  SocketMailbox(Switchboard& switchboard, const Control& control, std::string channel,
                std::vector<Id> senders, std::vector<Id> receivers, Bytes bound, Seconds patience);
  ~SocketMailbox() override;

  void put(Buffer payload, Id to_rank, bool last) override;
  Delivery take(Buffer target) override;
  Delivery try_take(Buffer target) override;
  void close() override;
  Traffic traffic() const override;

 private:
  struct Incoming {
    Id from = none;
    ByteStream stream = {};
    Letter letter = {};
  };
  struct Outgoing {
    ByteStream stream = {};
    std::deque<Letter> letters = {};
  };

  /// What one turn of the thread waits for: two of its own, then readers, then writers.
  struct Turn {
    std::vector<pollfd> wait = {};
    std::vector<Incoming*> readers = {};
    std::vector<std::pair<Id, Outgoing*>> writers = {};
  };

  void post(Letter letter, Id to);
  std::vector<std::byte> spare_buffer(std::size_t bytes);
  void hand_over(Letter letter);
  Delivery pop_message(Buffer target);
  bool nothing_can_come() const;
  void run();
  void turn();
  bool read(Incoming& line);
  bool write(Outgoing& line);
  void fail(const std::string& what, Id other_end);

  Switchboard& switchboard_;
  const Control& control_;
  std::string channel_;
  std::vector<Id> senders_, receivers_;
  std::uint64_t key_;
  std::size_t bound_;
  Seconds patience_;
  Fd wake_ = make_signal();

  mutable std::mutex mutex_ = {};
  std::condition_variable changed_ = {};
  std::deque<Letter> inbox_ = {};
  std::map<Id, Outgoing> out_ = {};
  std::deque<Incoming> in_ = {};
  std::vector<std::vector<std::byte>> spare_ = {};
  std::size_t inbox_bytes_ = 0, outbox_bytes_ = 0, ended_ = 0;
  std::string failure_ = {};
  Id failed_with_ = none;  // the other end of the connection that failed
  bool verdict_ = false, closed_ = false;
  std::atomic<bool> ending_ = false;
  std::atomic<std::int64_t> sent_ = 0, received_ = 0;
  Turn turn_ = {};  // used by the thread alone
  std::thread thread_ = {};
};

}  // namespace rehearse::runtime
