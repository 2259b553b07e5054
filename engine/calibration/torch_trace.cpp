#include "engine/calibration/torch_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "engine/base/errors.h"
#include "engine/base/numbers/median.h"
#include "engine/calibration/file_form.h"
#include "engine/costs/network/ping_pong.h"

namespace rehearse::calibration {
namespace {

using Json = nlohmann::json;

constexpr double pause = 20;  // medians
constexpr double microsecond = 1e-6;

struct Span {
  double start = 0, end = 0;  // microseconds
  bool holds(double time) const { return start <= time && time < end; }
};

enum class Phase { forward, backward, update };

struct Call {
  double start = 0;
  std::string thread = {};
  bool launches = false;  // otherwise it waits for the device
};

struct Kernel {
  Span span = {};
  std::string name = {};
  bool copies = false;  // memcpy or memset, which no model counts as a kernel
  std::int64_t correlation = -1, external = -1;
};

std::string text(const Json& event, const char* key) {
  const auto it = event.find(key);
  return it != event.end() && it->is_string() ? it->get<std::string>() : std::string();
}

double number(const Json& object, const char* key, double fallback) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : fallback;
}

std::int64_t id(const Json& args, const char* key) {
  const auto it = args.find(key);
  return it != args.end() && it->is_number_integer() ? it->get<std::int64_t>() : -1;
}

bool has(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

/// Calls after which the host has waited for the device.
bool waits(const std::string& name) {
  return has(name, "Synchronize") || has(name, "Malloc") || has(name, "Free") ||
         (has(name, "Memcpy") && !has(name, "Async"));
}

std::optional<program::DType> dtype_of(const std::string& type) {
  if (type == "float") return program::DType::f32;
  if (type == "c10::Half") return program::DType::f16;
  if (type == "c10::BFloat16") return program::DType::bf16;
  return {};
}

/// The product that an operator computes; none: it is no product, or its shapes were not recorded.
std::optional<TracedProduct> product_of(const std::string& name, const Json& args) {
  const bool adds = name == "aten::addmm" || name == "aten::baddbmm";  // to its first operand
  const bool batched = name == "aten::bmm" || name == "aten::baddbmm";
  if (!adds && !batched && name != "aten::mm") return {};
  const auto dims = args.find("Input Dims"), types = args.find("Input type");
  const std::size_t left = adds ? 1 : 0;
  if (dims == args.end() || types == args.end() || !dims->is_array() || !types->is_array() ||
      dims->size() < left + 2 || types->size() <= left || !(*types)[left].is_string())
    return {};
  const auto sizes = [&](std::size_t operand) {
    std::vector<double> out;
    for (const Json& size : (*dims)[operand])
      if (size.is_number() && size.get<double>() > 0) out.push_back(size.get<double>());
    return out;
  };
  const std::vector<double> a = sizes(left), b = sizes(left + 1);
  const std::size_t rank = batched ? 3 : 2;
  const auto dtype = dtype_of((*types)[left].get<std::string>());
  if (!dtype || a.size() != rank || b.size() != rank || a.back() != b[rank - 2]) return {};
  return TracedProduct{.batch = batched ? a[0] : 1,
                       .rows = a[rank - 2],
                       .columns = b[rank - 1],
                       .inner = a[rank - 1],
                       .dtype = *dtype};
}

Gaps gaps_of(std::vector<double> seconds) {
  Gaps out{.median = median(seconds)};
  const std::size_t all = seconds.size();
  std::erase_if(seconds, [&](double gap) { return gap > pause * out.median; });
  out.count = static_cast<int>(seconds.size());
  out.pauses = static_cast<int>(all - seconds.size());
  for (const double gap : seconds) out.mean += gap / out.count;
  double squares = 0;
  for (const double gap : seconds) squares += std::pow(gap - out.mean, 2);
  if (out.count > 1) out.error = std::sqrt(squares / (out.count - 1) / out.count);
  return out;
}

class TraceReader {
 public:
  void read(const Json& event) {
    if (!event.is_object() || text(event, "ph") != "X") return;
    const auto found = event.find("args");
    const Json args = found != event.end() && found->is_object() ? *found : Json::object();
    const std::string category = text(event, "cat"), name = text(event, "name");
    const double start = number(event, "ts", 0);
    const Span span{start, start + number(event, "dur", 0)};
    const auto tid = event.find("tid");
    const std::string thread = tid == event.end() ? "" : tid->dump();
    if (category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset") {
      const auto pid = event.find("pid");  // the device; the thread is the stream
      streams_[{pid == event.end() ? "" : pid->dump(), thread}].push_back(
          {span, name, category != "kernel", id(args, "correlation"), id(args, "External id")});
    } else if (category == "cuda_runtime" || category == "cuda_driver") {
      if (has(name, "Launch")) {
        launched_[id(args, "correlation")] = start;
        launchers_[id(args, "correlation")] = id(args, "External id");
      }
      if (has(name, "LaunchKernel")) calls_.push_back({start, thread, true});
      if (waits(name)) calls_.push_back({start, thread, false});
    } else if (category == "cpu_op") {
      if (name.starts_with("autograd::engine::evaluate_function")) backward_.insert(thread);
      if (const auto product = product_of(name, args))
        products_[id(args, "External id")] = *product;
    } else if (category == "user_annotation") {
      if (name.starts_with("ProfilerStep#")) steps_.push_back(span);
      if (name.starts_with("Optimizer.")) updates_.push_back(span);
    }
  }

  TorchTrace done(const std::string& file) {
    TorchTrace out;
    for (auto& [stream, kernels] : streams_) {
      std::sort(kernels.begin(), kernels.end(),
                [](const Kernel& a, const Kernel& b) { return a.span.start < b.span.start; });
      for (const Kernel& k : kernels) out.kernels += k.copies ? 0 : 1;
    }
    if (out.kernels == 0)
      throw InputError(
          fmt::format("{}: no event of category \"kernel\": the trace has no kernel "
                      "of a GPU; profile with ProfilerActivity.CUDA",
                      file));
    count_steps(out);
    host_gaps(out);
    out.between_kernels = gaps_of(device_gaps());
    out.products = products();
    return out;
  }

 private:
  void count_steps(TorchTrace& out) const {
    out.steps = static_cast<int>(steps_.size());
    for (const Span& step : steps_)
      out.step_seconds += (step.end - step.start) * microsecond / out.steps;
    for (const auto& [stream, kernels] : streams_)
      for (const Kernel& k : kernels)
        if (const auto call = launched_.find(k.correlation);
            call != launched_.end() && !k.copies && step_of(call->second) >= 0)
          out.kernels_per_step += 1.0 / out.steps;
  }
  int step_of(double time) const {
    for (std::size_t i = 0; i < steps_.size(); ++i)
      if (steps_[i].holds(time)) return static_cast<int>(i);
    return -1;
  }
  Phase phase_of(const Call& call) const {
    if (backward_.contains(call.thread)) return Phase::backward;
    for (const Span& update : updates_)
      if (update.holds(call.start)) return Phase::update;
    return Phase::forward;
  }
  /// Between launches that follow each other in the whole process, in one thread, phase and step.
  void host_gaps(TorchTrace& out) {
    std::sort(calls_.begin(), calls_.end(),
              [](const Call& a, const Call& b) { return a.start < b.start; });
    std::map<Phase, std::vector<double>> gaps;
    for (std::size_t i = 1; i < calls_.size(); ++i) {
      const Call &a = calls_[i - 1], &b = calls_[i];
      if (!a.launches || !b.launches || a.thread != b.thread || phase_of(a) != phase_of(b) ||
          step_of(a.start) != step_of(b.start))
        continue;
      gaps[phase_of(b)].push_back((b.start - a.start) * microsecond);
    }
    out.forward = gaps_of(gaps[Phase::forward]);
    out.backward = gaps_of(gaps[Phase::backward]);
  }
  std::vector<double> device_gaps() const {
    std::vector<double> out;
    for (const auto& [stream, kernels] : streams_)
      for (std::size_t i = 1; i < kernels.size(); ++i) {
        const Kernel &a = kernels[i - 1], &b = kernels[i];
        const auto call = launched_.find(b.correlation);
        if (a.copies || b.copies || call == launched_.end() || call->second >= a.span.end) continue;
        out.push_back(std::max(0.0, b.span.start - a.span.end) * microsecond);
      }
    return out;
  }
  std::vector<TracedProduct> products() const {
    std::map<std::int64_t, TracedProduct> calls;  // by operator, in order
    for (const auto& [stream, kernels] : streams_)
      for (const Kernel& k : kernels) {
        const auto launcher = launchers_.find(k.correlation);
        const bool stated = launcher != launchers_.end() && launcher->second >= 0;
        const std::int64_t operation = stated ? launcher->second : k.external;
        const auto product = products_.find(operation);
        if (k.copies || product == products_.end()) continue;
        TracedProduct& one = calls.try_emplace(operation, product->second).first->second;
        one.seconds += (k.span.end - k.span.start) * microsecond;
        one.tf32 = one.tf32 || has(k.name, "tf32");
      }
    using Size = std::tuple<double, double, double, double, program::DType, bool>;
    std::map<Size, std::vector<double>> seconds;
    std::vector<TracedProduct> out;
    for (const auto& [operation, one] : calls) {
      std::vector<double>& same =
          seconds[{one.batch, one.rows, one.columns, one.inner, one.dtype, one.tf32}];
      if (same.empty()) out.push_back(one);
      same.push_back(one.seconds);
    }
    for (TracedProduct& one : out) {
      const std::vector<double>& same =
          seconds[{one.batch, one.rows, one.columns, one.inner, one.dtype, one.tf32}];
      one.seconds = median(same);
      one.calls = static_cast<int>(same.size());
    }
    std::erase_if(out, [](const TracedProduct& one) { return one.seconds <= 0; });
    return out;
  }

  std::map<std::pair<std::string, std::string>, std::vector<Kernel>> streams_ = {};
  std::map<std::int64_t, double> launched_ = {};         // when, by correlation
  std::map<std::int64_t, std::int64_t> launchers_ = {};  // operators, by correlation
  std::vector<Call> calls_ = {};
  std::set<std::string> backward_ = {};  // threads
  std::vector<Span> steps_ = {}, updates_ = {};
  std::map<std::int64_t, TracedProduct> products_ = {};  // by external id
};

}  // namespace

TorchTrace read_torch_trace(const std::string& text_of_file, const std::string& file) {
  Json json;
  try {
    json = Json::parse(text_of_file);
  } catch (const Json::exception&) {  // form_of says what is wrong
  }
  if (!json.is_object() || !json.contains("traceEvents"))
    throw InputError(
        fmt::format("{}: is no trace of PyTorch's profiler, which is a JSON object with a list "
                    "\"traceEvents\"; it is {}",
                    file, form_of(text_of_file).what));
  const auto events = json.find("traceEvents");
  if (!events->is_array())
    throw InputError(fmt::format(
        "{}: \"traceEvents\" is no list; in a trace of PyTorch's profiler it lists events", file));
  TraceReader reader;
  for (const Json& event : *events) reader.read(event);
  TorchTrace out = reader.done(file);
  if (const auto devices = json.find("deviceProperties");
      devices != json.end() && devices->is_array() && !devices->empty() &&
      (*devices)[0].is_object())
    out.device = text((*devices)[0], "name");
  return out;
}

}  // namespace rehearse::calibration
