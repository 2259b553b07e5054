// The subject of a result: model, cluster, global batch, sequence length and precision. Every
// result shows its subject, because its figures depend on it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "engine/job/job.h"

namespace rehearse::study {

struct Subject {
  std::string model = {}, cluster = {}, precision = {};
  int global_batch = 0, seq_len = 0;
};

Subject subject_of(const model::ModelSpec& model, const cluster::Cluster& cluster,
                   const plan::Plan& plan);
/// "gpt2-124m, 512 samples of 1024 tokens a step, fp32".
std::string work_text(const Subject& subject);
/// Adds the keys model, cluster, global_batch, seq_len and precision.
void add_subject(const Subject& subject, nlohmann::ordered_json& json);

}  // namespace rehearse::study
