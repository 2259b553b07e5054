#include "study/prediction/subject.h"

#include <fmt/format.h>

#include <string>

#include "engine/base/names.h"

namespace rehearse::study {

Subject subject_of(const model::ModelSpec& model, const cluster::Cluster& cluster,
                   const plan::Plan& plan) {
  return {.model = model.name,
          .cluster = cluster.name(),
          .precision = std::string(name_of(job::precision_of(plan))),
          .global_batch = plan.schedule.global_batch,
          .seq_len = model.seq_len};
}

std::string work_text(const Subject& s) {
  return fmt::format("{}, {} samples of {} tokens a step, {}", s.model, s.global_batch, s.seq_len,
                     s.precision);
}

void add_subject(const Subject& s, nlohmann::ordered_json& json) {
  json["model"] = s.model;
  json["cluster"] = s.cluster;
  json["global_batch"] = s.global_batch;
  json["seq_len"] = s.seq_len;
  json["precision"] = s.precision;
}

}  // namespace rehearse::study
