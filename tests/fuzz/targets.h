// Fuzz targets: one for each kind of file that Rehearse reads. A target gives a text to the reader
// and goes on with what was read as far as a command would. Whatever the text, it is either
// accepted or refused with an InputError, ProgramError or BackendError: everything else (a crash,
// another exception, a sanitizer's report, minutes, gigabytes) is a fault of ours. libFuzzer calls
// them (entry/entry.cpp), and test_fuzz runs them on the corpora (corpus_test.cpp).
#pragma once
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

inline constexpr Target targets[]{
    {"job", job},      {"platform", platform}, {"model", model},       {"profile", profile},
    {"plan", plan},    {"program", program},   {"manifest", manifest}, {"safetensors", safetensors},
    {"shards", shards}};

/// Runs `f` and says whether it went through; false: it refused, as it may.
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

/// Throws std::logic_error, which no target catches, when a promise is broken.
void expect(bool kept, const std::string& promise);

/// Writes the input where readers of paths find it and returns the path. `name`: the last part.
std::string write_input(std::string_view input, const std::string& name);
/// The folder that write_input writes to, empty when the process starts and removed when it ends.
const std::string& folder();

/// What stands behind `before` until the next quote is replaced; nothing where `before` is not.
void set_value(std::string& text, const std::string& before, const std::string& value);

/// Whether a number follows one of these words in the text that makes it too large to be tried in a
/// moment: a cluster of a thousand nodes is no fault.
bool has_large(std::string_view text, const std::vector<std::string>& words, double most);

/// What `rehearse simulate --json --fidelity analytic` does with this job, two steps of two seeds.
/// Expects JSON that parses, of finite numbers. Jobs too large for a moment are left out.
void simulate(const std::string& job, const std::vector<std::string>& overrides = {});
bool is_small(const model::ModelSpec& model);

}  // namespace rehearse::fuzz
