#include "runtime/data/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/files/files.h"
#include "engine/base/files/json_text.h"
#include "engine/base/fnv.h"
#include "runtime/data/permute.h"

namespace rehearse::runtime {
namespace {

namespace fs = std::filesystem;

// Keys of separate streams of random numbers from one seed.
constexpr std::uint64_t order_stream = 0x6f72646572, mask_stream = 0x6d61736b,
                        validation_stream = 0x76616c;

std::vector<std::string> files_of(const std::string& folder, std::string_view side) {
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".bin" && name.find(side) != std::string::npos)
      files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Shards open_training(const DataSettings& settings) {
  std::error_code error;
  if (!fs::is_directory(settings.path, error))
    throw InputError(
        fmt::format("{} = \"{}\": no such folder; make one with data/prepare.py TEXT -o {}",
                    settings.key, settings.path, settings.path));
  const std::vector<std::string> files = files_of(settings.path, "train");
  if (files.empty())
    throw InputError(fmt::format(
        "{} = \"{}\": the folder has no token shard named *train*.bin (llm.c's format); "
        "data/prepare.py makes them",
        settings.key, settings.path));
  return Shards(files, settings.seq_len);
}

/// The manifest that data/prepare.py writes; empty when the shards come from elsewhere.
nlohmann::json manifest_of(const std::string& folder) {
  const fs::path path = fs::path(folder) / "manifest.json";
  if (!fs::is_regular_file(path)) return {};
  return parse_json(read_file(path.string()), path.string());
}

std::uint64_t hash_of_shards(const std::string& folder, const nlohmann::json& manifest) {
  Fnv hash;
  for (const std::string& path : files_of(folder, "train")) {
    hash.add(fs::path(path).filename().string());
    hash.add(static_cast<std::uint64_t>(fs::file_size(path)));
  }
  const nlohmann::json::json_pointer shards("/train/shards");
  if (manifest.contains(shards)) hash.add(manifest[shards].dump());
  return hash.value();
}

}  // namespace

Data::Data(DataSettings settings)
    : settings_(std::move(settings)),
      drawn_(settings_.global_batch),
      train_(open_training(settings_)) {
  for (const auto& [begin, end] : settings_.left_out) drawn_ += end - begin;
  if (const std::vector<std::string> files = files_of(settings_.path, "val"); !files.empty())
    validation_ = std::make_unique<Shards>(files, settings_.seq_len);
  const nlohmann::json manifest = manifest_of(settings_.path);
  if (!settings_.clients.samples.empty())
    sources_.emplace(settings_.clients, files_of(settings_.path, "train"), train_, manifest,
                     fmt::format("{} = \"{}\"", settings_.key, settings_.path),
                     hash(settings_.seed, order_stream));
  if (const nlohmann::json::json_pointer at("/tokenizer/sha256");
      manifest.contains(at) && manifest[at].is_string())
    tokenizer_ = manifest[at].get<std::string>();
  shards_hash_ = hash_of_shards(settings_.path, manifest);
  if (const auto vocab = manifest.find("vocab_size");
      manifest.is_object() && vocab != manifest.end() && vocab->is_number_integer() &&
      vocab->get<std::int64_t>() > settings_.vocab)
    throw InputError(fmt::format(
        "{} = \"{}\": its tokenizer has {} entries, the model's vocabulary {}; choose a "
        "model with a larger vocabulary or data/prepare.py --vocab-size {}",
        settings_.key, settings_.path, vocab->get<std::int64_t>(), settings_.vocab,
        settings_.vocab));
  if (settings_.objective == Objective::masked) {
    const nlohmann::json special =
        manifest.is_object() ? manifest.value("special_token_ids", nlohmann::json::object())
                             : nlohmann::json::object();
    if (!special.is_object() || !special.contains("mask") || !special["mask"].is_number_integer())
      throw InputError(fmt::format(
          "{} = \"{}\": a masked language model needs the mask token's id "
          "(manifest.json, special_token_ids.mask); make the data with data/prepare.py --masked-lm",
          settings_.key, settings_.path));
    mask_token_ = special["mask"].get<std::int64_t>();
  }
}

std::int64_t Data::validation_windows() const {
  return validation_ == nullptr ? 0 : validation_->windows();
}

void Data::fill(const Shards& shards, std::int64_t window, std::uint64_t key, std::int64_t* tokens,
                std::int64_t* labels) const {
  const std::span<const std::uint16_t> text = shards.window(window);
  const int length = settings_.seq_len;
  for (const std::uint16_t token : text)
    if (token >= settings_.vocab)
      throw InputError(fmt::format("{} = \"{}\": token {} is outside the model's vocabulary of {}",
                                   settings_.key, settings_.path, token, settings_.vocab));
  if (settings_.objective == Objective::causal) {
    std::copy_n(text.begin(), length, tokens);
    std::copy_n(text.begin() + 1, length, labels);
    return;
  }
  for (int i = 0; i < length; ++i) {
    const std::uint64_t draw = hash(key, i);
    tokens[i] = text[i];
    labels[i] = no_label;
    if (draw % 100 >= 15) continue;
    labels[i] = text[i];
    const std::uint64_t kind = (draw >> 32) % 10;
    if (kind < 8)
      tokens[i] = mask_token_;
    else if (kind == 8)
      tokens[i] = static_cast<std::int64_t>(hash(draw, 1) % settings_.vocab);
  }
}

std::int64_t Data::labels_of(std::uint64_t key) const {
  if (settings_.objective == Objective::causal) return settings_.seq_len;
  std::int64_t count = 0;
  for (int i = 0; i < settings_.seq_len; ++i) count += hash(key, i) % 100 < 15;
  return count;
}

std::int64_t Data::sample_at(std::int64_t step, std::int64_t place) const {
  for (const auto& [begin, end] : settings_.left_out)
    if (place >= begin) place += end - begin;
  return step * drawn_ + place;
}

void Data::training(std::int64_t step, std::int64_t first, int samples, std::int64_t* tokens,
                    std::int64_t* labels) const {
  const std::int64_t windows = train_.windows();
  for (int i = 0; i < samples; ++i) {
    const std::int64_t sample = sample_at(step, first + i);
    const std::uint64_t order = hash(settings_.seed, order_stream);
    const std::int64_t window =
        sources_ ? sources_->window(step, first + i)
                 : permute(sample % windows, windows, hash(order, sample / windows));
    fill(train_, window, hash(hash(settings_.seed, mask_stream), sample),
         tokens + std::int64_t{i} * settings_.seq_len,
         labels + std::int64_t{i} * settings_.seq_len);
  }
}

void Data::validation(std::int64_t first, int samples, std::int64_t* tokens,
                      std::int64_t* labels) const {
  for (int i = 0; i < samples; ++i)
    fill(*validation_, (first + i) % validation_->windows(), hash(validation_stream, first + i),
         tokens + std::int64_t{i} * settings_.seq_len,
         labels + std::int64_t{i} * settings_.seq_len);
}

std::vector<std::int64_t> Data::drawn_clients(std::int64_t step) const {
  return sources_ ? sources_->drawn(step) : std::vector<std::int64_t>{};
}

std::int64_t Data::training_labels(std::int64_t step) const {
  return training_labels(step, 0, settings_.global_batch);
}

std::int64_t Data::training_labels(std::int64_t step, std::int64_t first,
                                   std::int64_t samples) const {
  if (settings_.objective == Objective::causal) return samples * settings_.seq_len;
  std::int64_t count = 0;
  for (std::int64_t i = first; i < first + samples; ++i)
    count += labels_of(hash(hash(settings_.seed, mask_stream), sample_at(step, i)));
  return std::max<std::int64_t>(count, 1);
}

std::int64_t Data::validation_labels(std::int64_t first, std::int64_t samples) const {
  std::int64_t count = 0;
  for (std::int64_t i = first; i < first + samples; ++i)
    count += labels_of(hash(validation_stream, i));
  return std::max<std::int64_t>(count, 1);
}

}  // namespace rehearse::runtime
