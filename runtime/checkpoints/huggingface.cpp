#include "runtime/checkpoints/huggingface.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "engine/base/errors.h"
#include "engine/base/files/json_reader.h"
#include "engine/tensors/tensor_parts.h"
#include "runtime/checkpoints/files/checkpoint_reader.h"
#include "runtime/checkpoints/files/safetensors.h"
#include "runtime/checkpoints/outer_names.h"
#include "runtime/executor/rank_memory.h"

namespace rehearse::runtime {
namespace {

at::Tensor wrap(std::span<const std::byte> bytes, const std::vector<std::int64_t>& shape,
                program::DType type) {
  // Not written to.
  return at::from_blob(const_cast<std::byte*>(bytes.data()), shape, scalar_type(type));
}

/// The tensors of a file, or of all files that an index names.
class WeightFiles {
 public:
  explicit WeightFiles(const std::string& path) : path_(path) {
    std::set<std::string> names = {std::filesystem::path(path).filename().string()};
    if (path.ends_with(".json")) names = files_of_index();
    for (const std::string& name : names) {
      files_.push_back(std::make_unique<SafetensorsFile>(
          (std::filesystem::path(path).parent_path() / name).string()));
      for (const auto& [tensor, entry] : files_.back()->tensors())
        if (!entries_.try_emplace(tensor, &entry).second)
          throw InputError(fmt::format("{}: tensor {} is in more than one file", path, tensor));
    }
  }
  /// Null: the files have none of the names.
  const TensorEntry* find(const std::vector<std::string>& names) const {
    for (const std::string& name : names)
      if (const auto found = entries_.find(name); found != entries_.end()) return found->second;
    return nullptr;
  }
  const std::map<std::string, const TensorEntry*>& entries() const { return entries_; }

 private:
  std::set<std::string> files_of_index() const {
    std::ifstream in(path_);
    const auto json = JsonReader::Json::parse(in, nullptr, false);
    if (json.is_discarded()) throw InputError(fmt::format("{}: it is not JSON", path_));
    JsonReader reader(json, path_);
    const JsonReader::Json& map = reader.at("weight_map");
    if (!map.is_object()) reader.fail("\"weight_map\" must be an object");
    std::set<std::string> names;
    for (const auto& [tensor, file] : map.items()) {
      if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos)
        reader.fail(fmt::format("weight_map: \"{}\": must be the name of a file", tensor));
      names.insert(file.get<std::string>());
    }
    return names;
  }

  std::string path_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_ = {};
  std::map<std::string, const TensorEntry*> entries_ = {};
};

/// Refuses a tensor that the model does not have: the file is of another model.
void refuse_extra(const WeightFiles& files, const std::string& path,
                  const model::ModelSpec& model) {
  std::set<std::string> known;
  for (const model::ParamGroup& group : model.groups)
    for (const model::TensorSpec& spec : group.tensors)
      for (const std::string& name : outer_names(model, spec.name)) known.insert(name);
  const TiedNames tied = tied_names(model);
  const std::vector<std::string> heads = outer_names(model, tied.head);
  for (const auto& [name, entry] : files.entries()) {
    if (known.count(name) > 0 || is_beside(model, name)) continue;
    const TensorEntry* const table = files.find(outer_names(model, tied.table));
    if (!model.tied || std::ranges::find(heads, name) == heads.end() || table == nullptr)
      throw InputError(
          fmt::format("{}: model {} has no tensor {}, which the file has", path, model.name, name));
    if (!std::equal(entry->data.begin(), entry->data.end(), table->data.begin(), table->data.end()))
      throw InputError(
          fmt::format("{}: its {} differs from its {}, and model {} has one table for "
                      "both: set tied = false in the model's file",
                      path, name, tied.table, model.name));
  }
}

}  // namespace

void export_weights(const std::string& checkpoint, const model::ModelSpec& model,
                    const std::string& path) {
  CheckpointReader reader(checkpoint);
  if (const std::string& saved = reader.manifest().model; saved != model.name)
    throw InputError(
        fmt::format("{}: the checkpoint is of model {}, not {}", checkpoint, saved, model.name));
  TensorTable table;
  std::map<std::string, at::Tensor> kept;
  for (const model::ParamGroup& group : model.groups)
    for (const model::TensorSpec& spec : group.tensors) {
      const program::DType type = reader.dtype_of(tensors::StorageKind::param, spec.name);
      const std::vector<std::byte> bytes =
          reader.mean(tensors::StorageKind::param, spec.name, 1, &spec, type);
      if (bytes.empty()) throw InputError(fmt::format("{}: it has no {}", checkpoint, spec.name));
      const OuterTensor outer = outer_tensor(model, spec);
      at::Tensor tensor = wrap(bytes, spec.shape, type);
      if (outer.padded) tensor = tensor.narrow(0, 0, model.vocab);
      if (outer.transposed) tensor = tensor.reshape({outer.shape[1], outer.shape[0]}).t();
      const std::string name = outer_names(model, spec.name).front();
      at::Tensor& whole = kept[name];
      if (!whole.defined()) whole = at::empty(outer.whole(), tensor.options());
      whole.narrow(0, outer.first_row, outer.shape[0]).copy_(tensor.reshape(outer.shape));
      table[name] = {.dtype = type,
                     .shape = outer.whole(),
                     .data = {static_cast<const std::byte*>(whole.data_ptr()), whole.nbytes()}};
    }
  write_safetensors(path, table, {{"format", "pt"}});
}

void import_weights(const std::string& path, const ExecutorContext& context, Executor& executor,
                    const std::function<void()>& alive) {
  const model::ModelSpec& model = context.model;
  const WeightFiles files(path);
  refuse_extra(files, path, model);
  const auto find = [&](const model::TensorSpec& spec) -> const TensorEntry& {
    const TensorEntry* const found = files.find(outer_names(model, spec.name));
    const std::string name = outer_names(model, spec.name).front();
    if (found == nullptr) throw InputError(fmt::format("{}: it has no tensor {}", path, name));
    const std::vector<std::int64_t> shape = outer_tensor(model, spec).whole();
    if (found->shape != shape)
      throw InputError(fmt::format("{}: {} has shape [{}], model {} needs [{}]", path, name,
                                   fmt::join(found->shape, ", "), model.name,
                                   fmt::join(shape, ", ")));
    return *found;
  };
  // All of them, so that every rank finds what is wrong with another rank's part.
  for (const model::ParamGroup& group : model.groups)
    for (const model::TensorSpec& spec : group.tensors) find(spec);
  const tensors::RankMap& map = executor.maps()[context.rank];
  for (Id s = 0; s < map.storages.size(); ++s) {
    const tensors::StorageKind kind = map.storages[s].kind;
    const program::Storage& storage = executor.role().storages[s];
    if (storage.life != program::Life::state || !tensors::is_weight(kind)) continue;
    for (const tensors::ParamPiece& piece : map.storages[s].pieces) {
      const model::ParamGroup& group = model.groups[piece.group];
      for (const tensors::TensorInterval& slot : tensors::tensors_of(group, map.tp_size)) {
        const std::int64_t begin = std::max(slot.begin, piece.offset);
        const std::int64_t end = std::min(slot.end, piece.offset + piece.end - piece.begin);
        if (begin >= end) continue;
        if (alive) alive();
        const model::TensorSpec& spec = *slot.spec;
        const TensorEntry& entry = find(spec);
        const OuterTensor outer = outer_tensor(model, spec);
        at::Tensor tensor = wrap(entry.data, entry.shape, entry.dtype)
                                .narrow(0, outer.first_row, outer.shape[0])
                                .to(scalar_type(storage.dtype));
        if (outer.transposed) tensor = tensor.t();
        if (outer.padded) {  // (vocab, ..) -> (padded vocab, ..); rows that are no token become 0
          const at::Tensor padded = at::zeros(spec.shape, tensor.options());
          padded.narrow(0, 0, model.vocab).copy_(tensor);
          tensor = padded;
        }
        tensor = tensor.contiguous();
        const bool split = group.split && spec.split >= 0;
        const auto width = static_cast<int>(size_of(storage.dtype));
        for (int age = 1; age <= storage.versions; ++age)
          executor.edit_state(s, 0, age, [&](std::span<std::byte> state) {
            copy_part(spec, split, map.tp_rank, map.tp_size, begin - slot.begin, end - slot.begin,
                      width, static_cast<std::byte*>(tensor.data_ptr()),
                      state.data() + (piece.begin + begin - piece.offset) * width,
                      tensors::Direction::to_part);
          });
      }
    }
  }
}

}  // namespace rehearse::runtime
