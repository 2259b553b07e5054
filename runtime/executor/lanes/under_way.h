// Where the stream of a lane is: the oldest of the ops it was given that it has not ended. A host
// that issues ops ahead cannot see that from what it issued last.
#pragma once
#include <boost/circular_buffer.hpp>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/executor/lanes/task_lanes.h"

namespace rehearse::runtime {

/// An op that a stream has been given.
struct Given {
  const Task* task = nullptr;
  std::int64_t step = 0;
};

class UnderWay {
 public:
  /// `ahead`: no op is given for a step before the stream has ended it `ahead` steps before.
  UnderWay(const TaskLane& lane, std::size_t ops, std::int64_t ahead)
      : ahead_(ahead), given_(lane.tasks.size() * static_cast<std::size_t>(ahead)) {
    newest_.resize(ops);
  }

  /// The stream has been given an op and the record of its end.
  void add(const Task& task, std::int64_t step);
  /// The stream is empty.
  void clear();
  /// Nothing when the stream has ended all. `ended`: whether the record of an op's end in one of
  /// the last `ahead` steps was reached. Any thread may ask.
  std::optional<Given> oldest(const std::function<bool(const Given&)>& ended) const;

 private:
  std::int64_t ahead_;
  mutable std::mutex lock_ = {};
  // In the order of the stream. Between an op that has not ended and the newest, each op was given
  // at most `ahead` times, so what is pushed out has ended.
  boost::circular_buffer<Given> given_;
  std::vector<std::int64_t> newest_ = {};  // by op: the last step that was given
};

}  // namespace rehearse::runtime
