#include "study/calibration/step_columns.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/base/errors.h"
#include "engine/base/files/config.h"

namespace rehearse::study {
namespace {

const std::vector<std::string> batch_names{"global_batch", "global_batch_size", "gbs"};
const std::vector<std::string> ranks_names{"ranks", "world_size", "gpus", "num_gpus"};
const std::vector<std::string> tokens_names{"tokens_per_step"};
constexpr const char* batch_key = "train.global_batch";

}  // namespace

StepColumns::StepColumns(const CalibrationQuestion& question)
    : question_(question), table_(parse_csv(question.text, question.data)) {
  batch_ = first_of(batch_names);
  ranks_ = first_of(ranks_names);
  tokens_ = first_of(tokens_names);
}

std::optional<std::size_t> StepColumns::first_of(const std::vector<std::string>& names) const {
  for (const std::string& name : names)
    if (const std::size_t at = table_.column(name); at < table_.columns.size()) return at;
  return std::nullopt;
}

int StepColumns::whole(std::size_t row, std::size_t column) const {
  const std::string& text = table_.rows[row][column];
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1)
    throw InputError(fmt::format("{}: row {}: {} = \"{}\" must be a whole number above 0",
                                 question_.data, row + 1, table_.columns[column], text));
  return value;
}

std::vector<std::string> StepColumns::overrides(std::size_t row) const {
  if (!batch_ || table_.column(batch_key) < table_.columns.size()) return {};
  return {fmt::format("{}={}", batch_key, whole(row, *batch_))};
}

void StepColumns::check(std::size_t row, const job::Job& job) const {
  const auto compare = [&](const std::optional<std::size_t>& column, int of_job,
                           const std::string& what, const char* key) {
    if (!column) return;
    const int stated = whole(row, *column);
    if (stated != of_job)
      throw InputError(fmt::format(
          "{}: row {}: {} = {}, and its job has {}; --set {}={}, or a column {}, gives the job the "
          "number of the row",
          question_.data, row + 1, table_.columns[*column], stated, what, key, stated, key));
  };
  const int ranks = job.plan.mesh.world_size(), batch = job.plan.schedule.global_batch;
  compare(ranks_, ranks, fmt::format("{} ranks", ranks), "cluster.world_size");
  compare(batch_, batch, fmt::format("a global batch of {}", batch), batch_key);
  const double tokens = double(batch) * job.model.seq_len;
  if (tokens_ && std::abs(whole(row, *tokens_) / tokens - 1) > 0.01)
    throw InputError(fmt::format(
        "{}: {} tokens a step, and its job has {:.0f}: {} x {} of train.global_batch and "
        "train.seq_len",
        question_.data, whole(row, *tokens_), tokens, batch, job.model.seq_len));
}

std::vector<std::string> StepColumns::notes() const {
  std::vector<std::string> out, known = batch_names;
  known.insert(known.end(), ranks_names.begin(), ranks_names.end());
  known.insert(known.end(), tokens_names.begin(), tokens_names.end());
  if (const std::string unused = unused_columns(table_, known); !unused.empty())
    out.push_back(unused);
  if (!batch_ || question_.job.empty() || table_.column(batch_key) < table_.columns.size())
    return out;
  const Config train = Config::load(question_.job).section("train");
  const auto of_job = train.maybe_integer("global_batch");
  if (!of_job) return out;
  for (std::size_t r = 0; r < table_.rows.size(); ++r)
    if (const int of_row = whole(r, *batch_); of_row != *of_job) {
      out.push_back(fmt::format("{}: row {} has {}, {} has {}; the rows' numbers count",
                                table_.columns[*batch_], r + 1, of_row, train.where("global_batch"),
                                *of_job));
      break;
    }
  return out;
}

std::string unused_columns(const CsvTable& table, const std::vector<std::string>& known) {
  std::vector<std::string> unused;
  for (const std::string& column : table.columns)
    if (column != "row" && column != "use" && column != "seconds" &&
        column.find('.') == std::string::npos &&
        std::find(known.begin(), known.end(), column) == known.end())
      unused.push_back(column);
  if (unused.empty()) return "";
  return fmt::format("not used: the column{} {}; a column counts when its name is a key, as {}",
                     unused.size() > 1 ? "s" : "", fmt::join(unused, ", "),
                     known.empty() ? "collective.ranks" : "train.seq_len");
}

}  // namespace rehearse::study
