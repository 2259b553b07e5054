// Functions that several fuzz targets use.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "study/prediction/study.h"
#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {
namespace {

namespace fs = std::filesystem;

/// A temporary folder, in memory (/dev/shm) if the machine has that.
class Folder {
 public:
  Folder() {
    const fs::path memory = "/dev/shm";
    std::error_code ignored;
    path = ((fs::is_directory(memory, ignored) ? memory : fs::temp_directory_path()) /
            "rehearse-fuzz-XXXXXX")
               .string();
    if (mkdtemp(path.data()) == nullptr) throw std::runtime_error(path + " cannot be made");
  }
  Folder(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  std::string path = {};
};

void expect_finite(const nlohmann::ordered_json& json, const std::string& where) {
  if (json.is_number_float())
    expect(std::isfinite(json.get<double>()), where + " is a finite number");
  if (json.is_structured())
    for (const auto& [key, value] : json.items())
      expect_finite(value, fmt::format("{}/{}", where, key));
}

}  // namespace

void expect(bool kept, const std::string& promise) {
  if (!kept) throw std::logic_error("not kept: " + promise);
}

const std::string& folder() {
  static const Folder one;
  return one.path;
}

std::string write_input(std::string_view input, const std::string& name) {
  const std::string path = folder() + "/" + name;
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(input.data(), static_cast<std::streamsize>(input.size()));
  out.close();
  if (!out) throw std::runtime_error(path + " cannot be written");
  return path;
}

void set_value(std::string& text, const std::string& before, const std::string& value) {
  const auto at = text.find(before);
  if (at == text.npos) return;
  const auto begin = at + before.size(), end = text.find('"', begin);
  if (end != text.npos) text.replace(begin, end - begin, value);
}

bool has_large(std::string_view text, const std::vector<std::string>& words, double most) {
  for (const std::string& word : words)
    for (auto at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
      const auto digits = text.find_first_not_of(" \t=\"'", at + word.size());
      if (digits == text.npos) continue;
      std::string number;
      for (const char c : text.substr(digits, 40))
        if (c != '_') number += c;
      // strtod reads hexadecimal numbers, but not TOML's binary and octal numbers.
      const bool binary = number.starts_with("0b"), octal = number.starts_with("0o");
      const double value =
          binary || octal
              ? static_cast<double>(std::strtoull(number.c_str() + 2, nullptr, binary ? 2 : 8))
              : std::strtod(number.c_str(), nullptr);
      if (value > most) return true;
    }
  return false;
}

bool is_small(const model::ModelSpec& model) { return model.layers <= 48; }

void simulate(const std::string& text, const std::vector<std::string>& overrides) {
  const job::Job job = job::parse_job(text, "job.toml", overrides);
  const auto work = static_cast<std::int64_t>(job.model.layers) * job.plan.schedule.micro_batches;
  if (job.plan.mesh.world_size() > 64 || !is_small(job.model) || work > 256) return;
  const study::StudyOptions options{
      .fidelity = study::Fidelity::analytic, .seeds = 2, .steps = {1, 2}};
  const nlohmann::ordered_json json = to_json(study::predict(job, options));
  expect_finite(json, "");
  expect(nlohmann::ordered_json::parse(json.dump(2)) == json, "the JSON of simulate parses");
}

void simulate_methods(const std::string& keys) {
  for (const char* method : {"ddp", "zero3", "megatron"})
    accepts([&] {
      simulate(fmt::format(R"({}
cluster = {{ name = "dgx-h100:1", world_size = 4 }}
method.name = "{}"
train.global_batch = 8
)",
                           keys, method));
    });
}

}  // namespace rehearse::fuzz
