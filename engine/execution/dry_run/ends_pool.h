// Arrays of the ends of ops, which the max-plus dry run uses again and again. Internal to
// engine/execution.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

namespace rehearse::execution {

/// When an op ended, on each place of its role. `users`: how many ops still need the array.
struct Ends {
  std::vector<double> at = {};
  int users = 0;
};
/// The arrays of one role. The array that was released last is reused first, so that the few arrays
/// in use stay in the cache.
class EndsPool {
 public:
  Ends* take(std::size_t places) {
    if (free_.empty()) {
      all_.push_back(std::make_unique<Ends>());
      all_.back()->at.resize(places);
      return all_.back().get();
    }
    Ends* ends = free_.back();
    free_.pop_back();
    return ends;
  }
  void drop(Ends* ends) {
    if (--ends->users == 0) free_.push_back(ends);
  }

 private:
  std::vector<std::unique_ptr<Ends>> all_ = {};
  std::vector<Ends*> free_ = {};
};

}  // namespace rehearse::execution
