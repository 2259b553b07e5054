// Fuzz targets for sweeps: a SWEEP.toml, whose points are listed as `rehearse sweep --dry-run`
// does, and the results of an earlier sweep.
#include "study/sweep/sweep.h"

#include <nlohmann/json.hpp>

#include "tests/fuzz/targets.h"

namespace rehearse::fuzz {

void sweep(std::string_view input) {
  write_input("model.name = \"gpt-tiny\"\ncluster.name = \"dgx1\"\nmethod.name = \"ddp\"\n",
              "job.toml");
  const std::string path = write_input(input, "sweep.toml");
  accepts([&] {
    const study::Sweep read = study::read_sweep(path);
    double points = 1;
    for (const study::Axis& axis : read.axes) points *= static_cast<double>(axis.values.size());
    if (points >= 1000) return;
    const std::vector<study::Row> rows =
        study::results_of(read, study::points_of(read), study::Rows());
    const nlohmann::ordered_json json = study::to_json(rows);
    expect(nlohmann::ordered_json::parse(json.dump()) == json, "the JSON of a sweep parses");
    expect(!study::csv_of(read, rows).empty(), "a sweep has a CSV");
  });
}

void results(std::string_view input) {
  write_input(input, "results.jsonl");
  accepts([&] {
    const study::Rows rows = study::read_rows(folder());
    if (rows.empty()) return;
    const auto& [key, row] = *rows.begin();
    const std::string written = study::to_json(row).dump();
    write_input(written + "\n", "results.jsonl");
    expect(study::to_json(study::read_rows(folder()).at(key)).dump() == written,
           "a result is read as it was written");
  });
}

}  // namespace rehearse::fuzz
