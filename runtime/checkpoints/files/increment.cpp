#include "runtime/checkpoints/files/increment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "engine/base/errors.h"
#include "engine/job/survival.h"
#include "runtime/kernels/floats.h"

namespace rehearse::runtime {
namespace {

using program::DType;
using tensors::StorageKind;

constexpr std::size_t chunk = job::chunk_bytes;

std::size_t chunks_in(std::size_t bytes) { return (bytes + chunk - 1) / chunk; }

template <class T>
std::span<T> nth_chunk(std::span<T> bytes, std::size_t n) {
  return bytes.subspan(n * chunk, std::min(chunk, bytes.size() - n * chunk));
}

bool can_be_quantised(const tensors::PartKey& key, DType dtype, int bits) {
  const bool kind = key.kind == StorageKind::param || key.kind == StorageKind::master ||
                    key.kind == StorageKind::moment1;
  const bool number = dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
  return kind && number &&
         job::bytes_of_difference(static_cast<int>(size_of(dtype)), bits) <
             static_cast<double>(size_of(dtype));
}

/// The elements of a chunk as fp32.
std::vector<float> floats_of(std::span<const std::byte> bytes, DType dtype) {
  std::vector<float> out(bytes.size() / static_cast<std::size_t>(size_of(dtype)));
  const float* const values =
      as_f32(bytes.data(), dtype, 0, static_cast<std::int64_t>(out.size()), out.data());
  if (values != out.data()) std::copy_n(values, out.size(), out.data());
  return out;
}

void store(const std::vector<float>& values, DType dtype, std::span<std::byte> to) {
  if (dtype == DType::f32)
    std::memcpy(to.data(), values.data(), to.size());
  else
    store_f32(values.data(), static_cast<std::int64_t>(values.size()), to.data(), dtype, 0);
}

/// The product is exact in double, so every processor gets the same bits.
float moved(float base, int code, float scale) {
  const double from = std::signbit(scale) ? 0 : double{base};
  return static_cast<float>(from + double(code) * std::abs(double{scale}));
}

/// Codes of a chunk, with what they make of the base.
struct Quantised {
  float scale = 0;
  std::vector<int> codes = {};
  double error = 0;
  bool finite = true;
};

Quantised quantise(std::span<const std::byte> now_bytes, std::span<const std::byte> base_bytes,
                   DType dtype, int bits) {
  const std::vector<float> now = floats_of(now_bytes, dtype), base = floats_of(base_bytes, dtype);
  double difference = 0, value = 0;
  Quantised out;
  for (std::size_t i = 0; i < now.size(); ++i) {
    out.finite = out.finite && std::isfinite(now[i]) && std::isfinite(base[i]);
    difference = std::max(difference, std::abs(double{now[i]} - double{base[i]}));
    value = std::max(value, std::abs(double{now[i]}));
  }
  if (!out.finite) return out;
  const int largest = (1 << (bits - 1)) - 1;
  const bool anew = value < difference;  // the numbers themselves need the finer scale
  out.scale = static_cast<float>(anew ? -value / largest : difference / largest);
  std::vector<float> read(now.size());
  for (std::size_t i = 0; i < now.size(); ++i) {
    const double step = std::abs(double{out.scale}), from = anew ? 0 : double{base[i]};
    const double code = step > 0 ? std::round((double{now[i]} - from) / step) : 0;
    out.codes.push_back(static_cast<int>(std::clamp(code, -double(largest), double(largest))));
    read[i] = moved(base[i], out.codes.back(), out.scale);
  }
  std::vector<std::byte> rounded(now_bytes.size());
  store(read, dtype, rounded);
  read = floats_of(rounded, dtype);
  for (std::size_t i = 0; i < now.size(); ++i) {
    out.error = std::max(out.error, std::abs(double{read[i]} - double{now[i]}));
    out.finite = out.finite && std::isfinite(read[i]);
  }
  return out;
}

template <class T>
void append(std::vector<std::byte>& to, T value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

double largest_of(std::span<const std::byte> bytes, DType dtype) {
  double most = 0;
  for (std::size_t n = 0; n < chunks_in(bytes.size()); ++n)
    for (const float value : floats_of(nth_chunk(bytes, n), dtype))
      most = std::max(most, std::abs(double{value}));
  return most;
}

/// Adds the entry NAME, whose memory `kept` gets.
void put(TensorTable& table, std::list<std::vector<std::byte>>& kept, const std::string& name,
         DType dtype, std::vector<std::byte> bytes) {
  kept.push_back(std::move(bytes));
  table[name] = {.dtype = dtype,
                 .shape = {static_cast<std::int64_t>(kept.back().size()) / size_of(dtype)},
                 .data = kept.back()};
}

/// The differences of changed chunks; nothing when a value is not finite. Adds the error to
/// `change`.
bool put_quantised(const tensors::PartKey& key, DType dtype, std::span<const std::byte> now,
                   std::span<const std::byte> base, const std::vector<std::int32_t>& changed,
                   int bits, TensorTable& table, std::list<std::vector<std::byte>>& kept,
                   Change& change) {
  std::vector<std::byte> codes, scales;
  double error = 0;
  for (const std::int32_t n : changed) {
    const auto at = static_cast<std::size_t>(n);
    const Quantised one = quantise(nth_chunk(now, at), nth_chunk(base, at), dtype, bits);
    if (!one.finite) return false;
    for (const int code : one.codes)
      bits == 8 ? append(codes, static_cast<std::int8_t>(code))
                : append(codes, static_cast<std::int16_t>(code));
    append(scales, one.scale);
    error = std::max(error, one.error);
  }
  put(table, kept, key.text() + "#codes", DType::u8, std::move(codes));
  put(table, kept, key.text() + "#scales", DType::f32, std::move(scales));
  change.error = error;
  if (error > 0) change.relative_error = error / largest_of(now, dtype);
  return true;
}

const TensorEntry* find(const TensorTable& table, const std::string& name) {
  const auto found = table.find(name);
  return found == table.end() ? nullptr : &found->second;
}

/// Reads what an incremental checkpoint has of a part.
class Reading {
 public:
  Reading(const tensors::PartKey& key, const TensorEntry& whole, const TensorTable& table,
          const std::string& path)
      : name_(key.text()), path_(path), dtype_(whole.dtype), table_(table) {
    bytes_.assign(whole.data.begin(), whole.data.end());
  }

  std::vector<std::byte> result() {
    const TensorEntry* const exact = find(table_, name_);
    const TensorEntry* const codes = find(table_, name_ + "#codes");
    const TensorEntry* const scales = find(table_, name_ + "#scales");
    const TensorEntry* const listed = find(table_, name_ + "#chunks");
    if ((codes == nullptr) != (scales == nullptr) || (exact != nullptr && codes != nullptr) ||
        (listed != nullptr && exact == nullptr && codes == nullptr))
      fail("its entries contradict each other");
    if (exact == nullptr && codes == nullptr) return std::move(bytes_);
    read_chunks(listed);
    exact != nullptr ? copy(*exact) : move(*codes, *scales);
    return std::move(bytes_);
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    throw InputError(fmt::format("{}: what has changed of {}: {}", path_, name_, what));
  }

  void read_chunks(const TensorEntry* listed) {
    const std::size_t count = chunks_in(bytes_.size());
    if (listed == nullptr) {
      for (std::size_t n = 0; n < count; ++n) chunks_.push_back(n);
    } else {
      if (listed->dtype != DType::i32) fail("its list of chunks has another type");
      std::vector<std::int32_t> numbers(listed->data.size() / sizeof(std::int32_t));
      std::memcpy(numbers.data(), listed->data.data(), numbers.size() * sizeof(std::int32_t));
      std::int64_t last = -1;
      for (const std::int32_t n : numbers) {
        if (n <= last || static_cast<std::size_t>(n) >= count)
          fail("its list of chunks does not rise, or has one that the part has not");
        chunks_.push_back(static_cast<std::size_t>(n));
        last = n;
      }
    }
    for (const std::size_t n : chunks_) changed_ += nth_chunk(std::span(bytes_), n).size();
  }

  void copy(const TensorEntry& exact) {
    if (exact.dtype != dtype_ || exact.data.size() != changed_)
      fail("its length or type is another one than its chunks have");
    const std::byte* from = exact.data.data();
    for (const std::size_t n : chunks_) {
      const auto to = nth_chunk(std::span(bytes_), n);
      std::memcpy(to.data(), from, to.size());
      from += to.size();
    }
  }

  void move(const TensorEntry& codes, const TensorEntry& scales) {
    const auto width = static_cast<std::size_t>(size_of(dtype_));
    if (dtype_ != DType::f32 && dtype_ != DType::bf16 && dtype_ != DType::f16)
      fail("differences of what is no floating-point number");
    const std::size_t elements = changed_ / width;
    const bool wide = codes.data.size() == 2 * elements;
    if (codes.dtype != DType::u8 || (!wide && codes.data.size() != elements) ||
        scales.dtype != DType::f32 || scales.data.size() != chunks_.size() * sizeof(float))
      fail("its differences have another length or type than its chunks have");
    const std::byte *code = codes.data.data(), *scale = scales.data.data();
    for (const std::size_t n : chunks_) {
      const auto to = nth_chunk(std::span(bytes_), n);
      std::vector<float> values = floats_of(to, dtype_);
      const auto factor = next<float>(scale);
      for (float& value : values)
        value = moved(value, wide ? int{next<std::int16_t>(code)} : int{next<std::int8_t>(code)},
                      factor);
      store(values, dtype_, to);
    }
  }

  template <class T>
  static T next(const std::byte*& from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    from += sizeof value;
    return value;
  }

  const std::string name_;
  const std::string& path_;
  DType dtype_;
  const TensorTable& table_;
  std::vector<std::byte> bytes_ = {};
  std::vector<std::size_t> chunks_ = {};  // that have changed
  std::size_t changed_ = 0;               // their bytes
};

}  // namespace

void IncrementBase::keep(const tensors::PartKey& key, DType dtype, std::span<const std::byte> bytes,
                         int bits) {
  Part& part = parts[key];
  for (std::size_t n = 0; n < chunks_in(bytes.size()); ++n)
    part.sums.push_back(checksum_of(nth_chunk(bytes, n)));
  if (can_be_quantised(key, dtype, bits)) part.bytes.assign(bytes.begin(), bytes.end());
}

void Change::add(const Change& other) {
  bytes += other.bytes;
  changed_bytes += other.changed_bytes;
  error = std::max(error, other.error);
  relative_error = std::max(relative_error, other.relative_error);
}

Change add_changes(const tensors::PartKey& key, DType dtype, std::span<const std::byte> now,
                   const IncrementBase::Part& base, int bits, TensorTable& table,
                   std::list<std::vector<std::byte>>& kept) {
  Change change{.bytes = static_cast<std::int64_t>(now.size())};
  std::vector<std::int32_t> changed;
  for (std::size_t n = 0; n < base.sums.size(); ++n) {
    const auto bytes = nth_chunk(now, n);
    if (checksum_of(bytes) == base.sums[n]) continue;
    changed.push_back(static_cast<std::int32_t>(n));
    change.changed_bytes += static_cast<std::int64_t>(bytes.size());
  }
  if (changed.empty()) return change;
  const bool all = changed.size() == base.sums.size();
  if (!all) {
    std::vector<std::byte> numbers;
    for (const std::int32_t n : changed) append(numbers, n);
    put(table, kept, key.text() + "#chunks", DType::i32, std::move(numbers));
  }
  if (!base.bytes.empty() &&
      put_quantised(key, dtype, now, base.bytes, changed, bits, table, kept, change))
    return change;
  if (all) {
    table[key.text()] = {.dtype = dtype, .shape = {key.end - key.begin}, .data = now};
    return change;
  }
  std::vector<std::byte> exact;
  exact.reserve(static_cast<std::size_t>(change.changed_bytes));
  for (const std::int32_t n : changed) {
    const auto bytes = nth_chunk(now, static_cast<std::size_t>(n));
    exact.insert(exact.end(), bytes.begin(), bytes.end());
  }
  put(table, kept, key.text(), dtype, std::move(exact));
  return change;
}

std::vector<std::byte> with_changes(const tensors::PartKey& key, const TensorEntry& whole,
                                    const TensorTable& table, const std::string& path) {
  return Reading(key, whole, table, path).result();
}

}  // namespace rehearse::runtime
