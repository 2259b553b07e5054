#include "runtime/checkpoints/huggingface.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <numeric>
#include <optional>
#include <vector>

#include "engine/base/errors.h"
#include "engine/tensors/tensor_parts.h"
#include "runtime/checkpoints/checkpoint_reader.h"
#include "runtime/checkpoints/safetensors.h"
#include "runtime/execution/rank_memory.h"

namespace rehearse::runtime {
namespace {

constexpr std::string_view prefix = "transformer.";

bool transposed(const std::string& name) {
  for (const char* layer :
       {"attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"})
    if (name.ends_with(layer)) return true;
  return false;
}
bool vocabulary(const std::string& name) {
  return name.ends_with("wte.weight") || name == "lm_head.weight";
}

void need_gpt(const model::ModelSpec& model) {
  if (model.family != model::Family::gpt)
    throw InputError(
        fmt::format("model {}: only GPT models have Hugging Face's GPT-2 layout", model.name));
}

/// Dimensions (out, in) of one of our matrices. c_attn's out is (q, k, v) x heads x head_dim and
/// attn.c_proj's in is heads x head_dim, in the same order as in Hugging Face's.
std::pair<std::int64_t, std::int64_t> matrix_of(const model::TensorSpec& spec) {
  const std::int64_t all = tensors::elements_of(spec);
  const std::int64_t out =
      spec.name.ends_with("c_attn.weight") ? all / spec.shape.back() : spec.shape.front();
  return {out, all / out};
}

/// The tensor's shape in Hugging Face's file.
std::vector<std::int64_t> outer_shape(const model::ModelSpec& model,
                                      const model::TensorSpec& spec) {
  if (vocabulary(spec.name)) return {model.vocab, spec.shape[1]};
  if (transposed(spec.name)) {
    const auto [out, in] = matrix_of(spec);
    return {in, out};
  }
  if (spec.name.ends_with("c_attn.bias")) return {tensors::elements_of(spec)};
  return spec.shape;
}

at::Tensor wrap(std::span<const std::byte> bytes, const std::vector<std::int64_t>& shape,
                program::DType type) {
  // Not written to.
  return at::from_blob(const_cast<std::byte*>(bytes.data()), shape, scalar_type(type));
}

}  // namespace

void export_gpt2(const std::string& checkpoint, const model::ModelSpec& model,
                 const std::string& path) {
  need_gpt(model);
  CheckpointReader reader(checkpoint);
  if (const std::string& saved = reader.manifest().model; saved != model.name)
    throw InputError(
        fmt::format("{}: the checkpoint is of model {}, not {}", checkpoint, saved, model.name));
  std::vector<at::Tensor> kept;
  TensorTable table;
  for (const model::ParamGroup& group : model.groups)
    for (const model::TensorSpec& spec : group.tensors) {
      const program::DType type = reader.dtype_of(tensors::StorageKind::param, spec.name);
      const std::vector<std::byte> bytes =
          reader.whole(tensors::StorageKind::param, spec.name, 1, 0, &spec, type);
      if (bytes.empty()) throw InputError(fmt::format("{}: it has no {}", checkpoint, spec.name));
      at::Tensor tensor = wrap(bytes, spec.shape, type);
      // (padded vocab, H) -> (vocab, H)
      if (vocabulary(spec.name)) tensor = tensor.narrow(0, 0, model.vocab);
      if (transposed(spec.name)) {
        const auto [out, in] = matrix_of(spec);
        tensor = tensor.reshape({out, in}).t();
      }
      kept.push_back(tensor.reshape(outer_shape(model, spec)).clone(at::MemoryFormat::Contiguous));
      table[spec.name] = {
          .dtype = type,
          .shape = kept.back().sizes().vec(),
          .data = {static_cast<const std::byte*>(kept.back().data_ptr()), kept.back().nbytes()}};
    }
  write_safetensors(path, table, {{"format", "pt"}});
}

void import_gpt2(const std::string& path, const ExecutorContext& context, Executor& executor) {
  const model::ModelSpec& model = context.model;
  need_gpt(model);
  const SafetensorsFile file(path);
  const auto find = [&](const model::TensorSpec& spec) -> const TensorEntry& {
    auto found = file.tensors().find(spec.name);
    if (found == file.tensors().end() && spec.name.starts_with(prefix))
      found = file.tensors().find(spec.name.substr(prefix.size()));
    if (found == file.tensors().end())
      throw InputError(fmt::format("{}: it has no tensor {}", path, spec.name));
    if (found->second.shape != outer_shape(model, spec))
      throw InputError(fmt::format("{}: {} has shape [{}], model {} needs [{}]", path, spec.name,
                                   fmt::join(found->second.shape, ", "), model.name,
                                   fmt::join(outer_shape(model, spec), ", ")));
    return found->second;
  };
  const tensors::RankMap& map = executor.maps()[context.rank];
  for (Id s = 0; s < map.storages.size(); ++s) {
    const tensors::StorageKind kind = map.storages[s].kind;
    const program::Storage& storage = executor.role().storages[s];
    if (storage.life != program::Life::state ||
        (kind != tensors::StorageKind::param && kind != tensors::StorageKind::master))
      continue;
    for (const tensors::ParamPiece& piece : map.storages[s].pieces) {
      const model::ParamGroup& group = model.groups[piece.group];
      for (const tensors::TensorInterval& slot : tensors::tensors_of(group, map.tp_size)) {
        const std::int64_t begin = std::max(slot.begin, piece.offset);
        const std::int64_t end = std::min(slot.end, piece.offset + piece.end - piece.begin);
        if (begin >= end) continue;
        const model::TensorSpec& spec = *slot.spec;
        const TensorEntry& entry = find(spec);
        at::Tensor tensor =
            wrap(entry.data, entry.shape, entry.dtype).to(scalar_type(storage.dtype));
        if (transposed(spec.name)) tensor = tensor.t();
        if (vocabulary(spec.name)) {
          // (vocab, H) -> (padded vocab, H); the rows that are no token become 0.
          const at::Tensor padded = at::zeros(spec.shape, tensor.options());
          padded.narrow(0, 0, model.vocab).copy_(tensor);
          tensor = padded;
        }
        tensor = tensor.contiguous();
        const bool split = group.split && spec.split >= 0;
        const auto width = static_cast<int>(size_of(storage.dtype));
        for (int age = 1; age <= storage.versions; ++age)
          copy_part(spec, split, map.tp_rank, map.tp_size, begin - slot.begin, end - slot.begin,
                    width, static_cast<std::byte*>(tensor.data_ptr()),
                    executor.state(s, 0, age).data() + (piece.begin + begin - piece.offset) * width,
                    tensors::Direction::to_part);
      }
    }
  }
}

}  // namespace rehearse::runtime
