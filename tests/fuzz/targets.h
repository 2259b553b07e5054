// Fuzz targets: one for each kind of file that Rehearse reads, and one
// for what ranks read from the network. A target gives a text to the reader
// and then uses the result as a command would. The reader must accept the text or refuse it with an
// InputError, ProgramError or BackendError. Everything else is a bug of Rehearse: a crash, another
// exception, a sanitizer's report, minutes of work, gigabytes of memory. libFuzzer calls the
// targets (entry/entry.cpp), and test_fuzz runs them on the corpora (corpus_test.cpp).
#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/errors.h"
#include "engine/model/model.h"

namespace rehearse::fuzz {

struct Target {
  const char* name = "";
  void (*run)(std::string_view input) = nullptr;
};

void job(std::string_view input);
void platform(std::string_view input);
void model(std::string_view input);
void profile(std::string_view input);
void plan(std::string_view input);
void program(std::string_view input);
void safetensors(std::string_view input);
void manifest(std::string_view input);
void shards(std::string_view input);
void faults(std::string_view input);
void frames(std::string_view input);
void data_frames(std::string_view input);
void software(std::string_view input);
void sweep(std::string_view input);
void results(std::string_view input);
void measurements(std::string_view input);

inline constexpr Target targets[]{{"job", job},           {"platform", platform},
                                  {"model", model},       {"profile", profile},
                                  {"plan", plan},         {"program", program},
                                  {"manifest", manifest}, {"safetensors", safetensors},
                                  {"shards", shards},     {"faults", faults},
                                  {"frames", frames},     {"data_frames", data_frames},
                                  {"software", software}, {"sweep", sweep},
                                  {"results", results},   {"measurements", measurements}};

/// The keys of the target's format, and the words that a key accepts, if tables of the code say
/// them; empty for the other targets. tools/fuzz gives them to libFuzzer beside those of
/// tests/fuzz/dict.
std::set<std::string> words_of(std::string_view target);

/// Calls `f`. Returns true if it succeeds, and false if it throws one of the three errors above.
template <class F>
bool accepts(F f) {
  try {
    f();
    return true;
  } catch (const InputError&) {
  } catch (const ProgramError&) {
  } catch (const BackendError&) {
  }
  return false;
}

/// Throws std::logic_error, which no target catches, when `kept` is false.
void expect(bool kept, const std::string& promise);

/// Writes the input to the file `name` in folder() and returns its path.
std::string write_input(std::string_view input, const std::string& name);
/// The folder of write_input. It is empty when the process starts and is removed when the process
/// ends.
const std::string& folder();

/// Replaces the text between `before` and the next quote by `value`. Does nothing if the text has
/// no `before`.
void set_value(std::string& text, const std::string& before, const std::string& value);

/// Whether a number above `most` follows one of these words in the text. Such inputs are skipped: a
/// cluster of a thousand nodes takes long, and that is no bug.
bool has_large(std::string_view text, const std::vector<std::string>& words, double most);

/// Does what `rehearse simulate --json --fidelity analytic` does with this job: two steps of two
/// seeds after one step of warm-up. Expects JSON that parses and has finite numbers only. Skips
/// jobs that would take long.
void simulate(const std::string& job, const std::vector<std::string>& overrides = {});
/// The same on four GPUs with three methods, each of which may refuse. `keys`: of the job.
void simulate_methods(const std::string& keys);
/// Whether a job of this model takes little time.
bool is_small(const model::ModelSpec& model);

}  // namespace rehearse::fuzz
