// `rehearse doctor`: lists what this machine has, what it lacks, and what does not work without it;
// then the ports that a run would open here.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands/training.h"
#include "cli/console/command.h"
#include "cli/console/gpus.h"
#include "cli/console/json_out.h"
#include "cli/console/python.h"
#include "cli/console/spawn.h"
#include "engine/base/errors.h"
#include "engine/base/files/data_dir.h"
#include "engine/base/table.h"
#include "engine/base/units.h"
#include "engine/cluster/cluster.h"
#include "engine/methods/strategy.h"
#include "engine/model/model.h"
#include "study/load.h"

namespace rehearse::cli {
namespace {

struct Finding {
  std::string what = {};
  bool found = false;
  std::string detail = {};    // what was found, or why it was not found
  std::string disables = {};  // what does not work without it
};

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name")) return line.substr(line.find(": ") + 2);
  return "unknown CPU";
}

Finding cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return {"cores", true, fmt::format("{} usable: {}", usable, cpu_name()), ""};
}

Finding memory() {
  struct sysinfo info {};
  sysinfo(&info);
  const double unit = info.mem_unit;
  return {
      "memory", true,
      fmt::format("{}, {} of it free", to_text(Bytes(unit * static_cast<double>(info.totalram))),
                  to_text(Bytes(unit * static_cast<double>(info.freeram)))),
      ""};
}

Finding simulator() {
#ifdef REHEARSE_HAS_SIM
  return {"SimGrid", true, "built in", ""};
#else
  return {"SimGrid", false, "this build was configured with REHEARSE_SIM=OFF",
          "--fidelity fluid and chunk; analytic works"};
#endif
}

Finding trainer() {
  try {
    training();
    return {"LibTorch", true, "loaded by " + find_module(training_module).string(), ""};
  } catch (const InputError& missing) {
    return {"LibTorch", false, missing.what(), "train, and profile without --cluster"};
  }
}

/// Which kernels compute matrix products in real ranks on this machine.
Finding products(const Finding& trainer) {
  if (!trainer.found) return {"fp32 products", false, "no LibTorch", trainer.disables};
  return {"fp32 products", true, training().products(), ""};
}

/// The device on which the job's ranks would train.
Finding device(const Finding& trainer, const std::string& kind) {
  const std::string what = "device of train";
  if (!trainer.found) return {what, false, "no LibTorch", trainer.disables};
  try {
    return {what, true, fmt::format("run.device = \"{}\": {}", kind, training().device(kind)), ""};
  } catch (const InputError& refused) {
    return {what, false, refused.what(), "train with this job"};
  }
}

Finding python() {
  const std::string path = find_python();
  if (path.empty())
    return {"Python", false,
            fmt::format("no private environment; {} python makes it",
                        (data_dir() / "tools/setup").string()),
            "--report, preparing text"};
  const Finished said = run_program(
      {path, "-c",
       "import jinja2, matplotlib, msgspec, numpy, tokenizers, sys; print(sys.version.split()[0])"},
      true);
  if (said.status != 0)
    return {"Python", false,
            fmt::format("{} lacks jinja2, matplotlib, msgspec, numpy or tokenizers", path),
            "--report, preparing text"};
  return {"Python", true, fmt::format("{} {}", path, said.output.substr(0, said.output.find('\n'))),
          ""};
}

Finding gpus() {
  const Gpus found = find_gpus();
  if (found.list.empty())
    return {"GPUs", false, found.problem,
            "train on GPUs (run.device=cuda); GPUs are simulated without one"};
  std::vector<std::string> names;
  for (const Gpu& gpu : found.list)
    names.push_back(
        fmt::format("{} ({})", gpu.name, to_text(Bytes(static_cast<double>(gpu.memory)))));
  return {"GPUs", true,
          fmt::format("{}{}, by {}", fmt::join(names, ", "),
                      found.driver.empty() ? "" : "; driver " + found.driver, found.source),
          ""};
}

Finding compiler() {
  std::vector<std::string> candidates;
  if (const char* home = std::getenv("CUDA_HOME"); home != nullptr)
    candidates.push_back(std::string(home) + "/bin/nvcc");
  candidates.emplace_back("/usr/local/cuda/bin/nvcc");
  candidates.emplace_back("nvcc");
  for (const std::string& nvcc : candidates) {
    const Finished said = run_program({nvcc, "--version"}, false);
    const auto at = said.output.find("release ");
    if (said.status != 0 || at == std::string::npos) continue;
    return {"nvcc", true,
            fmt::format("{} ({})", nvcc, said.output.substr(at, said.output.find(',', at) - at)),
            ""};
  }
  return {"nvcc", false, "no CUDA toolkit; `make gpu` fetches PyPI's compiler",
          "nothing: `make gpu` works without"};
}

Finding plugin() {
  const std::string path = find_module("librehearse_device_cuda.so").string();
  if (!path.empty()) return {"CUDA plug-in", true, path, ""};
  return {"CUDA plug-in", false, "not built; `make gpu` builds it",
          "train on GPUs (run.device=cuda)"};
}

Finding files() {
  std::vector<std::string> methods;
  for (const auto& [name, strategy] : methods::strategies()) methods.push_back(name);
  return {"models and platforms",
          !model::known_models().empty() && !cluster::known_clusters().empty(),
          fmt::format("{}: {} models, {} platforms", data_dir().string(),
                      model::known_models().size(), cluster::known_clusters().size()),
          "jobs that name models or clusters; paths work"};
}

nlohmann::ordered_json to_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& f : findings)
    list.push_back({{"what", f.what},
                    {"found", f.found},
                    {"detail", f.detail},
                    {"disables", f.found ? "" : f.disables}});
  return list;
}

/// Addresses are null in a run that does not open the port.
nlohmann::ordered_json to_json(const std::vector<runtime::OpenPort>& ports) {
  const auto address = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const runtime::OpenPort& p : ports)
    list.push_back({{"what", p.what},
                    {"opened_by", p.opened_by},
                    {"port", p.port},
                    {"one_host", address(p.one_host)},
                    {"several_hosts", address(p.several_hosts)},
                    {"proven", p.proven},
                    {"encrypted", p.encrypted}});
  return list;
}

std::string text_of_findings(const std::vector<Finding>& findings) {
  std::vector<std::vector<std::string>> rows{{"what", "", "detail"}};
  for (const Finding& f : findings) {
    rows.push_back({f.what, f.found ? "found" : "missing", f.detail});
    if (!f.found) rows.push_back({"", "", "disables: " + f.disables});
  }
  return table(rows);
}

std::string text_of_ports(const std::vector<runtime::OpenPort>& ports) {
  const auto address = [](const std::string& text) { return text.empty() ? "none" : text; };
  std::vector<std::vector<std::string>> rows{{"port of a run for", "proven", "encrypted",
                                              "on one host", "on several", "opened by", "number"}};
  for (const runtime::OpenPort& p : ports)
    rows.push_back({p.what, p.proven ? "yes" : "no", p.encrypted ? "yes" : "no",
                    address(p.one_host), address(p.several_hosts), p.opened_by, p.port});
  return table(rows) +
         "proven: a connection is closed unless it proves that it belongs to the run "
         "(docs/security.md)\n";
}

int run_doctor(const Context& context, const std::string& job) {
  const job::Run run = job.empty() ? job::Run() : study::load(job, context.set).run;
  const Finding torch = trainer();
  const auto ports = torch.found ? training().ports(run) : std::vector<runtime::OpenPort>();
  const std::vector<Finding> findings{
      cores(),  memory(), simulator(), torch,      products(torch), device(torch, run.device),
      python(), gpus(),   plugin(),    compiler(), files()};
  if (context.json) {
    const nlohmann::ordered_json out{
        {"schema_version", 1}, {"findings", to_json(findings)}, {"ports", to_json(ports)}};
    std::cout << text_of(with_header(context, out));
    return good;
  }
  std::cout << "rehearse " << REHEARSE_VERSION << "\n" << text_of_findings(findings);
  if (!ports.empty()) std::cout << "\n" << text_of_ports(ports);
  return good;
}

}  // namespace

void add_doctor(CLI::App& app, Context& context) {
  const Command command(
      app, context, "doctor",
      "Say what was found, what is missing, what that disables, and which ports a run opens",
      "  rehearse doctor\n  rehearse doctor --json\n  rehearse doctor experiments/demo-ddp.toml");
  auto job = std::make_shared<std::string>();
  command.job(*job);
  command.runs([&context, job] { return run_doctor(context, *job); });
}

}  // namespace rehearse::cli
