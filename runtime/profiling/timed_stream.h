// A stream on which the profiler queues work and times it. Times are the device's: the host need
// not wait between two pieces, as it does not in training.
#pragma once
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/device/device.h"

namespace rehearse::runtime {

class TimedStream {
 public:
  explicit TimedStream(Device& device);
  /// Waits until nothing is queued.
  ~TimedStream();
  TimedStream(const TimedStream&) = delete;
  TimedStream& operator=(const TimedStream&) = delete;

  Device& device() const { return device_; }

  /// Queues `work`, which may use the device's memory while it runs.
  void run(std::function<void()> work);
  /// The same. `finish` adds the seconds that it took to `seconds`.
  void time(std::vector<double>& seconds, std::function<void()> work);
  /// Waits until at most `under_way` pieces of work have not ended. Rethrows the first error of
  /// one.
  void finish(std::size_t under_way = 0);

 private:
  struct Piece {
    TimedStream* stream = nullptr;
    std::function<void()> work = {};
    std::vector<double>* seconds = nullptr;
    std::shared_ptr<Event> begin = {}, end = {};
  };
  void queue(std::vector<double>* seconds, std::function<void()> work);
  static void run_piece(void* piece, const Body& body);

  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::deque<Piece> pieces_ = {};  // whose end nobody has seen yet
  std::vector<std::shared_ptr<Event>> unused_ = {};
  std::exception_ptr error_ = {};  // bodies write it; read when one that was queued later has ended
};

/// Median seconds of one call of `work`, from at least five calls in about `seconds`.
double median_time(TimedStream& stream, double seconds, const std::function<void()>& work);

}  // namespace rehearse::runtime
