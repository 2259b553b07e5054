// rehearse._core: what the Python package asks of librehearse.so. Jobs come as TOML and answers go
// as JSON, which the Python files of the package turn into its types.
//
// It is used by processes of the package (rehearse/worker.py), in which nothing else runs. A piece
// of work is a child of such a process (study/answers.h).
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "engine/base/duration.h"
#include "engine/base/errors.h"
#include "engine/base/files/data_dir.h"
#include "engine/base/files/files.h"
#include "engine/base/names.h"
#include "study/answers.h"
#include "study/sweep/search.h"
#include "study/sweep/sweep.h"

namespace nb = nanobind;

namespace rehearse::python {
namespace {

/// Raises what a signal's handler raises, such as KeyboardInterrupt. Takes the interpreter's lock.
void look_for_signals() {
  const nb::gil_scoped_acquire lock;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

template <class Work>
std::string answer(const Work& work) {
  const nb::gil_scoped_release unlocked;
  return study::in_child([&] { return work(); }, look_for_signals);
}

study::JobSource source_of(const std::string& name, const std::optional<std::string>& toml,
                           const std::vector<std::string>& set) {
  return {.file = name, .text = toml ? *toml : read_file(name), .set = set};
}

study::StudyOptions options_of(const std::string& fidelity, int seeds, int steps,
                               double precision) {
  const std::optional<study::Fidelity> network = from_name<study::Fidelity>(fidelity);
  if (!network) {
    const std::vector<std::string> known = names_of<study::Fidelity>();
    const std::string near = nearest(fidelity, known);
    throw InputError(fmt::format("fidelity: \"{}\": must be one of analytic, fluid, chunk{}",
                                 fidelity, near.empty() ? "" : "; did you mean \"" + near + "\"?"));
  }
  return study::study_options(
      {.network = *network, .seeds = seeds, .steps = steps, .precision = precision});
}

/// Hands progress to a Python function.
class Listener : public study::Progress {
 public:
  explicit Listener(nb::object hear) : hear_(std::move(hear)) {}
  void say(const std::string& /*live*/, const std::string& line) override {
    const nb::gil_scoped_acquire lock;
    hear_(line);
  }

 private:
  nb::object hear_;
};

/// How a sweep is computed, and what is asked about its points.
struct SweepFlags {
  std::string folder = {};           // keeps the rows and results.csv
  int jobs = 0;                      // as study::Work
  std::vector<std::string> by = {};  // metrics; none: no frontier
  int search = 0;                    // points at most; 0: all of them
};

/// The answer of a sweep that `read` reads. `choose`: study::Search::choose.
template <class Read>
std::string sweep(const Read& read, const SweepFlags& flags, const nb::object& choose,
                  const nb::object& progress) {
  using Json = nlohmann::ordered_json;
  if (flags.jobs < 0) throw InputError(fmt::format("jobs: {}: must be at least 0", flags.jobs));
  Listener listener(progress);
  study::Work work{.jobs = flags.jobs, .folder = flags.folder, .check = look_for_signals};
  if (!progress.is_none()) work.progress = &listener;
  const nb::gil_scoped_release unlocked;
  const study::Sweep sweep = read();
  const std::vector<study::Metric> by = study::metrics_named(sweep.question, flags.by, "by:");
  const std::vector<study::Point> points = study::points_of(sweep);
  study::Rows rows = study::read_rows(flags.folder);
  std::vector<study::Row> results;
  if (flags.search > 0) {
    const auto ask = [&choose](const std::string& state) {
      const nb::gil_scoped_acquire lock;
      return nb::cast<std::string>(choose(state));
    };
    results =
        study::search(sweep, points, {.by = by, .budget = flags.search, .choose = ask}, work, rows);
  } else {
    study::compute(sweep, points, work, rows);
    results = study::results_of(sweep, points, rows);
  }
  write_file(flags.folder + "/results.csv", study::csv_of(sweep, results));
  Json axes = Json::array(), best;
  for (const study::Axis& axis : sweep.axes) axes.push_back(axis.name);
  if (!flags.by.empty()) {
    best = Json::array();
    for (const std::size_t at : study::frontier(results, by)) best.push_back(at);
  }
  return Json{
      {"axes", std::move(axes)}, {"points", to_json(results)}, {"frontier", std::move(best)}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// C++ errors become those of rehearse.errors.
void translate(const std::exception_ptr& error, void* /*unused*/) {
  const auto raise = [](const char* type, const char* text) {
    PyErr_SetString(nb::module_::import_("rehearse.errors").attr(type).ptr(), text);
  };
  try {
    std::rethrow_exception(error);
  } catch (const InputError& e) {
    raise("InputError", e.what());
  } catch (const ProgramError& e) {
    raise("ProgramError", e.what());
  } catch (const BackendError& e) {
    raise("BackendError", e.what());
  }
}

}  // namespace

void define(nb::module_& m) {
  using namespace nb::literals;
  nb::register_exception_translator(translate);
  m.doc() = "What the package asks of librehearse.so; use the package's own functions.";
  m.attr("version") = REHEARSE_VERSION;
  m.def("data_dir", [] { return data_dir().string(); });

  nb::class_<study::JobSource>(m, "Source", "A job: TOML with keys that replace some of it.")
      .def(nb::new_(&source_of), "name"_a, "toml"_a.none(), "set"_a,
           "Without `toml`, reads the file `name`.")
      .def_ro("name", &study::JobSource::file)
      .def_prop_ro("toml", [](const study::JobSource& self) { return self.text.value_or(""); })
      .def_ro("set", &study::JobSource::set);
  m.def(
      "check",
      [](const study::JobSource& source) {
        answer([&] {
          static_cast<void>(study::load(source));
          return std::string("good");
        });
      },
      "source"_a, "Raises InputError when the job is wrong.");
  m.def(
      "simulate",
      [](const study::JobSource& source, const std::string& fidelity, int seeds, int steps,
         double precision) {
        const study::StudyOptions how = options_of(fidelity, seeds, steps, precision);
        return answer([&] { return study::simulate_json(source, how).dump(); });
      },
      "source"_a, "fidelity"_a, "seeds"_a, "steps"_a, "precision"_a);
  m.def(
      "compare",
      [](const study::JobSource& source, const std::string& methods, bool fit,
         const std::string& fidelity, int seeds, int steps, double precision) {
        const study::StudyOptions how = options_of(fidelity, seeds, steps, precision);
        return answer([&] { return study::compare_json(source, methods, fit, how).dump(); });
      },
      "source"_a, "methods"_a, "fit"_a, "fidelity"_a, "seeds"_a, "steps"_a, "precision"_a);
  m.def(
      "goodput",
      [](const study::JobSource& source, const std::string& duration, const std::string& recovery,
         const std::string& checkpoint, const std::string& fidelity, int seeds, int steps,
         double precision) {
        const study::StudyOptions how = options_of(fidelity, seeds, steps, precision);
        const study::LongRunChoices choices{.recovery = recovery, .checkpoint = checkpoint};
        return answer([&] { return study::goodput_json(source, duration, choices, how).dump(); });
      },
      "source"_a, "duration"_a, "recovery"_a, "checkpoint"_a, "fidelity"_a, "seeds"_a, "steps"_a,
      "precision"_a);
  m.def(
      "plan",
      [](const study::JobSource& source, int budget, bool rescore) {
        if (budget < 0) throw InputError(fmt::format("budget: {}: must be at least 0", budget));
        const study::PlanFlags flags{.budget = budget, .rescore = rescore};
        return answer([&] { return study::plan_json(source, flags).dump(); });
      },
      "source"_a, "budget"_a, "rescore"_a);

  m.def("patience_with_programs", [] { return patience_with_programs().value; });
  nb::class_<SweepFlags>(m, "SweepFlags", "How a sweep is computed.")
      .def(nb::new_([](std::string folder, int jobs, std::vector<std::string> by, int search) {
             return SweepFlags{std::move(folder), jobs, std::move(by), search};
           }),
           "folder"_a, "jobs"_a, "by"_a, "search"_a);
  m.def(
      "sweep_file",
      [](const std::string& path, const std::vector<std::string>& set, const SweepFlags& flags,
         const nb::object& choose, const nb::object& progress) {
        return sweep([&] { return study::read_sweep(path, set); }, flags, choose, progress);
      },
      "path"_a, "set"_a, "flags"_a, "choose"_a.none(), "progress"_a.none());
  m.def(
      "sweep_job",
      [](const study::JobSource& base, const std::string& toml, const SweepFlags& flags,
         const nb::object& choose, const nb::object& progress) {
        return sweep([&] { return study::sweep_of_job(base, toml, "<sweep>"); }, flags, choose,
                     progress);
      },
      "base"_a, "toml"_a, "flags"_a, "choose"_a.none(), "progress"_a.none());
}

}  // namespace rehearse::python

NB_MODULE(_core, m) { rehearse::python::define(m); }
