// The fullest device and the fullest host of a study.
#include <algorithm>

#include "study/prediction/study.h"

namespace rehearse::study {

std::int64_t peak_memory(const Study& study) {
  std::int64_t most = 0;
  for (const planner::DeviceNeed& need : study.memory) most = std::max(most, need.need);
  return most;
}

const planner::HostNeed* fullest_host(const Study& study) {
  const auto most = std::ranges::max_element(study.hosts, {}, &planner::HostNeed::need);
  return most == study.hosts.end() ? nullptr : &*most;
}

}  // namespace rehearse::study
