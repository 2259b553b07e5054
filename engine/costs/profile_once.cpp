#include "engine/costs/profile_once.h"

#include <map>

#include "engine/costs/profile.h"

namespace rehearse::costs {

struct ProfileOnce::Read {
  std::map<std::uint64_t, Profile> on_cluster = {};  // by the cluster's hash
};

ProfileOnce::ProfileOnce(std::string path)
    : path_(std::move(path)), read_(std::make_shared<Read>()) {}

const Profile* ProfileOnce::on(const cluster::Cluster& cluster) const {
  if (path_.empty()) return nullptr;
  const std::uint64_t hash = cluster.hash();
  auto known = read_->on_cluster.find(hash);
  if (known == read_->on_cluster.end())
    known = read_->on_cluster.emplace(hash, load_profile(path_, cluster)).first;
  return &known->second;
}

}  // namespace rehearse::costs
