// The results of a sweep: computed in worker processes, appended to a file, read again, as CSV.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <set>

#include "engine/base/errors.h"
#include "engine/base/files/files.h"
#include "engine/base/units.h"
#include "study/progress.h"
#include "study/sweep/scaling.h"
#include "study/sweep/sweep.h"
#include "study/sweep/sweep_point.h"
#ifdef REHEARSE_HAS_SIM
#include "sim/processes.h"
#endif

namespace rehearse::study {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

Row read_row(const std::string& line, const std::string& where) {
  const Json json = Json::parse(line, nullptr, false);
  const auto text = [&](const char* key) {
    return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
  };
  Row row;
  if (json.is_object())
    row = {.key = text("key"), .refused = text("refused"), .failed = text("failed")};
  const bool measured = json.is_object() && json.contains("metrics") &&
                        json["metrics"].is_object() && json["metrics"].contains("step_s");
  if (measured) row.metrics = json["metrics"];
  if (row.key.empty() || (!measured && row.refused.empty() && row.failed.empty()))
    throw InputError(
        fmt::format("{}: not a line of a sweep's results; the file was left as it is: "
                    "correct or remove this line, and the point is computed again",
                    where));
  if (json.contains("point")) row.values = json["point"];
  if (const Json warnings = json.value("warnings", Json::array()); warnings.is_array())
    for (const Json& warning : warnings)
      if (warning.is_string()) row.warnings.push_back(warning);
  return row;
}

std::string line_of(const Row& row) {
  return to_json(row).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Appends lines to a file that no other sweep writes at the same time.
class Lines {
 public:
  explicit Lines(const std::string& path)
      : path_(path), fd_(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644)) {
    if (fd_ < 0) fail();
    // A lock of the process: workers, which may live a moment longer, do not hold it.
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (fcntl(fd_, F_SETLK, &lock) != 0)
      throw InputError(fmt::format("{}: another sweep writes it", path));
    end_last_line();
  }
  ~Lines() { close(fd_); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;

  void add(const std::string& line) const {
    const std::string text = line + "\n";
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t n = write(fd_, text.data() + done, text.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail();
      done += static_cast<std::size_t>(n);
    }
  }

 private:
  [[noreturn]] void fail() const {
    throw BackendError(fmt::format("{}: cannot be written: {}", path_, std::strerror(errno)));
  }
  /// A line that a stopped sweep did not finish is removed; one that only lacks its end is ended.
  void end_last_line() const {
    const std::string text = read_file(path_);
    if (text.empty() || text.back() == '\n') return;
    const std::size_t begin = text.rfind('\n') + 1;
    if (Json::accept(text.substr(begin)))
      add("");
    else if (ftruncate(fd_, static_cast<off_t>(begin)) != 0)
      fail();
  }

  std::string path_;
  int fd_;
};

/// "120 of 1000 points, 3 refused, about 2 min left".
class Told {
 public:
  Told(Progress* progress, std::size_t count) : progress_(progress), count_(count) {}
  void add(const Row& row) {
    ++done_;
    refused_ += row.metrics.is_null() ? 1 : 0;
    if (progress_ == nullptr) return;
    const std::chrono::duration<double> spent = Clock::now() - begin_;
    const double left =
        spent.count() / static_cast<double>(done_) * static_cast<double>(count_ - done_);
    progress_->say(fmt::format("{} of {} points, {} refused, about {} left", done_, count_,
                               refused_, to_text(Seconds(left))));
  }

 private:
  Progress* progress_;
  std::size_t count_, done_ = 0, refused_ = 0;
  Clock::time_point begin_ = Clock::now();
};

std::string csv_cell(const Json& value) {
  if (value.is_null()) return "";
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

const std::vector<Metric>& metrics(Question question) {
  static const std::vector<Metric> simulated{
      {"step_s"},          {"samples_per_s", true},    {"tokens_per_s", true}, {"mfu", true},
      {"bubble_fraction"}, {"exposed_comm_s"},         {"peak_memory_bytes"},  {"joules_per_step"},
      {"cost_per_step"},   {"cost_per_billion_tokens"}};
  static const std::vector<Metric> planned{{"step_s"}, {"dry_run_s"}, {"cost_per_step"}};
  static const std::vector<Metric> walked{
      {"goodput", true}, {"productive_s", true},     {"lost_s"}, {"step_s"}, {"interruptions"},
      {"cost"},          {"cost_per_billion_tokens"}};
  if (question == Question::simulate) return simulated;
  return question == Question::plan ? planned : walked;
}

Json to_json(const Row& row) {
  Json out{{"schema_version", 1}, {"key", row.key}, {"point", row.values}};
  if (!row.metrics.is_null()) out["metrics"] = row.metrics;
  if (!row.warnings.empty()) out["warnings"] = row.warnings;
  if (!row.refused.empty()) out["refused"] = row.refused;
  if (!row.failed.empty()) out["failed"] = row.failed;
  return out;
}

std::vector<Row> results_of(const Sweep& sweep, const std::vector<Point>& points,
                            const Rows& rows) {
  std::vector<Row> out;
  for (const Point& point : points) {
    const auto found = rows.find(point.key);
    out.push_back(found == rows.end() ? Row{.key = point.key} : found->second);
    out.back().values = point.values;  // an equal point may have computed the row
  }
  if (sweep.scaling) add_efficiency(*sweep.scaling, out);
  return out;
}

Json to_json(const std::vector<Row>& results) {
  Json out = Json::array();
  for (const Row& row : results) {
    out.push_back(to_json(row));
    out.back().erase("schema_version");
  }
  return out;
}

Rows read_rows(const std::string& folder) {
  Rows out;
  if (!std::filesystem::is_directory(folder)) return out;
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().starts_with("results") &&
        entry.path().extension() == ".jsonl")
      files.insert(entry.path());
  for (const auto& file : files) {
    const std::string text = read_file(file.string());
    int number = 0;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = text.find('\n', begin);
      const std::string line = text.substr(begin, end - begin);
      ++number;
      if (end == std::string::npos && !Json::accept(line)) break;  // not finished
      Row row = read_row(line, fmt::format("{}:{}", file.string(), number));
      // A failure never hides a result that another file has.
      if (Row& known = out[row.key]; known.key.empty() || row.failed.empty())
        known = std::move(row);
      if (end == std::string::npos) break;
      begin = end + 1;
    }
  }
  return out;
}

int shard_of(const Point& point, int of) {
  return static_cast<int>(point.deal % static_cast<unsigned>(of)) + 1;
}

void compute(const Sweep& sweep, const std::vector<Point>& points, const Work& work, Rows& rows) {
  std::vector<const Point*> todo;
  std::set<std::string> listed;
  for (const Point& point : points) {
    const auto known = rows.find(point.key);
    const bool done = known != rows.end() && known->second.failed.empty();
    if (shard_of(point, work.of) == work.shard && !done && listed.insert(point.key).second)
      todo.push_back(&point);
  }
  std::error_code error;
  std::filesystem::create_directories(work.folder, error);
  if (error)
    throw InputError(fmt::format("-o {}: cannot be created: {}", work.folder, error.message()));
  const Lines lines(work.folder + (work.of > 1
                                       ? fmt::format("/results-{}-of-{}.jsonl", work.shard, work.of)
                                       : std::string("/results.jsonl")));
  Told told(work.progress, todo.size());
  const auto add = [&](Row row) {
    lines.add(line_of(row));
    told.add(row);
    rows[row.key] = std::move(row);
  };
  const auto one = [&](int i) {
    return line_of(answer_of(sweep, *todo[static_cast<std::size_t>(i)]));
  };
#ifdef REHEARSE_HAS_SIM
  sim::ProcessOptions how{.jobs = work.jobs, .check = work.check};
  how.result = [&](int i, const std::string& text) {
    add(read_row(text, fmt::format("point {}", i)));
  };
  how.failure = [&](int i, const std::string& message) {
    const Point& point = *todo[static_cast<std::size_t>(i)];
    add({.key = point.key, .values = point.values, .failed = message});
  };
  sim::in_processes(static_cast<int>(todo.size()), one, how);
#else
  for (std::size_t i = 0; i < todo.size(); ++i) add(read_row(one(static_cast<int>(i)), "point"));
#endif
}

std::string csv_of(const Sweep& sweep, const std::vector<Row>& results) {
  std::vector<std::string> figures;
  for (const Row& row : results)
    if (!row.metrics.is_null() && figures.empty())
      for (const auto& [name, value] : row.metrics.items()) figures.push_back(name);
  std::string out;
  for (const Axis& axis : sweep.axes) out += csv_cell(axis.name) + ",";
  for (const std::string& name : figures) out += name + ",";
  out += "refused,key\n";
  for (const Row& row : results) {
    for (const auto& [name, value] : row.values.items()) out += csv_cell(value) + ",";
    for (const std::string& name : figures)
      out += (row.metrics.is_null() ? "" : csv_cell(row.metrics.value(name, Json()))) + ",";
    out += csv_cell(row.refused.empty() ? row.failed : row.refused) + "," + row.key + "\n";
  }
  return out;
}

}  // namespace rehearse::study
