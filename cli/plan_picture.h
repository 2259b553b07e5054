// What plots/placement.py draws of a plan: devices and stages, and each compressed layer.
#pragma once
#include <nlohmann/json.hpp>

#include "engine/job.h"
#include "engine/profile.h"

namespace rehearse {

/// docs/report.md: "Placement". `profile` (or none) has the variances.
nlohmann::ordered_json placement_json(const Job& job, const Profile* profile);

}  // namespace rehearse
