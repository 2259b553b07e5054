#include "engine/software/software.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <ranges>
#include <utility>

#include "engine/base/choose.h"
#include "engine/base/files/data_dir.h"
#include "engine/base/files/file_kinds.h"
#include "engine/base/fnv.h"
#include "engine/base/names.h"
#include "engine/base/numbers/limits.h"

namespace rehearse::software {
namespace {

std::vector<HostWait> read_waits(const Config& c, const std::vector<HostWait>& present) {
  const std::vector<HostWait> waits = choose_all<HostWait>(c, "waits");
  return c.has("waits") ? waits : present;
}

/// The keys of [communication] on top of `present`. A library's name replaces its protocols.
Library read_communication(const Config& c, const Library& present) {
  const std::string name = c.text("library", present.name);
  Library out = present;
  if (name != present.name) {
    try {
      out = load_library(name);
    } catch (const InputError& error) {
      throw c.error("library", error.what());
    }
  }
  out.on_device = c.flag("on_device", present.on_device);
  out.launch = c.seconds("launch", present.launch, limits::latency);
  out.in_node = c.seconds("in_node", present.in_node, limits::latency);
  out.across = c.seconds("across", present.across, limits::latency);
  return out;
}

}  // namespace

bool Software::waits_for(HostWait what) const {
  return std::find(waits.begin(), waits.end(), what) != waits.end();
}

bool Software::busy_host() const {
  return forward_issue.value > 0 || backward_issue.value > 0 || microbatch.value > 0 ||
         update.value > 0 || transfer.value > 0;
}

std::string Measured::outside(const Job& job) const {
  if (most_ranks == 0) return "no step times were measured with it";
  const auto range = [](const char* what, double value, std::int64_t least, std::int64_t most) {
    return value < static_cast<double>(least) || value > static_cast<double>(most)
               ? fmt::format("{} {:.0f} is outside of what was measured, {} to {}", what, value,
                             least, most)
               : "";
  };
  const auto among = [](const char* what, const std::string& asked,
                        const std::vector<std::string>& known) {
    return known.empty() || std::ranges::find(known, asked) != known.end()
               ? ""
               : fmt::format("{} {} were not measured, only {}", what, asked,
                             fmt::join(known, ", "));
  };
  for (const std::string& why :
       {range("hidden size", static_cast<double>(job.hidden), least_hidden, most_hidden),
        range("tokens in a micro-batch:", job.tokens, least_tokens, most_tokens),
        range("world size", static_cast<double>(job.ranks), 1, most_ranks),
        among("steps of", job.method, methods), among("steps in", job.precision, precisions)})
    if (!why.empty()) return why;
  for (const std::string& kind : job.devices)
    if (!devices.empty() && std::ranges::none_of(devices, [&](const std::string& known) {
          return kind == known || kind.starts_with(known + " ");
        }))
      return fmt::format("steps on {} were not measured, only on {}", kind,
                         fmt::join(devices, ", "));
  return "";
}

Software read_software(const Config& table, Software base) {
  const auto count = [](const Config& c, const char* key, int present, double least) {
    return static_cast<int>(c.integer(key, present, between(least, 64)));
  };
  Software s = std::move(base);
  const Config kernels = table.section("kernels");
  s.attention = choose(kernels, "attention", s.attention);
  s.attention_rate = kernels.number("attention_rate", s.attention_rate, between(1e-6, 10));
  s.operators = choose(kernels, "operators", s.operators);
  s.reductions = kernels.number("reductions", s.reductions, limits::efficiency);
  s.softmax = choose(kernels, "softmax", s.softmax);
  s.softmax_multiple = count(kernels, "softmax_multiple", s.softmax_multiple, 1);
  s.softmax_f32 = kernels.flag("softmax_f32", s.softmax_f32);
  s.soft_caps = choose(kernels, "soft_caps", s.soft_caps);
  s.head_copies = count(kernels, "head_copies", s.head_copies, 0);
  s.qkv_forward = count(kernels, "qkv_forward", s.qkv_forward, 1);
  s.qkv_backward = count(kernels, "qkv_backward", s.qkv_backward, 1);
  s.bias = choose(kernels, "bias", s.bias);
  s.bias_activation = kernels.flag("bias_activation", s.bias_activation);
  s.autocast = kernels.flag("autocast", s.autocast);
  s.recompute_scores = kernels.flag("recompute_scores", s.recompute_scores);
  s.residual = choose(kernels, "residual", s.residual);
  s.divides_tokens = kernels.flag("divides_tokens", s.divides_tokens);
  s.cross_entropy = choose(kernels, "cross_entropy", s.cross_entropy);
  s.experts = choose(kernels, "experts", s.experts);
  s.tf32 = kernels.flag("tf32", s.tf32);
  s.fp8 = choose(kernels, "fp8", s.fp8);
  s.update_bytes = kernels.number("update_bytes", s.update_bytes, between(0, 1e4));
  const Config memory = table.section("memory");
  s.keeps_masks = memory.flag("keeps_masks", s.keeps_masks);
  s.norms = choose(memory, "norms", s.norms);
  const Config communication = table.section("communication");
  s.library = read_communication(communication, s.library);
  s.gathers = choose(communication, "gathers", s.gathers);
  s.logits = choose(communication, "logits", s.logits);
  const Config host = table.section("host");
  s.forward_issue = host.seconds("forward", s.forward_issue, limits::latency);
  s.backward_issue = host.seconds("backward", s.backward_issue, limits::latency);
  s.microbatch = host.seconds("micro_batch", s.microbatch, limits::latency);
  s.update = host.seconds("update", s.update, limits::latency);
  s.transfer = host.seconds("transfer", s.transfer, limits::latency);
  s.staging = host.bandwidth("staging", s.staging, limits::maybe_bandwidth);
  s.waits = read_waits(host, s.waits);
  return s;
}

namespace {

Measured read_measured(const Config& c, Measured present) {
  const auto range = [&](const char* key, std::int64_t& least, std::int64_t& most) {
    const std::vector<std::int64_t> ends = c.integers(key, at_least(1));
    if (ends.empty()) return;
    if (ends.size() != 2 || ends[0] > ends[1])
      throw c.error(key,
                    "must be the smallest and the largest that was measured, as in [1024, 4096]");
    least = ends[0], most = ends[1];
  };
  range("hidden", present.least_hidden, present.most_hidden);
  range("tokens", present.least_tokens, present.most_tokens);
  present.most_ranks = c.integer("ranks", present.most_ranks, at_least(0));
  for (auto [key, list] :
       {std::pair("methods", &present.methods), std::pair("precisions", &present.precisions),
        std::pair("devices", &present.devices)})
    if (std::vector<std::string> stated = c.texts(key); !stated.empty()) *list = std::move(stated);
  return present;
}

/// `above`: the files whose base this is, each that of the one before it.
Software load(const std::string& name_or_path, std::vector<std::string> above) {
  const auto path = find_data("software", name_or_path, "software");
  const std::string file_itself = std::filesystem::weakly_canonical(path).string();
  if (std::ranges::find(above, file_itself) != above.end())
    throw InputError(fmt::format("{} is its own base; leave base out", path.string()));
  above.push_back(file_itself);
  const Config file = Config::load(path.string());
  check_kind(file, FileKind::software);
  Software s;
  if (const std::string base = file.text("base", ""); !base.empty()) {
    try {
      s = load(base, above);
    } catch (const InputError& error) {
      throw file.error("base", error.what());
    }
  }
  s.name = path.stem().string();
  s.summary = file.text("summary", "");
  s.source = file.text("source", std::nullopt);
  s.measured = read_measured(file.section("measured"), s.measured);
  s = read_software(file, std::move(s));
  file.finish();
  return s;
}

}  // namespace

Software load_software(const std::string& name_or_path) { return load(name_or_path, {}); }

Software read_section(const Config& c) {
  Software base;
  const std::string name = c.text("name", base.name);
  try {
    if (name != base.name) base = load_software(name);
  } catch (const InputError& error) {
    throw c.error("name", error.what());
  }
  return read_software(c, std::move(base));
}

std::vector<std::string> known_software() { return data_names("software"); }

std::uint64_t hash_of(const Software& s) {
  std::string text = fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}",
      name_of(s.attention), s.attention_rate, name_of(s.operators), s.reductions,
      name_of(s.softmax), s.softmax_multiple, s.softmax_f32, s.head_copies, s.qkv_forward,
      s.qkv_backward, name_of(s.bias), s.bias_activation, s.autocast, name_of(s.residual),
      s.recompute_scores, s.divides_tokens, s.keeps_masks, name_of(s.norms),
      name_of(s.cross_entropy), s.tf32, s.update_bytes, text_of(s.library), name_of(s.gathers),
      s.forward_issue.value, s.backward_issue.value, s.microbatch.value, s.update.value,
      s.transfer.value, s.staging.value,
      fmt::join(s.waits | std::views::transform([](HostWait w) { return name_of(w); }), ","));
  // Absent at the default, so older hashes stay valid.
  if (s.fp8 != Fp8::dynamic) text += fmt::format(" fp8 {}", name_of(s.fp8));
  if (s.soft_caps != SoftCaps::fused) text += " soft caps";
  if (s.logits != Logits::divided) text += " logits";
  if (s.experts != Experts::looped) text += fmt::format(" experts {}", name_of(s.experts));
  return fnv1a(text);
}

std::vector<Config::Key> software_keys() {
  const Config file = Config::parse("source = \"any\"\n", "keys");
  file.text("base", "");
  file.text("summary", "");
  file.text("source", std::nullopt);
  read_measured(file.section("measured"), {});
  read_software(file, {});
  return file.keys();
}

}  // namespace rehearse::software
