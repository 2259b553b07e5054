#include "runtime/profiling/timed_stream.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "engine/base/numbers/median.h"
#include "engine/costs/profile.h"
#include "runtime/profiling/profile_parts.h"

namespace rehearse::runtime {

TimedStream::TimedStream(Device& device) : device_(device), stream_(device.stream("profile")) {}

TimedStream::~TimedStream() {
  try {
    stream_->synchronize();
  } catch (const std::exception&) {  // the caller is on its way out with this error or another
  }
}

void TimedStream::run(std::function<void()> work) { queue(nullptr, std::move(work)); }

void TimedStream::time(std::vector<double>& seconds, std::function<void()> work) {
  queue(&seconds, std::move(work));
}

void TimedStream::queue(std::vector<double>* seconds, std::function<void()> work) {
  const auto event = [&] {
    if (unused_.empty()) return device_.timed_event(none);
    std::shared_ptr<Event> one = std::move(unused_.back());
    unused_.pop_back();
    return one;
  };
  Piece& piece = pieces_.emplace_back(Piece{.stream = this,
                                            .work = std::move(work),
                                            .seconds = seconds,
                                            .begin = event(),
                                            .end = event()});
  stream_->record(*piece.begin);
  stream_->launch({.run = &TimedStream::run_piece, .self = &piece});
  stream_->record(*piece.end);
}

void TimedStream::run_piece(void* self, const Body&) {
  const auto& piece = *static_cast<Piece*>(self);
  TimedStream& stream = *piece.stream;
  if (stream.error_) return;
  const c10::AutoGradMode no_grad(false);  // LibTorch keeps it by thread
  try {
    piece.work();
  } catch (...) {
    stream.error_ = std::current_exception();
  }
}

void TimedStream::finish(std::size_t under_way) {
  while (pieces_.size() > under_way) {
    Piece& piece = pieces_.front();
    piece.end->wait();
    if (piece.seconds != nullptr) piece.seconds->push_back(piece.end->seconds_since(*piece.begin));
    unused_.push_back(std::move(piece.begin));
    unused_.push_back(std::move(piece.end));
    pieces_.pop_front();
  }
  if (!pieces_.empty()) return;
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  device_.settled();
}

double median_time(TimedStream& stream, double seconds, const std::function<void()>& work) {
  stream.run(work);
  stream.finish();
  std::vector<double> times;
  const double until = seconds_now() + seconds;
  while (times.size() < 5 || seconds_now() < until) {
    stream.time(times, work);
    stream.finish();
  }
  return median(std::move(times));
}

}  // namespace rehearse::runtime
