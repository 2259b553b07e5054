#include "models/hugging_face.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "engine/errors.h"

namespace rehearse {
namespace {

/// What stands between their tensor and ours.
struct Form {
  std::int64_t rows = 1, columns = 0;  // of our tensor as a matrix [out, in]; columns 0: a vector
  std::int64_t real_rows = 1;          // without padding
  bool transposed = false;
};

Form form_of(const ModelSpec& model, Id group, std::size_t index) {
  const TensorSpec& t = model.groups[group].tensors[index];
  const std::string_view name = t.name;
  Form form;
  std::int64_t elements = 1;
  for (const std::int64_t extent : t.shape) elements *= extent;
  // Projections are [hidden, heads, head_dim]: the rest of a matrix of heads is its rows.
  const bool output = t.split == 1 && t.shape[0] == model.hidden && t.shape.size() == 3;
  const bool matrix = t.decay;
  form.rows = !matrix ? elements : output ? t.shape[0] : elements / t.shape.back();
  form.columns = matrix ? elements / form.rows : 0;
  form.real_rows = form.rows;
  bool layer = false;
  for (const Segment& s : model.segments) {
    for (const Id id : s.groups) layer |= id == group && s.layer >= 0;
  }
  if (!layer && t.split == 0 && form.rows == model.padded_vocab) form.real_rows = model.vocab;
  form.transposed = model.family == Family::gpt && layer && matrix && name.find("c_") != name.npos;
  return form;
}

std::string text(at::IntArrayRef shape) {
  std::string result;
  for (const std::int64_t extent : shape) {
    result += (result.empty() ? "" : ", ") + std::to_string(extent);
  }
  return "[" + result + "]";
}

}  // namespace

std::vector<std::string> hugging_face_names(const ModelSpec& model, const TensorSpec& tensor) {
  std::vector<std::string> names = {tensor.name};
  const std::string prefix = "transformer.";
  if (tensor.name.starts_with(prefix)) names.push_back(tensor.name.substr(prefix.size()));
  const std::size_t norm = tensor.name.find("LayerNorm.");
  if (model.family == Family::bert && norm != std::string::npos) {
    const bool weight = tensor.name.ends_with("weight");
    names.push_back(tensor.name.substr(0, norm) + (weight ? "LayerNorm.gamma" : "LayerNorm.beta"));
  }
  return names;
}

std::vector<std::int64_t> hugging_face_shape(const ModelSpec& model, Id group, std::size_t tensor) {
  const Form form = form_of(model, group, tensor);
  if (form.columns == 0) return {form.real_rows};
  if (form.transposed) return {form.columns, form.real_rows};
  return {form.real_rows, form.columns};
}

at::Tensor to_hugging_face(const ModelSpec& model, Id group, std::size_t tensor,
                           const at::Tensor& full) {
  const Form form = form_of(model, group, tensor);
  if (form.columns == 0) return full.reshape({form.rows}).narrow(0, 0, form.real_rows).clone();
  const at::Tensor real = full.reshape({form.rows, form.columns}).narrow(0, 0, form.real_rows);
  return (form.transposed ? real.t() : real).clone(at::MemoryFormat::Contiguous);
}

at::Tensor from_hugging_face(const ModelSpec& model, Id group, std::size_t tensor,
                             const at::Tensor& theirs) {
  const TensorSpec& spec = model.groups[group].tensors[tensor];
  const std::vector<std::int64_t> shape = hugging_face_shape(model, group, tensor);
  if (theirs.sizes() != at::IntArrayRef(shape)) {
    throw InputError(fmt::format("{} has the shape {}, where model {} needs {}", spec.name,
                                 text(theirs.sizes()), model.name, text(shape)));
  }
  const Form form = form_of(model, group, tensor);
  at::Tensor ours = form.transposed ? theirs.t() : theirs;
  if (form.real_rows < form.rows) {
    std::vector<std::int64_t> padding = shape;
    padding[0] = form.rows - form.real_rows;
    ours = at::cat({ours, at::zeros(padding, ours.options())});
  }
  return ours.contiguous().view(spec.shape);
}

}  // namespace rehearse
