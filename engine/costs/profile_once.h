// The profile that a job names.
#pragma once
#include <memory>
#include <string>

#include "engine/cluster/cluster.h"

namespace rehearse::costs {

struct Profile;

/// A profile's file, which is read once, when a prediction first asks for it: a run refuses no
/// profile that it does not use. Copies share what was read. Not for several threads at once.
class ProfileOnce {
 public:
  ProfileOnce() = default;
  /// `path`: empty for no profile.
  explicit ProfileOnce(std::string path);

  const std::string& path() const { return path_; }
  /// The profile, for use on this cluster (load_profile, profile.h); null if there is none. It
  /// stays where it is as long as a copy of this object exists.
  const Profile* on(const cluster::Cluster& cluster) const;

 private:
  struct Read;
  std::string path_ = {};
  std::shared_ptr<Read> read_ = {};
};

}  // namespace rehearse::costs
